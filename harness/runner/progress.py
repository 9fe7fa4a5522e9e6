"""What a running benchmark shows: its counters, drawn at most 4 times a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, TypeVar

from harness.runner.live import Live

if TYPE_CHECKING:
    from harness.runner.exporter import Exporter

T = TypeVar("T")

DRAW_HZ = 4
PLAIN_S = 10.0


def line(live: Live, columns: int | None = None) -> str:
    """The state of a run in one line: rate, requests in flight, TTFT and TPOT of the last 10 s, attainment, and error
    and lateness of the client. Where it is wider than `columns`, details are left out, then parts.
    """
    if live.epoch_s is None and live.waits_for:
        return f"{live.waited_s():.0f} s, nothing sent yet: waiting for {live.waits_for}"
    rate = "-" if live.sent_rps is None else f"{live.sent_rps:.3g}"
    due = "" if live.scheduled_rps is None else f" of {live.scheduled_rps:.3g}"
    share = "" if live.attainment is None else f"SLO {live.attainment:.1%}"
    floor_s = None if live.floor is None else live.floor.error("ttft").p99_s
    late_s = live.late_s()
    times = dict(zip(("TTFT", "TPOT"), live.recent(), strict=True))
    parts = {
        "time": f"{live.elapsed_s():.0f} s{_left(live)}",
        "sent": f"sent {live.sent}" + (f" of up to {live.total}" if live.at_most else f"/{live.total}"),
        "rate": f"{rate}{due} req/s",
        "in flight": f"{live.sent - live.finished} in flight",
        "failed": f"{live.failed} failed" if live.failed else "",
        "times": _joined(
            f"{name} {_at(x, 0.5)}" + (f" (p99 {_at(x, 0.99)})" if x else "") for name, x in times.items()
        ),
        "SLO": f"{share} (goal {100 * live.slo.goal:g}%)" if share else "",
        "floor": "" if floor_s is None else f"floor {_at([floor_s], 1.0)}",
        "late": f"late p99 {_at(late_s, 0.99)}" if late_s else "",
    }
    shorter = {
        "late": "",
        "times": _joined(f"{name} {_at(values_s, 0.5)}" for name, values_s in times.items()),
        "sent": "",
        "time": f"{live.elapsed_s():.0f} s",
        "rate": f"{rate} req/s",
        "SLO": share,
    }
    for name, text in [*shorter.items(), *((name, "") for name in ("time", "failed", "floor", "times", "in flight"))]:
        if columns is None or len(_joined(parts.values())) <= columns:
            break
        parts[name] = text
    return _joined(parts.values())


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(filter(None, parts))


def _left(live: Live) -> str:
    """How much longer requests are sent, or that answers are awaited; empty where this is unknown."""
    left_s = (live.span_s or 0.0) - live.elapsed_s()
    if left_s > 0:
        return f", sending for {left_s:.0f} s more"
    return ", waiting for the last answers" if live.sent > live.finished else ""


def _at(values_s: list[float], q: float) -> str:
    """A quantile of some times."""
    import numpy as np  # heavy

    from harness.metrics.quantiles import quantile

    if not values_s:
        return "-"
    found_s = quantile(np.array(values_s), q)
    if found_s >= 0.9995:
        return f"{found_s:.3g} s"
    return f"{1e3 * found_s:.{3 if found_s >= 0.1 else 2}g} ms"


@dataclass(frozen=True, slots=True)
class Display:
    """Where the runs of a command are shown while they go on: on standard error, and to those who scrape `exporter`.

    `terminal_only`: a log gets no line every 10 s, because the trials of a search have lines of their own.
    """

    quiet: bool = True
    terminal_only: bool = False
    exporter: Exporter | None = None

    @contextmanager
    def showing(self, live: Live, stream: TextIO | None = None) -> Iterator[None]:
        """Show `live` while the body runs: in one changing line on a terminal, a line every 10 s otherwise."""
        out = stream if stream is not None else sys.stderr
        if out.isatty():
            draw = _silent if self.quiet else _changing
        else:
            draw = _silent if self.quiet or self.terminal_only else _lines
        with nullcontext() if self.exporter is None else self.exporter.following(live), drawn(draw, live, out):
            yield


QUIET = Display()


@contextmanager
def drawn(draw: Callable[[T, TextIO, threading.Event], None], what: T, out: TextIO) -> Iterator[None]:
    """Draw `what` in a thread while the body runs; the event tells it to end."""
    done = threading.Event()
    thread = threading.Thread(target=draw, args=(what, out, done), name="bench-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _silent(live: Live, _: TextIO, done: threading.Event) -> None:
    done.wait()
    live.take_lines()


def _lines(live: Live, out: TextIO, done: threading.Event) -> None:
    shown_s = time.monotonic()
    while True:
        over = done.wait(1 / DRAW_HZ)
        for text in live.take_lines():
            print(text, file=out, flush=True)
        if over:
            return
        if time.monotonic() - shown_s >= PLAIN_S:
            shown_s = time.monotonic()
            print(line(live), file=out, flush=True)


def _changing(live: Live, out: TextIO, done: threading.Event) -> None:
    from rich.console import Console
    from rich.live import Live as Shown
    from rich.text import Text

    console = Console(file=out)
    with Shown(Text(), console=console, auto_refresh=False, transient=True) as display:
        over = False
        while not over:
            over = done.wait(1 / DRAW_HZ)
            for text in live.take_lines():
                console.print(text, markup=False, highlight=False)
            display.update(Text(line(live, console.width), no_wrap=True, overflow="crop"), refresh=True)
