"""What a running benchmark shows: its counters, drawn at most 4 times a second."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, TypeVar

from harness.runner.live import Live

T = TypeVar("T")

DRAW_HZ = 4
PLAIN_S = 10.0


def line(live: Live) -> str:
    """The state of a run in one plain line."""
    parts = [f"{live.elapsed_s():.0f} s{_left(live)}", f"sent {live.sent}{_of(live, '/')}"]
    parts += [f"in flight {live.sent - live.finished}", f"finished {live.finished}", f"failed {live.failed}"]
    if live.scored and live.by_request:
        parts.append(f"within the SLO {live.met / live.scored:.1%} (goal {100 * live.slo.goal:g}%)")
    values = dict(cells(live))
    more = ("rate", "last 10 s", "lateness") if live.finished else ()
    return "; ".join([", ".join(parts), *(f"{name} {values[name]}" for name in more)])


def cells(live: Live) -> list[tuple[str, str]]:
    """Label and value of everything that the display shows."""
    elapsed_s = live.elapsed_s()
    ttft_s, tpot_s = live.recent()
    target = f"{live.total / live.span_s:.2f}" if live.span_s and not live.at_most else "-"
    rate = f"{live.sent / elapsed_s:.2f}" if elapsed_s > 0 else "-"
    counts = f"{live.sent}{_of(live, ' of ')} sent, {live.sent - live.finished} in flight, "
    counts += f"{live.finished} finished, {live.failed} failed"
    share = f"{live.met / live.scored:.1%} (goal {100 * live.slo.goal:g}%)" if live.scored else "-"
    return [
        ("elapsed", f"{elapsed_s:.0f} s{_left(live)}"),
        ("requests", counts),
        ("rate", f"{rate} of {target} req/s"),
        *([("within SLO", share)] if live.by_request else []),
        ("last 10 s", f"TTFT {_two(ttft_s, 's')}; TPOT {_two(tpot_s, 's')}"),
        ("lateness", f"p99 {_quantile(live.late_s(), 0.99) * 1e3:.1f} ms" if live.late_s() else "-"),
    ]


def _left(live: Live) -> str:
    """How much longer requests are sent, or that answers are awaited; empty where this is unknown."""
    left_s = (live.span_s or 0.0) - live.elapsed_s()
    if left_s > 0:
        return f", sending for {left_s:.0f} s more"
    return ", waiting for the last answers" if live.sent > live.finished else ""


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
    with drawn(_silent if quiet else _panel if out.isatty() else _lines, live, out):
        yield


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
            for text in live.take_lines():
                console.print(text, markup=False, highlight=False)
            display.update(table(), refresh=True)
