"""An alarm of the event loop that rings at an absolute time, some ten microseconds late instead of up to a millisecond.

asyncio rounds its timers up to the next millisecond (CPython `selectors.EpollSelector`); the kernel's timerfd does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1  # linux/time.h; `time.monotonic` reads the same clock
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)  # TFD_NONBLOCK | TFD_CLOEXEC have these values


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_sec", ctypes.c_long),
        ("interval_nsec", ctypes.c_long),
        ("sec", ctypes.c_long),
        ("nsec", ctypes.c_long),
    )


class Alarm:
    """Calls `ring` once for each `set`, at that time of `time.monotonic` or as soon after it as the loop is free."""

    __slots__ = ("_fd", "_libc", "_loop", "_ring", "_soon", "_spec")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._spec = _Itimerspec()
        self._soon: asyncio.Handle | None = None
        self._libc: ctypes.CDLL | None
        self._fd: int | None
        self._libc, self._fd = _timerfd()
        if self._fd is not None:
            loop.add_reader(self._fd, self._expired)

    def set(self, at_s: float) -> None:
        """Ring at `at_s` (seconds of `time.monotonic`), not at the time set before. A past time rings at once."""
        self.clear()
        if at_s <= time.monotonic():
            self._soon = self._loop.call_soon(self._now)
        elif self._fd is None:
            self._soon = self._loop.call_at(self._loop.time() + at_s - time.monotonic(), self._now)
        else:
            self._program(at_s)

    def clear(self) -> None:
        """Do not ring."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._fd is not None:
            self._program(0.0)

    def close(self) -> None:
        """Never ring again. Safe to call twice."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _program(self, at_s: float) -> None:
        assert self._libc is not None
        seconds = int(at_s)
        self._spec.sec = seconds
        self._spec.nsec = int((at_s - seconds) * 1e9)
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(self._spec), None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def _expired(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):  # set anew after the kernel had told that it was ready
            os.read(self._fd, 8)
            self._ring()

    def _now(self) -> None:
        self._soon = None
        self._ring()


def _timerfd() -> tuple[ctypes.CDLL, int] | tuple[None, None]:
    if sys.platform != "linux":
        return None, None
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
    return (libc, fd) if fd >= 0 else (None, None)
