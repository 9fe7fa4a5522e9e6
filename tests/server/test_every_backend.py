"""The same API in front of every backend: lengths as requested, text that can be counted again, hang-ups that free."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from backends.server.run import make_service
from backends.server.service import Sampling
from server._received import Received, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Play

BACKENDS = ("null:ttft=5ms,itl=1ms", "sim:model=opt-13b,hardware=a100-80g", "engine")
SMALL = ("sim:kv_blocks=10,latency=linear:base_s=0.002", "engine:kv_blocks=10")  # 160 tokens of memory
TEXT = "/v1/completions"


@pytest.mark.parametrize("backend", BACKENDS)
async def test_answers_have_the_requested_length(play: Play, backend: str) -> None:
    """A benchmark's output lengths would be those of the backend, not of the workload."""
    async with play(backend=backend) as stage:
        ask = {"prompt": list(range(40)), "max_tokens": 12, "ignore_eos": True, "temperature": 0}
        options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        *chunks, done = await stage.stream(TEXT, {**ask, **options})
        counts: list[Any] = [chunk["usage"]["completion_tokens"] for chunk in chunks]  # type: ignore[index]  # objects
        whole = json.loads((await stage.post(TEXT, ask))[2])

        assert "[DONE]" == done
        assert [*range(1, 13)] == counts[:12]
        assert (40, 12) == (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"])
        assert "length" == whole["choices"][0]["finish_reason"]


@pytest.mark.parametrize("backend", ["sim:model=opt-13b,hardware=a100-80g", "engine"])
async def test_each_of_several_answers_is_that_of_its_seed_and_all_tokens_are_counted(play: Play, backend: str) -> None:
    """A client that asks for three answers would get one three times, or be charged for one."""
    async with play(backend=backend) as stage:
        ask = {"prompt": list(range(40)), "max_tokens": 6, "ignore_eos": True, "temperature": 1.0, "seed": 5}
        whole = json.loads((await stage.post(TEXT, {**ask, "n": 3}))[2])
        alone = [json.loads((await stage.post(TEXT, {**ask, "seed": 5 + i}))[2]) for i in range(3)]
        *chunks, done = await stage.stream(TEXT, {**ask, "n": 3, "stream_options": {"include_usage": True}})
        texts, ends = ["", "", ""], []
        choices: list[dict[str, Any]] = [choice for chunk in chunks for choice in chunk["choices"]]  # type: ignore[index]
        for choice in choices:
            texts[choice["index"]] += choice["text"]
            ends += [choice["index"]] if choice["finish_reason"] else []

        assert [answer["choices"][0]["text"] for answer in alone] == [c["text"] for c in whole["choices"]] == texts
        assert len(set(texts)) == 3 and [0, 1, 2] == [c["index"] for c in whole["choices"]] == sorted(ends)
        assert "[DONE]" == done
        for usage in (whole["usage"], chunks[-1]["usage"]):  # type: ignore[index]  # objects
            assert (40, 18) == (usage["prompt_tokens"], usage["completion_tokens"])


@pytest.mark.parametrize("backend", BACKENDS)
async def test_several_streams_run_at_once(play: Play, backend: str) -> None:
    """A stand-in for a server that batches would answer one after the other."""
    async with play(backend=backend) as stage:
        ask = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}
        answers = await asyncio.gather(*[stage.stream(TEXT, ask) for _ in range(8)])

        assert {"[DONE]"} == {str(answer[-1]) for answer in answers}
        assert 8 * 20 == stage.running.front.metrics.generation_tokens


@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_hang_up_leaves_nothing_running(play: Play, backend: str, wire_request: Callable[..., bytes]) -> None:
    """Sequences of clients that have gone would take KV memory from those that wait."""
    async with play(backend=backend) as stage:
        service = stage.running.front.service
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        writer.write(wire_request(TEXT, {"prompt": "hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}))
        await reader.readuntil(b"\n\n")
        writer.transport.abort()
        await stage.running.front.idle()
        while service.stats().running or service.stats().kv_usage:
            await stage.get("/health")

        assert 1 == stage.running.front.metrics.finished["abort"]
        assert 0 == service.stats().waiting


@pytest.mark.parametrize("spec", SMALL)
async def test_an_aborted_answer_is_gone_before_the_next_step(spec: str) -> None:
    """People who hang up, and who hang up at once, must not keep memory that others wait for."""
    async with running(make_service(spec)) as service:
        long, waiting, gone = Received(), Received(), Received()
        ticket = service.submit([1] * 100, Sampling(61), long)
        await long.first.wait()
        service.submit([1] * 5, Sampling(100), gone).abort()
        second = service.submit([1] * 100, Sampling(60), waiting)
        before = len(long.tokens)
        ticket.abort()
        ticket.abort()
        await waiting.ended.wait()
        stats = service.stats()

    assert (before, None, []) == (len(long.tokens), long.end, gone.tokens)
    assert (60, "length") == (len(waiting.tokens), waiting.end)
    assert second.scheduled_s is not None
    assert second.scheduled_s < waiting.due_s[0]
    assert (0, 0, 0, 0.0) == (stats.running, stats.waiting, stats.preemptions, stats.kv_usage)


@pytest.mark.parametrize("spec", SMALL)
async def test_what_can_never_be_served_is_refused_at_once(spec: str) -> None:
    """It would wait for ever, or break the engine for all; nor must such a context be promised."""
    async with running(make_service(spec)) as service:
        with pytest.raises(ValueError, match="needs KV memory for 199 tokens, the replica has 160"):
            service.submit([1] * 100, Sampling(100), Received())

        assert (161, 0) == (service.max_model_len, service.stats().waiting)
