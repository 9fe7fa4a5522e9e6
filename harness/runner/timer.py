"""Wakes an event loop at a time of the monotonic clock: within some 50 us by Linux's timerfd, elsewhere by turning it.

asyncio's own timers are no use for departures: its selector rounds each up to the next millisecond.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

FINE_S = 0.0012
"""Without a timerfd the last stretch is spent turning the loop: epoll wakes up to 1 ms late."""

_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = os.O_NONBLOCK, 0o2000000, 1


class Alarm(Protocol):
    """One time at which something is called in the loop; setting it again moves it."""

    def set(self, at_s: float) -> None:
        """Ring at `at_s` of `time.monotonic()`, or at once if that has passed."""
        ...

    def close(self) -> None:
        """Never ring again. Safe to call twice."""
        ...


def alarm(ring: Callable[[], None]) -> Alarm:
    """The best alarm of this platform, for the running loop."""
    if sys.platform == "linux":
        try:
            return _Timerfd(ring)
        except (OSError, AttributeError):  # an old C library, or a sandbox that forbids the call
            pass
    return _Turning(ring)


class _Times(ctypes.Structure):
    """`struct itimerspec`: interval and first expiry, seconds and nanoseconds each."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class _Timerfd:
    """A timer that is a file: it wakes epoll itself, at its own resolution. Source: timerfd_create(2)."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime, self._times = libc.timerfd_settime, _Times()
        self._times_at = ctypes.byref(self._times)
        self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        # once for each departure: made anew, the structure would cost as much as the system call
        self._times.at_s, self._times.at_ns = divmod(max(1, int(at_s * 1e9)), 1_000_000_000)  # 0 would disarm
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._times_at, None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew between the wake-up and here
            return
        self._ring()


class _Turning:
    """A timer of the loop that rings early and turns the loop until the time has come."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def set(self, at_s: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, at_s - time.monotonic() - FINE_S), self._turn, at_s)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _turn(self, at_s: float) -> None:
        if time.monotonic() < at_s:
            self._handle = self._loop.call_soon(self._turn, at_s)
        else:
            self._handle = None
            self._ring()
