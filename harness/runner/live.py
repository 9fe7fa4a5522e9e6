"""Counters of a run under way: the driver moves them, and what shows its progress reads them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.api import RequestRecord, Slo

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.data.run_json import Floor
    from harness.metrics.objective import Seen

RECENT_S = 10.0
LATE_SAMPLES = 2000
RECENT_SAMPLES = 10_000


@dataclass(slots=True)
class Live:
    """Counters of a run under way. The driver updates them; displays only read.

    `at_most`: the total is the most that could be sent, because answers decide how many are due before the end.
    `watch` gets finished requests and returns True when the rest cannot change the result; then `end` stops
    sending, with True the run. `observe` gets them too, as a table. `floor` is the error of the client, where it was
    measured before the run.
    `waits_for` is what a run waits for before it sends. `room` says why no more rows fit on the disk, which ends the
    run at once, and is in `short` then.
    """

    total: int = 0
    at_most: bool = False
    span_s: float | None = None
    slo: Slo = field(default_factory=Slo)
    sent: int = 0
    finished: int = 0
    failed: int = 0
    scored: int = 0
    met: int = 0
    epoch_s: float | None = None
    watch: Callable[[Sequence[RequestRecord]], bool] | None = None
    end: Callable[[bool], object] | None = None
    room: Callable[[], str | None] | None = None
    short: str | None = None
    observe: Callable[[Seen], None] | None = None
    floor: Floor | None = None
    waits_for: str = ""
    _made_s: float = field(default_factory=time.monotonic)
    _stops: int = 0
    _late_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATE_SAMPLES))
    _recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=RECENT_SAMPLES))
    _lines: deque[str] = field(default_factory=deque)

    @property
    def by_request(self) -> bool:
        """Whether there is a bound on single requests, which a request can meet before the run is over."""
        return any(bound.percentile is None for bound in self.slo.bounds)

    def start(self, epoch_s: float) -> None:
        """The clock of the run starts at `epoch_s` of the monotonic clock."""
        self.epoch_s = epoch_s

    def departed(self, late_s: float) -> None:
        self._late_s.append(late_s)

    def say(self, line: str) -> None:
        """Have a line printed as soon as the display can."""
        self._lines.append(line)

    def take_lines(self) -> list[str]:
        """Lines to print since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def seen(self, records: Sequence[RequestRecord]) -> None:
        """Score finished requests. Called away from the sending loop."""
        import numpy as np  # heavy, as are those with pyarrow

        from harness.data.held_back import with_held_back
        from harness.data.records import http_table, to_table
        from harness.metrics.quantiles import quantile

        late_s = quantile(np.array(self._late_s), 0.9) if self._late_s else 0.0
        self.counted(with_held_back(to_table(records), http_table(records), late_s))
        if self.watch is not None and self.watch(records):
            self.stop()
        if self.room is not None and self.short is None and (short := self.room()) is not None:
            self.short = short
            self.stop(at_once=True)

    def counted(self, table: pa.Table) -> None:
        """Score the finished requests of a table: those of which the SLO tells nothing do not count as scored."""
        from harness.data.held_back import HELD_BACK
        from harness.metrics.objective import Seen, score  # heavy: numpy

        seen = Seen(table)
        met = score(table, self.slo, seen).met
        self.met += int(met.sum())
        self.scored += len(table)
        if HELD_BACK in table.column_names:
            self.scored -= int((score(table, self.slo, seen, unknown_meets=True).met & ~met).sum())
        self.failed += len(table) - int(seen.ok.sum())
        if self.observe is not None:
            self.observe(seen)
        # TTFT, and TPOT (NaN for one token), for the display, infinite where unknown; results come from harness.metrics
        ttft_s, tpot_s = (seen.values(name).tolist() for name in ("ttft", "tpot"))
        now_s = time.monotonic()
        self._recent.extend((now_s, ttft, tpot) for ttft, tpot in zip(ttft_s, tpot_s, strict=True) if ttft < math.inf)

    def stop(self, *, at_once: bool = False) -> None:
        """Stop the sending, and with `at_once` the waiting for answers; from any thread."""
        stops = 2 if at_once else 1
        if self.end is not None and self._stops < stops:
            self._stops = stops
            self.end(at_once)

    def waited_s(self) -> float:
        """Seconds until now for which nothing could be sent."""
        return time.monotonic() - self._made_s

    def elapsed_s(self) -> float:
        """Seconds since the clock of the run started; 0 before."""
        return 0.0 if self.epoch_s is None else max(0.0, time.monotonic() - self.epoch_s)

    def recent(self) -> tuple[list[float], list[float]]:
        """TTFT and TPOT in seconds of the last requests that finished in the last 10 s."""
        oldest_s = time.monotonic() - RECENT_S
        while self._recent and self._recent[0][0] < oldest_s:
            self._recent.popleft()
        rows = list(self._recent)
        return [r[1] for r in rows], [r[2] for r in rows if r[2] == r[2]]

    def late_s(self) -> list[float]:
        """Lateness of the last departures in seconds."""
        return list(self._late_s)

    @property
    def attainment(self) -> float | None:
        """Share of the requests so far that met the SLO; None where there is none, or no bound on single requests."""
        return self.met / self.scored if self.scored and self.by_request else None

    @property
    def scheduled_rps(self) -> float | None:
        """Requests per second that the schedule holds; None where answers decide."""
        return self.total / self.span_s if self.span_s and not self.at_most else None

    @property
    def sent_rps(self) -> float | None:
        """Requests sent per second so far, of the time in which they are sent; None before."""
        sending_s = min(self.elapsed_s(), self.span_s or math.inf)
        return self.sent / sending_s if sending_s > 0 else None
