"""The engine as a process: it serves, refuses, lets go of cancelled requests, and says so when it breaks."""

import asyncio
import time

import numpy as np
import pytest

from backends.engine import Engine
from harness.api import Ended, Request, TokenEvent
from harness.errors import BackendError, UsageError
from workloads.content.tokens import Tokens


def run(engine: Engine, use):
    """Open the engine, start its clock, use it, close it."""

    async def whole():
        await engine.open(Tokens())
        engine.start_clock(time.monotonic())
        try:
            return await asyncio.wait_for(use(engine), 120)
        finally:
            await engine.close()
            await engine.close()  # twice is once

    return asyncio.run(whole())


async def answer(engine: Engine, request: Request) -> list[TokenEvent | Ended]:
    """All events of one request."""
    return [event async for event in engine.submit(request)]


def test_every_request_gets_its_tokens_and_one_end():
    """A lost or doubled event would be a wrong count of tokens in every report."""
    requests = [Request(i, 0.0, 5 + i, 1 + 3 * i) for i in range(8)]

    async def use(engine):
        return await asyncio.gather(*(answer(engine, request) for request in requests))

    for request, events in zip(requests, run(Engine(), use), strict=True):
        *tokens, last = events
        stamps = [event.at_s for event in tokens]

        assert request.output_tokens == sum(event.tokens for event in tokens)
        assert isinstance(last, Ended)
        assert "ok" == last.status
        assert stamps == sorted(set(stamps))
        assert last.arrived_s <= last.prefill_start_s < last.prefill_end_s == stamps[0]


def test_a_request_that_never_fits_is_rejected_with_its_reason():
    """Without the reason a user would look for the fault in the server."""

    async def use(engine):
        return await answer(engine, Request(0, 0.0, 300, 10)), await answer(engine, Request(1, 0.0, 15_000, 5000))

    (small,), (large,) = run(Engine(kv_blocks=10), use)

    assert ("rejected", "needs KV memory for 309 tokens, the replica has 160") == (small.status, small.error)
    assert "exceed the model's" in large.error


def test_a_cancelled_request_makes_room_for_others():
    """People who hang up must not keep the memory."""

    async def use(engine):
        first = engine.submit(Request(0, 0.0, 100, 60))
        await anext(first)
        await first.aclose()
        return await answer(engine, Request(1, 0.0, 100, 60))  # needs all the memory there is

    events = run(Engine(kv_blocks=10), use)

    assert "ok" == events[-1].status
    assert 61 == len(events)


def test_a_killed_engine_fails_the_requests_under_way():
    """A dead server must not look like a slow one."""

    async def use(engine):
        stream = engine.submit(Request(0, 0.0, 50, 5000))
        await anext(stream)
        engine._link.process.kill()
        with pytest.raises(BackendError, match="The engine failed in the middle of the run: its process ended"):
            async for _ in stream:
                pass

    run(Engine(), use)


class Broken:
    """Prompts of the wrong length."""

    def token_ids(self, request: Request, _: int) -> np.ndarray:
        return np.zeros(request.prompt_tokens + 1, np.int64)


def test_an_engine_that_breaks_says_where():
    """'It ended' does not help."""

    async def whole():
        engine = Engine()
        await engine.open(Broken())
        engine.start_clock(time.monotonic())
        try:
            await answer(engine, Request(0, 0.0, 3, 5))
        finally:
            await engine.close()

    with pytest.raises(BackendError, match=r"The engine failed .*ValueError in generation.py, line \d+"):
        asyncio.run(whole())


def test_a_missing_model_folder_is_one_sentence():
    """The engine's own process meets the mistake; the user must read it all the same."""

    async def use(engine):
        raise AssertionError("it must not open")

    with pytest.raises(UsageError, match="nowhere"):
        run(Engine(model="nowhere"), use)


def test_a_model_of_a_folder_answers(kit, tmp_path):
    """`engine:model=DIR` must read the folder in the engine's own process."""

    async def use(engine):
        return len(await answer(engine, Request(0, 0.0, 20, 12)))

    assert 13 == run(Engine(model=str(kit.write_model(tmp_path / "model", "gqa"))), use)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kv_blocks": 0}, "kv_blocks must be at least 1"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"nice": 40}, "nice must be between 0 and 19"),
    ],
)
def test_wrong_fields_are_refused_before_anything_starts(fields, words):
    """A wrong number must not cost a start of the engine."""
    with pytest.raises(ValueError, match=words):
        Engine(**fields)
