"""The times that the client tells, held against those at which a server wrote: what the whole client is for."""

import sys
import time
from collections.abc import Callable

import pytest

from backends.client.stamps import held_back
from harness.api import Request

CLOCK_S = 0.0005
"""The conversion of the kernel's clock to the monotonic one may be off by this much."""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells when bytes arrived")


@LINUX
async def test_a_client_that_sleeps_does_not_move_the_first_token(scripted: Callable, opened: Callable) -> None:
    """A busy client would blame the server: its own delay would stand in the TTFT."""
    server = scripted(it={"tokens": 1, "usage": "last token", "finish_with_token": True, "last_in_one": True})

    async with opened(server.url("it"), warm=1) as backend:
        epoch_s = time.monotonic()
        backend.start_clock(epoch_s)
        server.arm()
        request = Request(0, 0.0, 5, 1)
        task = backend.fetch(request)  # it leaves in this call
        server.wait(lambda s: s.of("it") and s.of("it")[0].how == "answered")  # the event loop stands still
        time.sleep(0.1)  # noqa: ASYNC251 - the client is to be late
        woke_s = time.monotonic()
        (event, ended), woke_s, epoch_s = list(backend.read(request, await task)), woke_s, epoch_s

    ((before_s, _),) = server.of("it")[0].written
    assert before_s - CLOCK_S <= event.at_s + epoch_s <= woke_s - 0.1 + CLOCK_S
    assert ended.exchange.read_lag_s >= 0.1 - CLOCK_S
    assert 0 == ended.exchange.process_stamps


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
