"""Departures are woken at their time, and never before."""

import asyncio
import time

from harness.timer import Alarm


async def ringing(*set_s: float) -> tuple[float, float]:
    """(time set last, time of the first ring) of an alarm that was set some times in a row, in seconds ahead."""
    rang: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    alarm = Alarm(lambda: rang.done() or rang.set_result(time.monotonic()))
    for ahead_s in set_s:
        at_s = time.monotonic() + ahead_s
        alarm.set(at_s)
    found_s = await asyncio.wait_for(rang, 120)
    alarm.close()
    alarm.close()
    return at_s, found_s


async def test_it_never_rings_early():
    """A request would leave before it is due."""
    due_s, found_s = await ringing(0.02)

    assert due_s <= found_s


async def test_a_time_that_has_passed_rings_at_once():
    """A request that is late already would wait for ever."""
    due_s, found_s = await ringing(-5.0)

    assert due_s < found_s


async def test_setting_it_again_moves_it():
    """A follow-up that is due earlier would wait for the request that was next before."""
    due_s, found_s = await ringing(3600.0, 0.01)

    assert due_s <= found_s < due_s + 3000


async def test_waits_are_not_rounded_to_milliseconds():
    """Each departure would be late by half a millisecond, which counts as TTFT."""
    late_s = [found_s - due_s for due_s, found_s in [await ringing(0.0013) for _ in range(20)]]

    assert min(late_s) < 0.0005


async def test_a_closed_alarm_is_silent():
    """A run that has ended would be woken into its remains."""
    rings: list[int] = []
    alarm = Alarm(lambda: rings.append(1))
    alarm.set(time.monotonic() + 0.001)
    alarm.close()
    await asyncio.sleep(0.01)

    assert [] == rings
