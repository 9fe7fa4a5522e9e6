"""An event loop whose wait for its files can be left to what has things to do meanwhile."""

import asyncio
import selectors
from collections.abc import Callable


class Waiting(selectors.DefaultSelector):
    """Waits by `wait` where that is set: until any of the files of this selector is ready, or for so many seconds."""

    wait: Callable[[int, float | None], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready."""
        if self.wait is None:
            return super().select(timeout)
        self.wait(self.fileno(), timeout)
        return super().select(0)


class WaitingLoop(asyncio.SelectorEventLoop):
    """An event loop with such a selector."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        super().__init__(self.waiting)
