"""A cluster of the engine as processes: it serves, copies KV between them, and survives the end of an executor."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from backends.engine import Engine
from harness.api import Ended, Request
from harness.data.schedule import Schedule
from workloads.arrivals import builtin as arrivals
from workloads.content.tokens import Tokens
from workloads.lengths import builtin as lengths
from workloads.mixed import Mixed
from workloads.sessions import builtin as sessions


def run(engine: Engine, use):
    """Open the engine, start its clock, use it, close it; its tokens by request."""
    answered = {}

    async def whole():
        await engine.open(Tokens())
        hear = engine._link.on_turn

        def listen(turn):
            for i, token in zip(turn.tokens, turn.token_ids, strict=True):
                answered.setdefault(i, []).append(token)
            hear(turn)

        engine._link.on_turn = listen
        engine.start_clock(time.monotonic())
        try:
            return await asyncio.wait_for(use(engine), 120)
        finally:
            await engine.close()

    return asyncio.run(whole()), answered


async def answer(engine: Engine, request: Request):
    """All events of one request."""
    return [event async for event in engine.submit(request)]


def serving(requests):
    async def use(engine):
        return await asyncio.gather(*(answer(engine, request) for request in requests))

    return use


def children(pid):
    """Processes that this process has started, in this order (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("handoff", ["pull", "push"])
def test_kv_that_crosses_processes_gives_the_text_of_one_engine(handoff):
    """Between processes blocks are numbers in memory that is shared: one wrong, and answers are corrupt."""
    requests = [Request(i, 0.0, 20 + 9 * i, 1 + 5 * i) for i in range(6)]
    fields = {"policy": "sarathi:budget=64,max_seqs=16", "dtype": "float64", "kv_blocks": 60}
    _, expected = run(Engine(**fields), serving(requests))
    events, answered = run(Engine(prefill="1", decode="1", handoff=handoff, **fields), serving(requests))

    assert expected == answered
    for request, (*tokens, last) in zip(requests, events, strict=True):
        assert request.output_tokens == len(tokens)
        assert ("ok", 1 if request.output_tokens > 1 else 0) == (last.status, last.replica)
        if request.output_tokens > 1:
            stamps = [last.arrived_s, last.prefill_start_s, last.prefill_end_s, last.handoff_start_s,
                      last.handoff_end_s, last.decode_start_s, tokens[1].at_s]  # fmt: skip
            assert stamps == sorted(stamps)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "shape", [pytest.param({"replicas": 2}, marks=pytest.mark.nightly), {"prefill": "1", "decode": "2"}]
)
def test_a_killed_executor_ends_its_requests_and_no_others(shape):
    """One process of many that dies must not take the run with it."""

    async def use(engine):
        streams = [engine.submit(Request(i, 0.0, 40, 300)) for i in range(6)]
        for stream in streams:
            await anext(stream)
            await anext(stream)
        os.kill(children(engine._link.process.pid)[-1], signal.SIGKILL)
        under_way = [[event async for event in stream][-1] for stream in streams]
        return under_way, [(await answer(engine, Request(6 + i, 0.0, 40, 5)))[-1] for i in range(3)]

    (under_way, later), _ = run(Engine(executor="paced:latency=linear:base_s=0.005", **shape), use)
    lost = [ended for ended in under_way if ended.status != "ok"]

    assert 3 == len(lost)
    last = sum(int(count) for count in shape.values()) - 1
    assert {("error", f"replica {last} went down")} == {(ended.status, ended.error) for ended in lost}
    assert all(isinstance(ended, Ended) and ended.status == "ok" for ended in later)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_executors_end_with_the_engine(wait_for):
    """What is left behind would hold memory and a core for ever."""
    left = []

    async def use(engine):
        left.extend(children(engine._link.process.pid))
        engine._link.process.kill()

    run(Engine(replicas=3, executor="paced"), use)

    assert 3 == len(left)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


@pytest.mark.parametrize("router", ["round-robin", "prefix-aware"])
def test_follow_ups_repeat_the_tokens_that_were_sampled_and_the_cache_changes_no_text(router):
    """Blocks that an answer filled would be found by prompts of other tokens, and give their text to them."""
    conversations = sessions.Fixed(turns=4, think_s=0.0, block_tokens=8)
    workload = Mixed(arrivals.Constant(5.0), lengths.Fixed(12, 9), conversations)
    planned = list(Schedule.draw(workload, seed=3, requests=12, live=True))

    async def use(engine):
        for turn in range(4):
            ended = await asyncio.gather(*(answer(engine, request) for request in planned if request.turn == turn))
            found.extend(events[-1].cached_tokens for events in ended)

    fields = {"policy": "sarathi:budget=64,max_seqs=16", "dtype": "float64", "replicas": 2, "router": router}
    found: list[int] = []
    _, expected = run(Engine(**fields), use)
    assert not any(found)
    found.clear()
    _, answered = run(Engine(**fields, prefix_cache="on", kv="paged:4"), use)

    assert expected == answered
    assert sum(found) > (router == "prefix-aware") * sum(r.prompt_tokens - 12 - 4 for r in planned if r.turn)
