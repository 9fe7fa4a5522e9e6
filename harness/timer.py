"""An event loop that wakes at the time of a timer, and not up to a millisecond later, as asyncio's does on Linux."""

import asyncio
import select
import selectors
from collections.abc import Callable

LONGEST_S = 0.02
"""The longest wait for a time: Linux ends one late by up to a thousandth of it, and then by no more than 50 us."""
FD_SETSIZE = 1024
"""select(2) takes only files below this number."""


class Waiting(selectors.DefaultSelector):
    """Waits by `wait` where that is set, for so many seconds; it gives whether files of this selector may be ready."""

    wait: Callable[[int, float | None], bool] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready."""
        if timeout is not None:
            timeout = min(timeout, LONGEST_S)
        if self.wait is not None:
            return super().select(0) if self.wait(self.fileno(), timeout) else []
        if timeout and hasattr(select, "epoll") and self.fileno() < FD_SETSIZE:
            select.select([self.fileno()], (), (), timeout)  # Note: epoll rounds up to milliseconds, select does not
            timeout = 0
        return super().select(timeout)


class WaitingLoop(asyncio.SelectorEventLoop):
    """An event loop with such a selector."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        super().__init__(self.waiting)


class Alarm:
    """One time at which something is called in the running loop, which should be a `WaitingLoop`."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Ring at `at_s` of `time.monotonic()`, or at once if that has passed, and at no time that was set before."""
        self.close()
        self._handle = self._loop.call_at(at_s, self._ring)

    def close(self) -> None:
        """Never ring again. Safe to call twice."""
        if self._handle is not None:
            self._handle.cancel()
