"""Our client against the heavy servers: statuses, counts, finish reasons, and what their streams need."""

import asyncio
from itertools import pairwise

import pytest

from backends.openai import OpenAI
from harness.api import Request

pytestmark = pytest.mark.timeout(900)  # vLLM takes minutes to start on a busy machine

APIS = pytest.mark.parametrize("api", ["chat", "completions"])
KINDS = pytest.mark.parametrize("kind", ["ascii", "bytes"])


@pytest.fixture
def texts(kit, tokenizer):
    """`texts(kind)`: eight texts with their tokens."""

    def made(kind: str):
        texts = [kit.words(20, seed) for seed in range(8)]
        return kit.texts(tuple(texts), tuple(tuple(tokenizer(kind).encode(text).ids) for text in texts))

    return made


@KINDS
@APIS
def test_vllm_is_counted_token_by_token(vllm, texts, kit, kind, api):
    """If this failed, chunks without text would be lost or counted twice on the server most people run."""
    content = texts(kind)
    backend = OpenAI(url=f"{vllm(kind)}/v1", model=f"tiny-{kind}", api=api, temperature=0.0, salt="none")
    requests = [Request(i, 0.0, len(content.ids[i]), 100 + i) for i in range(8)]
    received = asyncio.run(kit.listen(backend, content, requests, together=True))
    template = 3 if api == "chat" else 0

    for request, one in zip(requests, received, strict=True):
        assert ("ok", None, request.output_tokens) == (one.ended.status, one.ended.error, one.tokens)
        assert ("continuous usage", "length") == (one.exchange.counted_by, one.exchange.finish_reason)
        assert request.prompt_tokens + template == one.ended.prompt_tokens_server
        assert all(a.at_s <= b.at_s for a, b in pairwise(one.events))
    assert "vllm" == received[0].describe["capabilities"]["kind"]
    assert 2048 == received[0].describe["capabilities"]["max_model_len"]
    assert [] == received[0].describe["capabilities"]["dropped"]


def test_vllm_stops_when_we_hang_up(vllm, texts, kit):
    """If this failed, requests that we gave up would go on costing the server."""
    address = vllm("ascii")
    content = texts("ascii")

    def running() -> float:
        lines = kit.ask(f"{address}/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))

    async def run() -> list[str]:
        backend = OpenAI(url=f"{address}/v1", model="tiny-ascii", api="completions", temperature=0.0)
        await backend.open(content)
        await backend.connect(0, 1.0, 1.0)
        requests = [Request(i, 0.0, 40, 1900) for i in range(4)]
        under_way = [backend.fetch(r) for r in requests]
        await asyncio.to_thread(kit.until, lambda: running() == 4)
        for request in requests:
            backend.hang_up(request.id, "cancelled", "enough")
        answers = await asyncio.gather(*under_way)
        await asyncio.to_thread(kit.until, lambda: running() == 0)
        await backend.close()
        return [list(backend.read(r, a))[-1].status for r, a in zip(requests, answers, strict=True)]

    assert ["cancelled"] * 4 == asyncio.run(run())


@APIS
def test_transformers_is_ok_without_done(transformers_serve, tiny, texts, kit, api):
    """If this failed, every answer of a server that sends no [DONE] would be called truncated."""
    content = texts("ascii")
    backend = OpenAI(url=f"{transformers_serve}/v1", model=str(tiny("ascii")), api=api, salt="none")
    requests = [Request(i, 0.0, len(content.ids[i]), 24 + i) for i in range(4)]
    received = asyncio.run(kit.listen(backend, content, requests))
    found = received[0].describe["capabilities"]

    assert [("ok", None, r.output_tokens) for r in requests] == [
        (one.ended.status, one.ended.error, one.tokens) for one in received
    ]
    assert ["length"] * 4 == [one.exchange.finish_reason for one in received]
    assert "ignore_eos" in {dropped["field"] for dropped in found["dropped"]}


def test_transformers_says_hello_before_it_computes(transformers_serve, tiny, texts, kit):
    """If this failed, the empty chunk that opens its streams would be taken for the first token."""
    backend = OpenAI(url=f"{transformers_serve}/v1", model=str(tiny("ascii")), salt="none")
    received = asyncio.run(kit.listen(backend, texts("ascii"), [Request(i, 0.0, 40, 24) for i in range(4)]))

    for one in received:
        assert one.exchange.first_event_s is not None
        assert one.exchange.first_event_s < one.events[0].at_s


@APIS
def test_litellm_in_between_changes_no_count(litellm_proxy, texts, kit, tmp_path, api):
    """If this failed, usage after the finish chunk would be lost, or its chunk counted as a token."""
    address, key = litellm_proxy
    (tmp_path / "key").write_text(key)
    content = texts("bytes")
    backend = OpenAI(
        url=f"{address}/v1", model="tiny-bytes", api=api, temperature=0.0, salt="none", key_file=str(tmp_path / "key"),
    )  # fmt: skip
    requests = [Request(i, 0.0, len(content.ids[i]), 100 + i) for i in range(4)]
    received = asyncio.run(kit.listen(backend, content, requests))

    assert [("ok", None, r.output_tokens) for r in requests] == [
        (one.ended.status, one.ended.error, one.tokens) for one in received
    ]
    assert ["length"] * 4 == [one.exchange.finish_reason for one in received]
    assert key not in repr(received)
