"""Departures are woken at their time, and never before."""

import asyncio
import time

import pytest

from harness.runner import timer as alarms


@pytest.fixture(params=["alarm", "_Turning"])
def make(request):
    """Every kind of alarm that this platform can have."""
    return getattr(alarms, request.param)


def ringing(make, *set_s: float) -> tuple[float, float]:
    """(time set last, time of the first ring) of an alarm that was set some times in a row, in seconds ahead."""

    async def main() -> tuple[float, float]:
        rang: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        alarm = make(lambda: rang.done() or rang.set_result(time.monotonic()))
        for ahead_s in set_s:
            at_s = time.monotonic() + ahead_s
            alarm.set(at_s)
        found_s = await asyncio.wait_for(rang, 120)
        alarm.close()
        alarm.close()
        return at_s, found_s

    return asyncio.run(main())


def test_it_never_rings_early(make):
    """A request would leave before it is due."""
    due_s, found_s = ringing(make, 0.02)

    assert due_s <= found_s


def test_a_time_that_has_passed_rings_at_once(make):
    """A request that is late already would wait for ever."""
    due_s, found_s = ringing(make, -5.0)

    assert due_s < found_s


def test_setting_it_again_moves_it(make):
    """A follow-up that is due earlier would wait for the request that was next before."""
    due_s, found_s = ringing(make, 3600.0, 0.01)

    assert due_s <= found_s < due_s + 3000


async def test_a_closed_alarm_is_silent(make):
    """A run that has ended would be woken into its remains."""
    rings: list[int] = []
    alarm = make(lambda: rings.append(1))
    alarm.set(time.monotonic() + 0.001)
    alarm.close()
    await asyncio.sleep(0.01)

    assert [] == rings
