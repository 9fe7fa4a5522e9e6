"""What both clocks have in common when a run is driven, and the driver of the virtual one."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from harness.api import ActionLog, End, FollowUps, Outcome, Request, RequestRecord, Simulator, TableSimulator
from harness.data.dependencies import ended_s
from harness.errors import BackendError

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.data.folder import RunFolder
    from harness.runner.live import Live

SWITCH_S = 0.0005
"""How long another thread may hold the interpreter that the sending loop wants (default of Python: 5 ms)."""


@contextmanager
def quiet_process() -> Iterator[None]:
    """No garbage collection and short turns of other threads, so that neither makes a request late."""
    turn_s = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    try:
        with no_collection():
            yield
    finally:
        sys.setswitchinterval(turn_s)
        gc.unfreeze()


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection. A simulated run needs no more: first collecting all would take longer than a short run."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def drive_virtual(
    simulator: Simulator,
    schedule: Iterable[Request],
    follow_ups: FollowUps | None,
    rows: RunFolder,
    live: Live,
    stop: Stop,
    dropped: list[RequestRecord] | None = None,
) -> Outcome:
    """Run a simulator to its end, or until `stop` is set, writing rows in batches.

    `follow_ups` puts the records of requests that cannot be sent into `dropped`. A simulator that fails gives an
    outcome with its error; the rows before that stay.
    """
    counted = _Counted(schedule)
    dropped = [] if dropped is None else dropped
    released = counted.released(follow_ups)
    error: str | None = None
    ended: End = "finished"
    try:
        for table in tables(simulator, counted, released):
            _write(rows, live, table, dropped)
            _write_steps(rows, simulator)
            if stop.requested:
                ended = "stopped" if stop.at_once else "interrupted"
                break
    except KeyboardInterrupt:
        ended = "stopped"
    except BackendError as failure:
        ended, error = "failed", str(failure)
    _write(rows, live, None, dropped)
    _write_steps(rows, simulator)
    rows.flush()
    return Outcome(ended, counted.count, counted.remaining(), max(0, counted.count - live.finished), error)


class Capped:
    """A simulator that has no more than `most` requests in flight: one more arrives when another has ended.

    They leave in the order of their times, as under the wall clock; records have the times at which they were due, and
    how long they waited. An end may bring about one request at most: a place that it frees is given away at once, to
    the first that will be due.
    """

    def __init__(self, simulator: Simulator, most: int) -> None:
        self._simulator = simulator
        self._most = most

    def __getattr__(self, name: str) -> Any:
        """What else the simulator can do."""
        if name.startswith("_") or name == "tables":  # those are of requests that were due when they arrived
            raise AttributeError(name)
        return getattr(self._simulator, name)

    def simulate(self, requests: Iterable[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        """See `Simulator`."""
        planned, later = iter(requests), list[tuple[float, int, Request]]()
        due_s: dict[int, float] = {}  # of those that were held
        head, places = next(planned, None), self._most

        def leaving(now_s: float) -> Iterator[Request]:
            nonlocal head, places
            while places and (head is not None or later):
                if head is None or (later and later[0][:2] < (head.scheduled_s, head.id)):
                    request = heappop(later)[2]
                else:
                    request, head = head, next(planned, None)
                places -= 1
                if request.scheduled_s < now_s:
                    due_s[request.id] = request.scheduled_s
                    request = replace(request, scheduled_s=now_s)
                yield request

        def freed(record: RequestRecord) -> list[Request]:
            nonlocal places
            places += 1
            for request in () if follow_ups is None else follow_ups(record):
                heappush(later, (request.scheduled_s, request.id, request))
            return list(leaving(ended_s(record)))

        for record in self._simulator.simulate(leaving(-math.inf), freed):
            if (scheduled_s := due_s.pop(record.request_id, None)) is not None:
                record.cap_wait_s, record.scheduled_s = record.scheduled_s - scheduled_s, scheduled_s
            yield record


@dataclass(slots=True)
class Stop:
    """Flags that a signal handler sets and a loop reads; with `at_once` the run does not wait for answers."""

    requested: bool = False
    at_once: bool = False


class _Counted:
    """An iterable that counts what was taken from it, and the follow-ups that went the same way."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._rest = iter(requests)
        self.count = 0

    def __iter__(self) -> Iterator[Request]:
        for request in self._rest:
            self.count += 1
            yield request

    def released(self, follow_ups: FollowUps | None) -> FollowUps | None:
        """`follow_ups`, counted."""
        if follow_ups is None:
            return None

        def count(record: RequestRecord) -> list[Request]:
            due = list(follow_ups(record))
            self.count += len(due)
            return due

        return count

    def remaining(self) -> int:
        """How many were never taken."""
        return sum(1 for _ in self._rest)


def _write_steps(rows: RunFolder, simulator: Simulator) -> None:
    rows.add_steps(simulator.steps_table())
    if isinstance(simulator, ActionLog) and (actions := simulator.actions()):
        rows.add_actions(actions)


def tables(simulator: Simulator, requests: Iterable[Request], follow_ups: FollowUps | None) -> Iterator[pa.Table]:
    """What a simulator gives, as tables."""
    from harness.data.records import TABLE_ROWS, in_tables, to_table  # heavy: pyarrow

    if isinstance(simulator, TableSimulator):
        return simulator.tables(requests, follow_ups)
    return in_tables(simulator.simulate(requests, follow_ups), TABLE_ROWS, to_table)


def _write(rows: RunFolder, live: Live, table: pa.Table | None, dropped: list[RequestRecord]) -> None:
    from harness.data.records import to_table  # heavy: pyarrow

    written = [] if table is None else [table]
    live.finished += sum(map(len, written))
    live.sent = live.finished
    if dropped:
        written.append(to_table(dropped))
        dropped.clear()
    for part in written:
        rows.add_requests(part)
        live.counted(part)
