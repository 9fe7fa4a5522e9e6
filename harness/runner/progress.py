"""What a running benchmark shows: its counters, drawn twice a second."""

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
    from rich.table import Table

    from harness.runner.exporter import Exporter

T = TypeVar("T")

DRAW_HZ = 2
PLAIN_S = 10.0


def facts(live: Live) -> dict[str, str]:
    """What is known of a run under way, by name: how far it is, requests, the rate sent and requested, TTFT and TPOT of
    the last 10 s, attainment so far, and error and lateness of the client. Empty where nothing is known.
    """
    if live.epoch_s is None and live.waits_for:
        return {"time": f"{live.waited_s():.0f} s, nothing sent yet: waiting for {live.waits_for}"}
    sent_rps = "-" if live.sent_rps is None else f"{live.sent_rps:.3g}"
    requested = "" if live.scheduled_rps is None else f" of {live.scheduled_rps:.3g}"
    simulated = live.epoch_s is None and live.finished > 0  # then time says nothing of how far it is
    attainment, late_s = live.attainment, live.late_s()
    floor_s = None if live.floor is None else live.floor.error("ttft").p99_s
    latencies = (
        f"{_at(values_s, 0.5)}" + (f" (p99 {_at(values_s, 0.99)})" if values_s else "") for values_s in live.recent()
    )
    return {
        "time": "" if simulated else f"{live.elapsed_s():.0f} s{_left(live)}",
        "requests": _joined([
            f"sent {live.sent}" + (f" of up to {live.total}" if live.at_most else f"/{live.total}"),
            f"{live.sent - live.finished} in flight",
            f"{live.failed} failed" if live.failed else "",
        ]),
        "rate": "" if simulated else f"{sent_rps}{requested} req/s",
        **dict(zip(("TTFT", "TPOT"), latencies, strict=True)),
        "SLO": "" if attainment is None else f"{attainment:.1%} (goal {100 * live.slo.goal:g}%)",
        "client": _joined([
            "" if floor_s is None else f"floor {_at([floor_s], 1.0)}",
            f"late p99 {_at(late_s, 0.99)}" if late_s else "",
        ]),
    }  # fmt: skip


def line(live: Live) -> str:
    """The facts in one line."""
    labels = ("TTFT", "TPOT", "SLO")
    return _joined(f"{name} {text}" if name in labels and text else text for name, text in facts(live).items())


def screen(live: Live) -> Table:
    """The facts as rows below a bar of the time in which requests are sent."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    if live.epoch_s is not None and live.span_s:
        grid.add_row("", ProgressBar(total=live.span_s, completed=min(live.elapsed_s(), live.span_s), width=40))
    for name, text in facts(live).items():
        if text:
            grid.add_row(name, Text(text))
    return grid


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
    return f"{1e3 * found_s:.{3 if found_s >= 0.0995 else 2}g} ms"


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
        """Show `live` while the body runs: a small screen on a terminal, a line every 10 s otherwise."""
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
    from rich.live import Live as Screen

    console = Console(file=out)
    with Screen(console=console, auto_refresh=False, transient=True) as display:
        over = False
        while not over:
            over = done.wait(1 / DRAW_HZ)
            for text in live.take_lines():
                console.print(text, markup=False, highlight=False)
            display.update(screen(live), refresh=True)
