"""What a running benchmark shows: counters that the driver moves, drawn at most 4 times a second."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from harness.api import RequestRecord, Slo

DRAW_HZ = 4
PLAIN_S = 10.0
RECENT_S = 10.0
LATE_SAMPLES = 2000


@dataclass(slots=True)
class Live:
    """Counters of a run under way. The driver moves them; whoever draws only reads.

    `at_most`: the total is the most that could be sent, because answers decide how many are due before the end.
    `watch` is shown what finishes, and says when the rest would change nothing; `end` stops the sending then.
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
    end: Callable[[], object] | None = None
    _late_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATE_SAMPLES))
    _recent: deque[tuple[float, float, float]] = field(default_factory=deque)
    _said: deque[str] = field(default_factory=deque)

    @property
    def by_request(self) -> bool:
        """Whether there is a bound on single requests, which a request can meet before the run is over."""
        return any(bound.percentile is None for bound in self.slo.bounds)

    def start(self, epoch_s: float) -> None:
        """The clock of the run starts at `epoch_s` of the monotonic clock."""
        self.epoch_s = epoch_s

    def departed(self, late_s: float) -> None:
        """A request left `late_s` after its time."""
        self._late_s.append(late_s)

    def say(self, line: str) -> None:
        """Have a line printed as soon as the display can."""
        self._said.append(line)

    def said(self) -> list[str]:
        """Lines to print since the last call."""
        return [self._said.popleft() for _ in range(len(self._said))]

    def seen(self, records: Sequence[RequestRecord]) -> None:
        """Score finished requests. Called away from the sending loop."""
        from harness.data.records import to_table  # heavy: pyarrow
        from harness.metrics.slo import score

        self.met += int(score(to_table(records), self.slo).met.sum())
        self.scored += len(records)
        self.failed += sum(r.status != "ok" for r in records)
        now_s = time.monotonic()
        for r in records:  # TTFT and TPOT (NaN for one token) for the display; results come from harness.metrics
            if len(r.token_s):
                first_s, more = r.token_s[0], r.output_tokens - 1
                tpot_s = (r.token_s[-1] - first_s) / more if more > 0 else float("nan")
                self._recent.append((now_s, first_s - r.scheduled_s, tpot_s))
        if self.watch is not None and self.end is not None and self.watch(records):
            end, self.end = self.end, None
            end()

    def elapsed_s(self) -> float:
        """Seconds since the clock of the run started; 0 before."""
        return 0.0 if self.epoch_s is None else max(0.0, time.monotonic() - self.epoch_s)

    def recent(self) -> tuple[list[float], list[float]]:
        """TTFT and TPOT in seconds of what finished in the last 10 s."""
        oldest_s = time.monotonic() - RECENT_S
        while self._recent and self._recent[0][0] < oldest_s:
            self._recent.popleft()
        rows = list(self._recent)
        return [r[1] for r in rows], [r[2] for r in rows if r[2] == r[2]]

    def late_s(self) -> list[float]:
        """Lateness of the last departures in seconds."""
        return list(self._late_s)


def line(live: Live) -> str:
    """The state of a run in one plain line."""
    parts = [f"{live.elapsed_s():.0f} s{_left(live)}", f"sent {live.sent}{_of(live, '/')}"]
    parts += [f"in flight {live.sent - live.finished}", f"finished {live.finished}", f"failed {live.failed}"]
    if live.scored and live.by_request:
        parts.append(f"within the SLO {live.met / live.scored:.1%} (goal {100 * live.slo.goal:g}%)")
    told = dict(cells(live))
    more = ("rate", "last 10 s", "lateness") if live.finished else ()
    return "; ".join([", ".join(parts), *(f"{name} {told[name]}" for name in more)])


def cells(live: Live) -> list[tuple[str, str]]:
    """Label and value of everything that the display shows."""
    elapsed_s = live.elapsed_s()
    ttft_s, tpot_s = live.recent()
    asked = f"{live.total / live.span_s:.2f}" if live.span_s and not live.at_most else "-"
    rate = f"{live.sent / elapsed_s:.2f}" if elapsed_s > 0 else "-"
    counts = f"{live.sent}{_of(live, ' of ')} sent, {live.sent - live.finished} in flight, "
    counts += f"{live.finished} finished, {live.failed} failed"
    share = f"{live.met / live.scored:.1%} (goal {100 * live.slo.goal:g}%)" if live.scored else "-"
    return [
        ("elapsed", f"{elapsed_s:.0f} s{_left(live)}"),
        ("requests", counts),
        ("rate", f"{rate} of {asked} req/s"),
        *([("within SLO", share)] if live.by_request else []),
        ("last 10 s", f"TTFT {_two(ttft_s, 's')}; TPOT {_two(tpot_s, 's')}"),
        ("lateness", f"p99 {_quantile(live.late_s(), 0.99) * 1e3:.1f} ms" if live.late_s() else "-"),
    ]


def _left(live: Live) -> str:
    """How long is still sent; empty where nobody knows."""
    left_s = (live.span_s or 0.0) - live.elapsed_s()
    return f", sending for {left_s:.0f} s more" if left_s > 0 else ""


def _of(live: Live, word: str) -> str:
    return f" of up to {live.total}" if live.at_most else f"{word}{live.total}"


def _two(values: list[float], unit: str) -> str:
    if not values:
        return "-"
    return f"p50 {_quantile(values, 0.5):.3f}, p99 {_quantile(values, 0.99):.3f} {unit}"


def _quantile(values: list[float], q: float) -> float:
    import numpy as np  # heavy

    from harness.metrics.quantiles import quantile

    return quantile(np.array(values), q)


@contextmanager
def shown(live: Live, *, quiet: bool, stream: TextIO | None = None) -> Iterator[None]:
    """Show `live` while the body runs: a live panel on a terminal, a line every 10 s otherwise."""
    out = stream if stream is not None else sys.stderr
    done = threading.Event()
    draw = _silent if quiet else _panel if out.isatty() else _lines
    thread = threading.Thread(target=draw, args=(live, out, done), name="bench-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _silent(live: Live, _: TextIO, done: threading.Event) -> None:
    done.wait()
    live.said()


def _lines(live: Live, out: TextIO, done: threading.Event) -> None:
    shown_s = time.monotonic()
    while True:
        over = done.wait(1 / DRAW_HZ)
        for text in live.said():
            print(text, file=out, flush=True)
        if over:
            return
        if time.monotonic() - shown_s >= PLAIN_S:
            shown_s = time.monotonic()
            print(line(live), file=out, flush=True)


def _panel(live: Live, out: TextIO, done: threading.Event) -> None:
    from rich.console import Console
    from rich.live import Live as Display
    from rich.table import Table

    def table() -> Table:
        grid = Table.grid(padding=(0, 2))
        for label, value in cells(live):
            grid.add_row(f"[dim]{label}[/dim]", value)
        return grid

    console = Console(file=out)
    with Display(table(), console=console, auto_refresh=False, transient=True) as display:
        over = False
        while not over:
            over = done.wait(1 / DRAW_HZ)
            for text in live.said():
                console.print(text, markup=False, highlight=False)
            display.update(table(), refresh=True)
