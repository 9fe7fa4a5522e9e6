"""The same API in front of every backend: lengths as requested, text that can be counted again, hang-ups that free."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Play

BACKENDS = ("null:ttft=5ms,itl=1ms", "sim:model=opt-13b,hardware=a100-80g", "engine")
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
