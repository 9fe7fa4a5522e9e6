"""The engine behind the server: the tokens of the engine, ended where the model or the client ends them."""

import asyncio
import json
import os
import select
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from backends.engine_process.generation import GenerationParams
from backends.executors import _weights
from backends.executors.llama import Llama
from backends.server.engine_service import EngineService, make
from backends.server.service import Sampling
from backends.serving.replica import Replica
from harness.api import Request
from harness.errors import BackendError, UsageError
from harness.registry import make as make_plugin
from harness.spec import parse
from replay._alone import serve_alone, tokens_of
from server._received import Received, running


async def answers(service, prompts, *samplings):
    """All answers, requested at once."""
    received = [Received() for _ in prompts]
    for one, prompt, sampling in zip(received, prompts, samplings, strict=True):
        service.submit(prompt, sampling, one)
    await asyncio.gather(*(one.ended.wait() for one in received))
    assert all(one.at_s == one.due_s for one in received), "nothing is promised, so nothing is late"
    return received


def prompts(count, vocab=4096):
    """Prompts of 5, 12, 19, ... tokens."""
    return [np.random.default_rng(i).integers(0, vocab, 5 + 7 * i).tolist() for i in range(count)]


def from_core(model, lengths, params, blocks=4096):
    """The tokens of the same requests from the engine's loop itself."""
    memory = make_plugin("kv", "paged")
    model.allocate(blocks, memory.block_tokens)
    replica = Replica(make_plugin("policies", "sarathi"), memory, blocks)
    requests = [Request(i, 0.0, len(one.prompt), n) for i, (n, one) in enumerate(zip(lengths, params, strict=True))]
    tokens = tokens_of(serve_alone(replica, model, None, requests, dict(enumerate(params))))

    assert blocks == replica.blocks.free

    return [tokens[i] for i in range(len(requests))]


@pytest.mark.parametrize("spec", ["engine", "engine:prefill=1,decode=1"])
async def test_greedy_tokens_are_those_of_the_engine(spec):
    """A server that changes the text is not a server of this engine."""
    lengths = [1, 4, 30, 9, 17]
    async with running(make(parse(spec))) as service:
        received = await answers(service, prompts(5), *(Sampling(n) for n in lengths))

    assert from_core(Llama(), lengths, [GenerationParams(p) for p in prompts(5)]) == [one.tokens for one in received]
    assert {"length"} == {one.end for one in received}
    assert all(one.at_s == sorted(set(one.at_s)) for one in received)


async def test_a_paced_engine_answers_equal_prompts_with_equal_words():
    """A text of bytes would be no text, and a client that sends it back would send other tokens."""
    async with running(make(parse("engine:executor=paced:latency=linear:base_s=1ms,model=llama3-8b,tp=2"))) as service:
        received = [Received(), Received()]
        for one in received:
            service.submit([40, 41, 42], Sampling(9), one)
        await asyncio.gather(*(one.ended.wait() for one in received))
        for one in received:
            assert all(at_s >= due_s for at_s, due_s in zip(one.at_s, one.due_s, strict=True)), "a step had not ended"
        text = service.tokenizer.stream().add(received[0].tokens)
        model, again, (first, second) = service.model, service.tokenizer.encode(text), [one.tokens for one in received]

    assert "llama3-8b" == model
    assert again == first == second
    assert 9 == len(set(first))


async def test_seeded_sampling_is_the_same_each_time_and_in_any_company():
    """A seed that gives another answer when the server is busy is no seed."""
    warm = Sampling(12, temperature=0.9, seed=7, top_p=0.8)

    async with running(make(parse("engine"))) as service:
        (alone,) = await answers(service, prompts(1), warm)
        crowd = await answers(service, [*prompts(1), *prompts(4)], warm, *(Sampling(20) for _ in range(4)))
        other = await answers(service, prompts(1), Sampling(12, temperature=0.9, seed=8, top_p=0.8))
        alone, crowded, other = alone.tokens, crowd[0].tokens, other[0].tokens

    assert alone == crowded
    assert alone != other
    assert from_core(Llama(), [12], [GenerationParams(prompts(1)[0], temperature=0.9, seed=7, top_p=0.8)]) == [alone]


@pytest.fixture
def ending(tmp_path):
    """A model folder whose end of sequence is the fourth greedy token of the first prompt, and that token."""
    model = Llama(vocab=300, seed=5)
    (tmp_path / "model").mkdir()
    save_file(_weights.of_model(None, model.config, 5), tmp_path / "model" / "model.safetensors")
    of_hugging_face = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 16384,
    }  # fmt: skip
    (tmp_path / "model" / "config.json").write_text(json.dumps(of_hugging_face))
    (tokens,) = from_core(model, [40], [GenerationParams(prompts(1, 300)[0])])
    place = next(i for i in range(3, 40) if tokens[i] not in tokens[:i])
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [tokens[place], 299]}))
    return tmp_path / "model", place, tokens


@pytest.mark.parametrize("policy", ["sarathi", "vllm-v0", "orca:2", "static:3"])
async def test_an_answer_ends_with_the_models_own_end(ending, policy):
    """Without it every answer of a real model would run on into nonsense, under whatever policy."""
    folder, place, tokens = ending
    lengths = [Sampling(40), Sampling(40, ignore_eos=True), Sampling(40, min_tokens=place + 5), Sampling(place + 1)]
    spec = f"engine:model={folder},policy={policy},kv_blocks=12"
    async with running(make(parse(spec))) as service:
        stopped, ignoring, longer, last = await answers(service, prompts(1, 300) * 4, *lengths)

    assert (tokens[: place + 1], "stop") == (stopped.tokens, stopped.end)
    assert (tokens, "length") == (ignoring.tokens, ignoring.end)
    assert len(longer.tokens) >= place + 5
    assert tokens[place] not in longer.tokens[: place + 5]
    assert "stop" == last.end  # the end of sequence was the last token requested


async def test_the_ticket_knows_when_it_ran_and_how_often_it_lost_its_memory():
    """Queue time and preemptions are what /metrics is read for."""
    async with running(make(parse("engine:kv_blocks=12"))) as service:
        received = [Received() for _ in range(4)]
        tickets = [service.submit(p * 4, Sampling(60), h) for p, h in zip(prompts(1) * 4, received, strict=True)]
        await asyncio.gather(*(h.ended.wait() for h in received))
        stats, steps = service.stats(), service.steps()

    assert stats.preemptions == sum(ticket.preemptions for ticket in tickets) > 0
    assert all(t.scheduled_s < h.at_s[0] for t, h in zip(tickets, received, strict=True))
    assert {s.start_s for s in steps} >= {t.scheduled_s for t in tickets}


@pytest.mark.parametrize(
    ("prompt", "tokens", "words"),
    [
        ([4096], 1, "token id 4096 is not in the vocabulary of 4096 tokens"),
        ([1, -1], 1, "token id -1 is not"),
        ([], 5, "at least 1 token"),
    ],
)
async def test_what_can_never_be_served_is_refused_at_once(prompt, tokens, words):
    """The client's mistake must be reported to the client, not break the engine for all."""
    async with running(make(parse("engine:kv_blocks=10"))) as service:
        with pytest.raises(ValueError, match=words):
            service.submit(prompt, Sampling(tokens), Received())

        assert 0 == service.stats().waiting


async def test_a_killed_engine_ends_every_answer_with_the_reason():
    """A dead engine must not look like a slow one."""
    async with running(make(parse("engine"))) as service:
        received = Received()
        ticket = service.submit([1, 2, 3], Sampling(5000), received)
        await received.first.wait()
        service._link.process.kill()
        await received.ended.wait()
        ticket.abort()  # the client hangs up later
        with pytest.raises(BackendError, match="The engine failed"):
            service.submit([1], Sampling(1), Received())
        stats = service.stats()

    assert "error" == received.end
    assert "The engine failed" in received.error
    assert received.error == stats.failure  # /health says it, too, whether anybody asks for tokens or not


async def test_the_seeded_model_speaks_with_the_built_in_tokenizer():
    """Any client can use it, without a download."""
    async with running(make(parse("engine"))) as service:
        (received,) = await answers(service, [service.tokenizer.encode("Hello there")], Sampling(8))
        facts = service.model, service.max_model_len, service.describe()["backend"]

    assert ("seeded-llama-0", 16384, "engine") == facts
    assert service.tokenizer.stream().add(received.tokens)


async def test_a_missing_folder_is_one_sentence():
    """The user must know what to type instead."""
    with pytest.raises(UsageError, match="nowhere"):
        await make(parse("engine:model=nowhere")).start()


def test_service_is_ready_to_be_built_from_a_spec():
    """`bench serve --backend engine:...` takes the words of `bench run`."""
    assert EngineService(make(parse("engine:policy=orca")).engine).engine.policy == "orca"


SERVER = """
import asyncio, sys
from backends.server.engine_service import make
from backends.server.service import Sampling
from harness.spec import parse

class Deaf:
    def step(self, *given): pass

async def serve():
    service = make(parse("engine"))
    await service.start()
    service.submit([1, 2, 3], Sampling(16000), Deaf())
    print(service._link.process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells when another process has ended")
def test_a_killed_server_leaves_no_engine_behind():
    """An orphaned engine would take a core from everything that is measured later."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        engine = os.pidfd_open(int(server.stdout.readline()))
        server.kill()
    ended, _, _ = select.select([engine], [], [], 60)
    os.close(engine)

    assert ended
