"""How far a sweep is and how long it will take: a bar on a terminal, a line now and then elsewhere."""

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
    """Counts runs that have ended, and guesses from the time that they took how long the rest will take.

    `work` is what is left to do: seconds of sending where `timed`, else runs. `done` starts with the runs that are kept
    from an earlier call.
    """

    total: int
    done: int = 0
    work: float = 0.0
    timed: bool = False
    made: float = 0.0
    clock: Callable[[], float] = time.monotonic
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    def add(self, work: float) -> None:
        """One more run has been made."""
        self.done += 1
        self.made += work

    def left_s(self) -> float | None:
        """Seconds until the end; None while nobody can know."""
        if self.made > 0:
            return (self.clock() - self.started_s) / self.made * (self.work - self.made)
        return self.work if self.timed else None

    def line(self) -> str:
        """The state in one line."""
        left_s = self.left_s()
        left = "" if left_s is None else f", about {duration(left_s)} left"
        return f"{self.done} of {self.total} runs{left}"


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
