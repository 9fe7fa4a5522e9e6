"""Moves rows from the sending loop to the run folder, in a thread of its own, at least once a second."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from harness.api import RequestRecord, Step

if TYPE_CHECKING:
    from harness.data.folder import RunFolder


T = TypeVar("T")

FLUSH_RECORDS = 256
FLUSH_S = 1.0


class Recorder:
    """Takes rows without ever waiting; writes them each second or every 256 requests.

    `seen` is called in the writing thread with every batch of requests that was written.
    """

    def __init__(self, rows: RunFolder, seen: Callable[[Sequence[RequestRecord]], None] | None = None) -> None:
        self._rows = rows
        self._seen = seen
        self._records: deque[RequestRecord] = deque()
        self._steps: deque[Step] = deque()
        self._wake = threading.Event()
        self._closing = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="bench-recorder", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Recorder {len(self._records)} requests, {len(self._steps)} steps left, error {self.error!r}>"

    def add(self, record: RequestRecord) -> None:
        self._records.append(record)
        if len(self._records) >= FLUSH_RECORDS:
            self._wake.set()

    def add_steps(self, steps: Iterable[Step]) -> None:
        self._steps.extend(steps)

    def close(self) -> None:
        """Write what is left and end the thread. Raises what went wrong while writing."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        if self.error is not None:
            with contextlib.suppress(OSError):
                self._rows.add_records(_take(self._records))
            raise self.error

    def _write(self) -> None:
        while self.error is None:
            closing = self._closing
            try:
                self._flush()
            except Exception as error:  # noqa: BLE001  # handed to the driver, which stops the run and raises it
                self.error = error
            if closing:
                return
            self._wake.wait(FLUSH_S)
            self._wake.clear()

    def _flush(self) -> None:
        steps = _take(self._steps)
        records = _take(self._records)
        if records:  # first: rows that cannot be written stay in memory there, and are not lost with the steps
            self._rows.add_records(records)
        if steps:
            self._rows.add_steps(steps)
        if steps or records:
            self._rows.flush()
        if records and self._seen is not None:
            self._seen(records)


def _take(queue: deque[T]) -> list[T]:
    """Everything in the queue now; other threads may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]
