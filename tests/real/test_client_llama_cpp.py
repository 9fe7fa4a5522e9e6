"""Our client against llama.cpp's server: what is counted, stamped and let go."""

import asyncio
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from backends.openai import OpenAI
from harness.api import Request
from harness.cli import main
from harness.data.folder import load
from harness.experiments import imports
from harness.registry import make

KINDS = pytest.mark.parametrize("kind", ["ascii", "bytes"])
APIS = pytest.mark.parametrize("api", ["chat", "completions"])


@pytest.fixture
def content(kit, tokenizer):
    """`content(kind, seeds)`: one text for each seed, with its tokens."""

    def made(kind: str, seeds: range = range(8)):
        texts = [kit.words(20, seed) for seed in seeds]
        ids = [tuple(tokenizer(kind).encode(text).ids) for text in texts]
        return kit.texts(tuple(texts), tuple(ids))

    return made


@pytest.fixture
def client(llama_cpp):
    """`client(kind, api, ...)`: our client, greedy, without a salt."""

    def made(kind: str, api: str, **options) -> OpenAI:
        given = {"temperature": 0.0, "salt": "none"} | options
        return OpenAI(url=f"{llama_cpp(kind)}/v1", model=f"tiny-{kind}", api=api, **given)

    return made


@KINDS
@APIS
def test_counts_finish_reasons_and_usage_are_right(client, content, kit, kind, api):
    """If this failed, the tokens in our records would not be those that the server made."""
    texts = content(kind)
    requests = [Request(i, 0.0, len(texts.ids[i]), 60 + i) for i in range(8)]
    received = asyncio.run(kit.listen(client(kind, api), texts, requests))

    for request, one in zip(requests, received, strict=True):
        assert ("ok", None) == (one.ended.status, one.ended.error)
        assert request.output_tokens == one.tokens
        assert (200, "length", "usage") == (
            one.exchange.http_status, one.exchange.finish_reason, one.exchange.counted_by
        )  # fmt: skip
        template = 3 if api == "chat" else 0  # <|user|>, <|end|>, <|assistant|>
        assert request.prompt_tokens + template == one.ended.prompt_tokens_server
        assert all(event.tokens >= 0 for event in one.events)


@KINDS
def test_the_probe_knows_what_this_server_takes(client, content, kit, kind):
    """If this failed, requests would carry fields that the server refuses, or leave out what makes lengths exact."""
    [received] = asyncio.run(kit.listen(client(kind, "completions"), content(kind), [Request(0, 0.0, 40, 5)]))
    found = received.describe["capabilities"]

    assert "token ids" == found["prompt"]
    assert "llama.cpp" == found["kind"]
    assert {"ignore_eos", "include_usage", "max_tokens"} <= set(found["accepted"])


def test_prompts_of_token_ids_have_the_requested_length(client, kit):
    """If this failed, prompts would be longer or shorter than the workload says, salt or not."""
    requests = [Request(i, 0.0, 1 + 90 * i, 5) for i in range(8)]
    backend = client("ascii", "completions", salt="auto")
    received = asyncio.run(kit.listen(backend, make("content", "tokens"), requests))

    assert [r.prompt_tokens for r in requests] == [one.ended.prompt_tokens_server for one in received]
    assert 0 == received[0].describe["capabilities"]["prompt_overhead_tokens"]


def test_chats_have_exactly_the_planned_tokens_by_the_servers_own_tokenizer(client, kit):
    """If this failed, prompts of 50 tokens would be off by a seventh, each its own way."""
    planned = [50, 51, 200, 1000]
    requests = [Request(i, 0.0, n, 5, prefix_ids=(3,) * (i % 2)) for i, n in enumerate(planned)]
    received = asyncio.run(kit.listen(client("bytes", "chat", salt="auto"), make("content", "text"), requests))

    assert planned == [one.ended.prompt_tokens_server for one in received]
    assert any("lengths: exact by the server's /tokenize" in note for note in received[0].describe["notes"])


@APIS
def test_text_that_comes_in_fewer_chunks_than_tokens_is_counted_by_tokens(client, content, kit, api):
    """If this failed, chunks would be counted as tokens where a vocabulary breaks off inside characters."""
    requests = [Request(i, 0.0, 40, 200) for i in range(4)]
    received = asyncio.run(kit.listen(client("bytes", api), content("bytes"), requests))

    assert [200] * 4 == [one.tokens for one in received]
    assert any(len(one.events) < 200 for one in received)


@APIS
def test_an_answer_that_ends_by_itself_is_ok_and_shorter(client, content, kit, api):
    """If this failed, an end of the sequence would be called a failure or counted as what was requested."""
    texts = content("bytes", range(10, 11))
    backend = client("bytes", "completions", extra_body='{"ignore_eos": false}')
    [received] = asyncio.run(kit.listen(backend, texts, [Request(0, 0.0, len(texts.ids[0]), 120)]))

    assert ("ok", "stop", 38) == (received.ended.status, received.exchange.finish_reason, received.tokens)


@APIS
def test_a_prompt_beyond_the_context_is_an_error_with_the_reason(client, content, kit, tokenizer, api):
    """If this failed, a request that can never be served would look like one that was slow."""
    long = kit.words(2000, 1)
    texts = content("ascii")
    texts = kit.texts((*texts.texts[:1], long), (*texts.ids[:1], tuple(tokenizer("ascii").encode(long).ids)))
    requests = [Request(0, 0.0, 40, 5), Request(1, 0.0, len(texts.ids[1]), 5)]
    good, bad = asyncio.run(kit.listen(client("ascii", api), texts, requests))

    assert "ok" == good.ended.status
    assert ("error", 400, 0) == (bad.ended.status, bad.exchange.http_status, bad.tokens)
    assert "context" in (bad.ended.error or "")


@APIS
def test_an_answer_that_is_not_streamed_is_one_event(client, content, kit, api):
    """If this failed, plain JSON answers could not be measured at all."""
    [received] = asyncio.run(
        kit.listen(client("ascii", api, stream=False), content("ascii"), [Request(0, 0.0, 40, 30)])
    )

    assert ("ok", 30, 1) == (received.ended.status, received.tokens, len(received.events))


@APIS
def test_no_token_is_seen_before_the_server_says_it_was_made(client, content, kit, api):
    """If this failed, our stamps would lie before the truth; llama.cpp tells how long prompt and answer took it."""
    requests = [Request(i, 0.0, 40, 100) for i in range(8)]
    received = asyncio.run(kit.listen(client("ascii", api), content("ascii"), requests))

    for one in received:
        prefill_s, decode_s = one.exchange.server_prefill_s, one.exchange.server_decode_s
        assert prefill_s is not None
        assert decode_s is not None
        assert prefill_s < one.events[0].at_s - one.ended.sent_s
        assert (
            prefill_s + decode_s < one.events[-1].at_s - one.ended.sent_s + 1e-3
        )  # it rounds, and counts to its own end


def test_decoding_took_as_long_as_the_server_says(client, kit):
    """If this failed, our stamps would stretch or shrink the time between tokens: two clocks of one thing differ."""
    requests = [Request(i, 0.0, 100, 1000) for i in range(7)]  # long, so that waiting for a core is little of it
    received = asyncio.run(kit.listen(client("ascii", "completions"), make("content", "tokens"), requests))
    ratios = [(one.events[-1].at_s - one.events[0].at_s) / one.exchange.server_decode_s for one in received]

    assert 3 <= sum(0.97 < ratio < 1.03 for ratio in ratios), ratios  # those that a busy machine left alone


def test_stamps_are_in_order_and_of_the_kernel(client, content, kit):
    """If this failed, a gap between tokens could be negative."""
    requests = [Request(i, 0.0, 40, 100) for i in range(4)]
    received = asyncio.run(kit.listen(client("bytes", "chat"), content("bytes"), requests))

    for one in received:
        assert all(a.at_s <= b.at_s for a, b in pairwise(one.events))
        assert one.ended.sent_s <= min(one.events[0].at_s, one.exchange.written_s)


def test_four_streams_overlap(client, content, kit):
    """If this failed, requests that were sent together would have waited for each other in our client."""
    requests = [Request(i, 0.0, 40, 600) for i in range(4)]
    received = asyncio.run(kit.listen(client("ascii", "completions"), content("ascii"), requests, together=True))

    assert [("ok", 600)] * 4 == [(one.ended.status, one.tokens) for one in received]
    # What is ours is when a request leaves; when its first token comes is for the server's slots to decide.
    assert max(one.exchange.written_s for one in received) < min(one.events[-1].at_s for one in received)


def test_a_hang_up_frees_the_slot(client, content, kit, llama_cpp):
    """If this failed, requests that we gave up would go on costing the server, and slow down those that count."""
    address, texts = llama_cpp("ascii"), content("ascii")

    def busy() -> int:
        return sum(slot["is_processing"] for slot in kit.ask(f"{address}/slots"))

    async def until(count: int) -> None:
        async with asyncio.timeout(120):
            while await asyncio.to_thread(busy) != count:  # noqa: ASYNC110  # a slot rings no bell
                await asyncio.sleep(0.01)

    async def run() -> list[str]:
        backend = client("ascii", "completions")
        await backend.open(texts)
        await backend.connect(0, 1.0, 1.0)
        backend.start_clock(time.monotonic())
        requests = [Request(i, 0.0, 40, 1900) for i in range(4)]
        under_way = [backend.fetch(r) for r in requests]
        await until(4)
        for request in requests:
            backend.hang_up(request.id, "cancelled", "enough")
        answers = await asyncio.gather(*under_way)
        await until(0)
        statuses = [list(backend.read(r, a))[-1].status for r, a in zip(requests, answers, strict=True)]
        await backend.close()
        return statuses

    assert ["cancelled"] * 4 == asyncio.run(run())


def test_a_whole_run_keeps_what_the_server_counted(llama_cpp, tmp_path):
    """If this failed, the tables and the metrics of a run against a real server would not agree with it."""
    command = [
        sys.executable, "-m", "harness", "run", "--backend", f"openai:url={llama_cpp('bytes')}/v1,api=completions",
        "--rate", "20", "--requests", "40", "--lengths", "fixed:prompt=50,output=30", "--calibrate", "off",
        "--out", tmp_path / "run",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    run = load(tmp_path / "run")
    texts = {row.name: row for row in run.info.server.compared}

    assert done.returncode in (0, 4), done.stderr  # a busy machine may make it late
    assert ["ok"] * 40 == run.requests["status"].to_pylist()
    assert [30] * 40 == run.requests["output_tokens"].to_pylist()
    assert [50] * 40 == run.requests["prompt_tokens_server"].to_pylist()
    assert {"usage"} == set(run.http["counted_by"].to_pylist())
    assert "llama.cpp" == run.info.server.kind
    assert texts["output tokens"].within


@APIS
@pytest.mark.parametrize("turns", [2, 5, 8])
def test_a_follow_up_finds_what_it_repeats_in_the_cache_of_the_server(llama_cpp, tmp_path, api, turns):
    """If this failed, a chat would be sent as no client sends it, and the server compute what it had computed."""
    backend = f"openai:url={llama_cpp('ascii')}/v1,model=tiny-ascii,api={api},temperature=0"
    code = main([
        "run", "--backend", backend, "--workload", "fixed:prompt=40,output=24", "--arrivals", "closed:users=1,think=0",
        "--sessions", f"fixed:turns={turns},think_s=0", "--requests", str(4 * turns), "--calibrate", "off", "--no-html",
        "--quiet", "--out", str(tmp_path / "run"),
    ])  # fmt: skip
    [run] = imports.open(tmp_path / "run")
    late = [reason for reason in run.info.verdict.reasons if " ms late" in reason]
    assert (4 if late else 0) == code  # tokens are counted here: a machine that sends them late changes none of them
    assert late == run.info.verdict.reasons
    table = run.requests.sort_by("request_id").to_pylist()

    for before, row in pairwise(table):
        if row["turn"]:
            repeated = before["prompt_tokens_server"] + before["output_tokens"]
            # its last token was never computed; where texts meet, they may be cut into other tokens
            assert repeated - 64 <= row["cached_tokens"] < repeated
