"""The times that the client tells, held against those at which a server wrote: what the whole client is for."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from backends.client.stamps import held_back
from harness.api import Request

CLOCK_S = 0.0005
"""The conversion of the kernel's clock to the monotonic one may be off by this much."""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when bytes arrived")


def _between(outcome: Any, index: int) -> tuple[float, float, float]:
    """When the server began to write the event, the stamp, and when it began to write the next one."""
    written = outcome.seen[0].written
    return written[index][0] - CLOCK_S, outcome.stamps_s[index], written[index + 1][0] + CLOCK_S


@pytest.mark.parametrize("quirk", [{}, {"cut_bytes": 60}, {"late_head": True}, {"framing": "length"}, {"pings": 1}])
def test_every_token_has_the_time_of_its_own_write(quirk: dict, scripted: Callable, ask: Callable) -> None:
    """Tokens would be stamped when the client got round to them, or with their neighbours."""
    server = scripted(it={"itl_s": 0.02, "ttft_s": 0.02} | quirk)

    (outcome,) = asyncio.run(ask(server, "it"))

    assert 8 == len(outcome.events)
    if outcome.ended.exchange.shared_events == 0:  # else this machine was so busy that two were read together
        assert all(a <= b <= c for a, b, c in (_between(outcome, i) for i in range(7)))


@LINUX
async def test_a_client_that_sleeps_does_not_move_the_first_token(scripted: Callable, opened: Callable) -> None:
    """A busy client would blame the server: its own delay would stand in the TTFT."""
    server = scripted(it={"tokens": 1, "usage": "last token", "finish_with_token": True, "last_in_one": True})

    async with opened(server.url("it"), warm=1) as backend:
        epoch_s = time.monotonic()
        backend.start_clock(epoch_s)
        server.arm()
        request = Request(0, 0.0, 5, 1)
        task = asyncio.create_task(backend.fetch(request))
        await asyncio.sleep(0)
        server.wait(lambda s: s.of("it") and s.of("it")[0].how == "answered")  # the event loop stands still
        time.sleep(0.1)  # noqa: ASYNC251 - the client is to be late
        woke_s = time.monotonic()
        (event, ended), woke_s, epoch_s = list(backend.read(request, await task)), woke_s, epoch_s

    ((before_s, _),) = server.of("it")[0].written
    assert before_s - CLOCK_S <= event.at_s + epoch_s <= woke_s - 0.1 + CLOCK_S
    assert ended.exchange.read_lag_s >= 0.1 - CLOCK_S
    assert 0 == ended.exchange.process_stamps


def test_events_of_one_read_are_counted(scripted: Callable, ask: Callable) -> None:
    """Gaps of zero would look like a fast server."""
    server = scripted(it={"merge": 4, "ttft_s": 0.06})

    (outcome,) = asyncio.run(ask(server, "it"))

    assert 8 == len(outcome.events)
    assert 6 <= outcome.ended.exchange.shared_events <= outcome.ended.exchange.held_events
    assert 0.06 <= outcome.ended.exchange.held_s


@pytest.mark.parametrize(
    ("event_s", "tokens", "together", "silence_s"),
    [
        ([0.1, 0.11, 0.12, 0.13], 4, 0, 0.0),
        ([0.4, 0.4, 0.4001, 0.4002], 4, 3, 0.4),
        ([0.1, 0.1, 0.2, 0.2, 0.3], 5, 2, 0.2),
        ([0.5], 40, 1, 0.5),
        ([0.5], 3, 0, 0.0),
        ([], 0, 0, 0.0),
    ],
    ids=["one by one", "all at once", "in pairs", "in one event", "short", "empty"],
)
def test_the_silence_before_events_that_come_together(
    event_s: list[float], tokens: int, together: int, silence_s: float
) -> None:
    """Tokens that a proxy collects would have been made in no time."""
    assert (together, pytest.approx(silence_s)) == held_back(0.0, event_s, tokens)


def test_first_event_and_first_answer_are_distinguished_from_the_first_token(scripted: Callable, ask: Callable) -> None:
    """A role chunk would be the first token, or the reasoning before an answer would not count."""
    server = scripted(it={"role": "early", "reasoning": 4, "ttft_s": 0.05, "itl_s": 0.02})

    (outcome,) = asyncio.run(ask(server, "it"))

    exchange, first_s = outcome.ended.exchange, outcome.events[0].at_s
    assert exchange.first_event_s < first_s < exchange.first_content_s
    assert exchange.first_content_s == outcome.events[4].at_s


def test_the_times_of_a_request_are_in_order(scripted: Callable, ask: Callable) -> None:
    """A TTFT could be negative, or hold the time in which the client itself was waiting."""
    server = scripted(it={"itl_s": 0.01})

    outcomes = asyncio.run(ask(server, "it", requests=3))

    for outcome in outcomes:
        ended, exchange = outcome.ended, outcome.ended.exchange
        assert ended.sent_s <= exchange.written_s <= ended.at_s
        assert ended.sent_s <= outcome.events[0].at_s <= outcome.events[-1].at_s <= ended.at_s
    assert outcomes[0].ended.exchange.connect_s > 0
    assert outcomes[1].ended.exchange.connect_s is None
