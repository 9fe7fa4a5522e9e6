"""How far a sweep is and how long it will take: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

PLAIN_S = 10.0
"""Seconds between two lines where there is no terminal."""

DRAW_HZ = 4


@dataclass(slots=True)
class Progress:
    """Counts runs that ended, those that were `kept` from an earlier call among them, which cost no time."""

    total: int
    kept: int = 0
    done: int = 0
    last: str = ""
    clock: Callable[[], float] = time.monotonic
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    def add(self, name: str) -> None:
        """One more has ended."""
        self.done += 1
        self.last = name

    def left_s(self) -> float | None:
        """Seconds until the end, if the rest takes as long as what was made so far; None before anything was."""
        made = self.done - self.kept
        if made <= 0:
            return None
        return (self.clock() - self.started_s) / made * (self.total - self.done)

    def left_text(self) -> str:
        """', about 3 min left', or nothing where nobody knows."""
        left_s = self.left_s()
        return "" if left_s is None else f", about {duration(left_s)} left"

    def line(self) -> str:
        """The state in one line."""
        return f"{self.done} of {self.total} runs{self.left_text()}"


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h': as exact as a guess may be."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def shown(progress: Progress, *, quiet: bool, stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress while the body runs, on standard error."""
    out = stream if stream is not None else sys.stderr
    done = threading.Event()
    if quiet:
        yield
        return
    draw = _bar if out.isatty() else _lines
    thread = threading.Thread(target=draw, args=(progress, out, done), name="sweep-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _lines(progress: Progress, out: TextIO, done: threading.Event) -> None:
    while not done.wait(PLAIN_S):
        print(progress.line(), file=out, flush=True)


def _bar(progress: Progress, out: TextIO, done: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(file=out), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(progress.line(), total=progress.total)
        over = False
        while not over:
            over = done.wait(1 / DRAW_HZ)
            bar.update(task, completed=progress.done, description=progress.line(), refresh=True)
