"""The engine as a process: it serves, refuses, lets go of cancelled requests, and says so when it breaks."""

import asyncio
import time
from contextlib import asynccontextmanager

import numpy as np
import pytest

from backends.engine import Engine
from harness.api import Ended, Request, TokenEvent
from harness.errors import BackendError, UsageError
from workloads.content.tokens import Tokens


@asynccontextmanager
async def opened(content: object = None, **fields):
    """An engine with a running clock."""
    engine = Engine(**fields)
    try:
        await engine.open(content or Tokens())
        engine.start_clock(time.monotonic())
        async with asyncio.timeout(120):
            yield engine
    finally:
        await engine.close()
        await engine.close()  # twice is once


async def answer(engine: Engine, request: Request) -> list[TokenEvent | Ended]:
    """All events of one request."""
    return [event async for event in engine.submit(request)]


async def test_every_request_gets_its_tokens_and_one_end():
    """A lost or doubled event would be a wrong count of tokens in every report."""
    requests = [Request(i, 0.0, 5 + i, 1 + 3 * i) for i in range(8)]
    async with opened() as engine:
        answers = await asyncio.gather(*(answer(engine, request) for request in requests))

    for request, events in zip(requests, answers, strict=True):
        *tokens, last = events
        stamps = [event.at_s for event in tokens]

        assert request.output_tokens == sum(event.tokens for event in tokens)
        assert isinstance(last, Ended)
        assert "ok" == last.status
        assert stamps == sorted(set(stamps))
        assert last.arrived_s <= last.prefill_start_s < last.prefill_end_s == stamps[0]


async def test_a_request_that_never_fits_is_rejected_with_its_reason():
    """Without the reason a user would look for the fault in the server."""
    async with opened(kv_blocks=10) as engine:
        (small,) = await answer(engine, Request(0, 0.0, 300, 10))
        (large,) = await answer(engine, Request(1, 0.0, 15_000, 5000))

    assert ("rejected", "needs KV memory for 309 tokens, the replica has 160") == (small.status, small.error)
    assert "exceed the model's" in large.error


async def test_a_cancelled_request_makes_room_for_others():
    """People who hang up must not keep the memory."""
    async with opened(kv_blocks=10) as engine:
        first = engine.submit(Request(0, 0.0, 100, 60))
        await anext(first)
        await first.aclose()
        events = await answer(engine, Request(1, 0.0, 100, 60))  # needs all the memory there is

    assert "ok" == events[-1].status
    assert 61 == len(events)


async def test_a_killed_engine_fails_the_requests_under_way():
    """A dead server must not look like a slow one."""
    async with opened() as engine:
        stream = engine.submit(Request(0, 0.0, 50, 5000))
        await anext(stream)
        engine._link.process.kill()
        with pytest.raises(BackendError, match="The engine failed in the middle of the run: its process ended"):
            async for _ in stream:
                pass


class Broken:
    """Prompts of the wrong length."""

    def token_ids(self, request: Request, _: int) -> np.ndarray:
        return np.zeros(request.prompt_tokens + 1, np.int64)


async def test_an_engine_that_breaks_says_where():
    """'It ended' does not help."""
    with pytest.raises(BackendError, match=r"The engine failed .*ValueError in generation.py, line \d+"):
        async with opened(Broken()) as engine:
            await answer(engine, Request(0, 0.0, 3, 5))


async def test_a_missing_model_folder_is_one_sentence():
    """The engine's own process meets the mistake; the user must read it all the same."""
    with pytest.raises(UsageError, match="nowhere"):
        async with opened(model="nowhere"):
            raise AssertionError("it must not open")


async def test_a_model_of_a_folder_answers(kit, tmp_path):
    """`engine:model=DIR` must read the folder in the engine's own process."""
    async with opened(model=str(kit.write_model(tmp_path / "model", "gqa"))) as engine:
        assert 13 == len(await answer(engine, Request(0, 0.0, 20, 12)))


def test_a_wrong_engine_is_refused_before_anything_starts(refusals):
    """A wrong number must not cost a start of the engine, nor an option be ignored in silence."""
    refusals("wrong-engine.txt", "--requests", "2")
