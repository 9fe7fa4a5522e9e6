"""What an OpenAI client finds at each route."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Play

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = {"model": "null", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
WORDS = " be bi bo"


async def test_a_chat_that_does_not_stream_is_one_object(play: Play) -> None:
    """The plainest client would get no answer."""
    async with play() as stage:
        status, headers, text = await stage.post(CHAT, HELLO)
        answer = json.loads(text)

        assert 200 == status
        assert headers["Content-Type"].startswith("application/json")
        assert "chat.completion" == answer["object"]
        assert [{"index": 0, "message": {"role": "assistant", "content": WORDS}, "finish_reason": "length",
                 "logprobs": None}] == answer["choices"]  # fmt: skip
        assert 3 == answer["usage"]["completion_tokens"]
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 3


async def test_a_completion_that_does_not_stream_is_one_object(play: Play) -> None:
    """The older API would be another one than OpenAI's."""
    async with play() as stage:
        _, _, text = await stage.post(TEXT, {"prompt": "hello", "max_tokens": 3})
        answer = json.loads(text)

        assert "text_completion" == answer["object"]
        assert [{"index": 0, "text": WORDS, "finish_reason": "length", "logprobs": None}] == answer["choices"]
        assert {"cached_tokens": 0} == answer["usage"]["prompt_tokens_details"]


async def test_chunks_of_a_chat_come_in_the_order_of_the_api(play: Play) -> None:
    """Clients that count on role, text, finish, usage, [DONE] would break."""
    async with play() as stage:
        chunks: list[Any] = await stage.stream(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
        texts = [chunk["choices"][0]["delta"] for chunk in chunks[:-2]]

        assert [{"role": "assistant", "content": ""}, *[{"content": f" {w}"} for w in WORDS.split()], {}] == texts
        assert [None] * 4 + ["length"] == [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-2]]
        assert [] == chunks[-2]["choices"]
        assert 3 == chunks[-2]["usage"]["completion_tokens"]
        assert "[DONE]" == chunks[-1]
        assert 1 == len({(c["id"], c["object"], c["created"], c["model"]) for c in chunks[:-1]})
        assert not any("usage" in chunk for chunk in chunks[:-2])


async def test_chunks_of_a_completion_have_no_role(play: Play) -> None:
    """A completion's first event would be no token."""
    async with play() as stage:
        chunks: list[Any] = await stage.stream(TEXT, {"prompt": [1, 2], "max_tokens": 3})

        assert [*[f" {w}" for w in WORDS.split()], ""] == [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
        assert {"text_completion"} == {chunk["object"] for chunk in chunks[:-1]}
        assert "[DONE]" == chunks[-1]


async def test_usage_on_every_chunk_counts_the_tokens_so_far(play: Play) -> None:
    """A client that counts by continuous usage would take the role for a token."""
    async with play() as stage:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks: list[Any] = await stage.stream(CHAT, {**HELLO, "stream_options": options})

        assert [0, 1, 2, 3, 3, 3] == [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
        assert all(c["usage"]["total_tokens"] == c["usage"]["prompt_tokens"] + c["usage"]["completion_tokens"]
                   for c in chunks[:-1])  # fmt: skip


async def test_headers_of_a_stream_forbid_every_buffer(play: Play) -> None:
    """A proxy would hold tokens back, and a client could not find its request again."""
    async with play() as stage:
        status, headers, _ = await stage.post(CHAT, {**HELLO, "stream": True}, **{"x-request-id": "r-17"})

        assert 200 == status
        assert "text/event-stream; charset=utf-8" == headers["Content-Type"]
        assert "no-cache" == headers["Cache-Control"]
        assert "no" == headers["X-Accel-Buffering"]
        assert "r-17" == headers["X-Request-Id"]
        assert headers["Server"].startswith("bench/")


async def test_a_request_without_an_id_gets_one(play: Play) -> None:
    """Two answers could not be distinguished."""
    async with play() as stage:
        ids = {(await stage.post(TEXT, {"prompt": "a", "max_tokens": 1}))[1]["X-Request-Id"] for _ in range(3)}

        assert 3 == len(ids)


async def test_a_connection_serves_many_requests(play: Play) -> None:
    """Each request would pay for a new connection, or the second one would read the rest of the first."""
    async with play() as stage:
        for _ in range(3):
            chunks: list[Any] = await stage.stream(CHAT, HELLO)

            assert "[DONE]" == chunks[-1]
        assert 1 == len(stage.http.connector._conns)  # type: ignore[union-attr]


async def test_an_http_1_0_client_gets_the_stream_without_chunks(play: Play) -> None:
    """An old client would read chunk lengths as text."""
    async with play() as stage:
        data, _ = await stage.raw(CHAT, {**HELLO, "stream": True}, version="1.0")
        _, body = data.split(b"\r\n\r\n", 1)

        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


async def test_a_stream_without_chunks_ends_with_its_connection(play: Play, wire_request: Callable[..., bytes]) -> None:
    """An old client that would keep the connection would wait for more until the server closes it, for 75 s."""
    async with play() as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.running.port)
        request = wire_request(CHAT, {**HELLO, "stream": True}, "1.0")
        writer.write(request.replace(b"Connection: close", b"Connection: keep-alive"))
        data = await asyncio.wait_for(reader.read(), 120)
        writer.close()

        assert data.endswith(b"data: [DONE]\n\n")


async def test_models_tell_what_vllms_benchmark_reads(play: Play) -> None:
    """`vllm bench` takes `root` for its tokenizer, our own client `max_model_len` for its prompts."""
    async with play(name="served") as stage:
        _, _, text = await stage.get("/v1/models")
        (model,) = json.loads(text)["data"]

        assert {"id", "object", "created", "owned_by", "root", "max_model_len"} <= set(model)
        assert ("served", "null") == (model["id"], model["root"])
        assert json.loads((await stage.get("/v1/models/served"))[2])["id"] == "served"
        assert 404 == (await stage.get("/v1/models/other"))[0]


async def test_both_names_of_a_model_are_known(play: Play) -> None:
    """A client that uses the folder's name would be refused with --name."""
    async with play(name="served") as stage:
        for name, status in (("served", 200), ("null", 200), ("other", 404)):
            assert status == (await stage.post(TEXT, {"model": name, "prompt": "a", "max_tokens": 1}))[0]


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models"])
async def test_head_answers_wherever_get_does(play: Play, path: str) -> None:
    """AIPerf asks HEAD /metrics before it starts."""
    async with play() as stage, stage.http.head(stage.root + path) as answer:
        assert 200 == answer.status
        assert b"" == await answer.read()


async def test_health_is_empty(play: Play) -> None:
    """GuideLLM asks for it twice and gives up without."""
    async with play() as stage:
        assert (200, "") == (await stage.get("/health"))[::2]


async def test_tokens_and_text_are_turned_into_each_other(play: Play) -> None:
    """A client that counts tokens at the server would count others than the server."""
    async with play() as stage:
        tokens = json.loads((await stage.post("/tokenize", {"model": "null", "prompt": " be bi!"}))[2])

        assert 3 == tokens["count"] == len(tokens["tokens"])
        assert 1 << 20 == tokens["max_model_len"]
        chat = json.loads((await stage.post("/tokenize", {"messages": HELLO["messages"]}))[2])
        usage = json.loads((await stage.post(CHAT, HELLO))[2])["usage"]
        assert chat["count"] == usage["prompt_tokens"]


async def test_other_routes_and_methods_get_openais_errors(play: Play) -> None:
    """A client would show a page of HTML instead of a sentence."""
    async with play() as stage:
        status, _, text = await stage.get("/server_info")
        assert 404 == status
        assert {"message", "type", "param", "code"} == set(json.loads(text)["error"])
        status, headers, text = await stage.get(CHAT)
        assert (405, "POST") == (status, headers["Allow"])
        assert json.loads(text)["error"]["message"].startswith(f"GET {CHAT}")


async def test_token_ids_come_with_their_text_where_they_are_wanted(play: Play) -> None:
    """A follow-up could not repeat an answer as it was made."""
    async with play() as stage:
        fields = {"prompt": [1, 2], "max_tokens": 3, "return_token_ids": True}
        chunks: list[Any] = await stage.stream(TEXT, fields)
        _, _, whole = await stage.post(TEXT, fields)
        plain: list[Any] = await stage.stream(TEXT, {"prompt": [1, 2], "max_tokens": 3})

        ids = [i for chunk in chunks[:-1] for i in chunk["choices"][0].get("token_ids", ())]
        assert 3 == len(ids)
        assert ids == json.loads(whole)["choices"][0]["token_ids"]
        assert not any("token_ids" in chunk["choices"][0] for chunk in plain[:-1])
