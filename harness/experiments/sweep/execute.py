"""Executes a sweep into its folder, which holds the plan before the first run, so that a rerun resumes it.

Progress is a bar on a terminal, and a line now and then elsewhere.
"""

import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness import termination
from harness.data.codec import encode
from harness.errors import BackendError, Interrupted, UsageError
from harness.experiments import pool
from harness.experiments.folder import ExperimentFolder
from harness.experiments.sweep.answer import answer
from harness.experiments.sweep.axes import Layout
from harness.experiments.sweep.plan import Sweep
from harness.experiments.sweep.runs import Order, RunResult, execute_order, finished, result_of
from harness.experiments.sweep.sweep_json import SweepAnswer
from harness.runner.progress import DRAW_HZ, PLAIN_S, QUIET, Display, drawn


@dataclass(slots=True)
class Progress:
    """Counts finished runs, and estimates from their time how long the rest will take.

    `work` is what is left to do: seconds of sending where `timed`, else runs. `done` starts with the runs of an
    earlier call.
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
        """Seconds until the end; None while it is not known."""
        if self.made > 0:
            return (self.clock() - self.started_s) / self.made * (self.work - self.made)
        return self.work if self.timed else None

    def line(self) -> str:
        left_s = self.left_s()
        remaining = "" if left_s is None else f", about {duration(left_s)} left"
        return f"{self.done} of {self.total} runs{remaining}"


def duration(seconds: float) -> str:
    """'40 s', '12 min', '3.5 h': as exact as a guess may be."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def shown(progress: Progress, *, quiet: bool, stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress while the body runs, on standard error."""
    out = stream if stream is not None else sys.stderr
    with nullcontext() if quiet else drawn(_bar if out.isatty() else _lines, progress, out):
        yield


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


def _check_same(folder: ExperimentFolder, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Runs of two sweeps in one curve would be no curve; values and seeds may be added."""
    folder.check_same(before, now, "clock")
    old = {axis["name"]: [*axis["values"]] for axis in before.get("axes") or []} | {"seeds": before.get("seeds") or []}
    new = {axis["name"]: axis["values"] for axis in now["axes"]} | {"seeds": now["seeds"]}
    if list(old) != list(new):
        raise folder.other("axes", ", ".join([*old][:-1]) or None, ", ".join([*new][:-1]) or None)
    for name, values in old.items():
        gone = [value for value in values if value not in new[name]]
        if gone:
            raise UsageError(
                f"'{folder.path}' holds a sweep with {name} {gone[0]} too, which is missing now; values may be added, "
                "not removed. Name another --out."
            )


@dataclass(slots=True)
class _Outcome:
    """The results of the runs so far, and how the sweep ended."""

    results: dict[str, RunResult] = field(default_factory=dict)
    state: str = "finished"
    error: str | None = None


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    command: str | None = None,
    workers: int | None = None,
    pool_name: str = pool.PROCESSES,
    display: Display = QUIET,
    say: Callable[[str], None] = lambda _: None,
) -> SweepAnswer:
    """Execute what is not done yet, and write and return sweep.json.

    Simulated runs go several at a time, `workers` of them in the pool of that name; those in real time one after
    another. Ctrl-C and a backend that fails end it with an answer from what is there. Raises UsageError, having changed
    nothing, for a folder that holds anything else, another sweep (more values and seeds may have been given since), or
    one that is running; BackendError where not a single run was made, Interrupted where none had ended.
    """
    count = workers if len(sweep.tasks) > 1 else 1
    folder, outcome = ExperimentFolder(out, "sweep", "sweep"), _Outcome()
    with pool.of(count, pool_name, virtual=sweep.virtual) as processes, folder.opened() as before:
        if before is not None:
            _check_same(folder, before, sweep.stored)
        folder.write({**sweep.stored, "state": "running", "runs": {"planned": len(sweep.tasks), "done": 0}})
        try:
            _execute(sweep, outcome, out, command or shlex.join(["bench", *sys.argv[1:]]), processes, display, say)
        except (KeyboardInterrupt, Interrupted):
            outcome.state = "interrupted"
        except BackendError as error:
            outcome.state, outcome.error = "failed", str(error)
        if outcome.state != "finished":
            outcome.results |= _on_disk(sweep.layout, out, outcome.results)
        if not any(run.scored is not None for run in outcome.results.values()):
            if outcome.state == "failed":
                raise BackendError(outcome.error or "the backend failed.")
            raise Interrupted("interrupted before the first run had ended; rerun the command to start again.")
        info = answer(sweep.stored, outcome.results, outcome.state, outcome.error)
        folder.write(encode(info))
        return info


def _execute(
    sweep: Sweep, outcome: _Outcome, out: Path, command: str, processes: pool.Pool, display: Display,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    """Execute every run that is not done yet, until one ends before its time; finished ones are read alone."""
    virtual = sweep.virtual
    with tempfile.TemporaryDirectory() as temporary:
        shared, shown_by = Path(temporary, "probe.json"), QUIET if virtual else display
        orders = [Order(task, str(out), command, shown_by, shared) for task in sweep.tasks]
        tasks = [order.task for order in orders if not finished(order.path)]
        done, points = len(orders) - len(tasks), len(sweep.layout.points)
        runs = f"{len(orders)} run{'s' * (len(orders) != 1)}{f', {done} of them there already' * bool(done)}"
        say(f"{points} point{'s' * (points != 1)}, {runs}; into {out}")
        timed = not virtual and all(task.sending_s is not None for task in tasks)
        work = {task.folder: (task.sending_s or 1.0) if timed else 1.0 for task in tasks}
        progress = Progress(len(orders), done, sum(work.values()), timed)
        with shown(progress, quiet=display.quiet or not virtual):
            announced = orders if virtual else _announced(orders, progress, say)
            for order, result in processes.map(execute_order, announced):
                outcome.results[order.task.folder] = result
                if result.ended != "finished":
                    outcome.state = "failed" if result.ended == "failed" else "interrupted"
                    outcome.error = result.error
                    return
                if order.task.folder in work:
                    progress.add(work[order.task.folder])
                if termination.received():
                    outcome.state = "interrupted"
                    return


def _announced(orders: Iterable[Order], progress: Progress, say: Callable[[str], None]) -> Iterator[Order]:
    """The orders, each announced before it is executed in real time."""
    for number, order in enumerate(orders, 1):
        if not finished(order.path):
            say(f"run {number} of {progress.total}: {order.task.name}; {progress.line()}")
        yield order


def reported(out: Path, stored: Mapping[str, Any]) -> SweepAnswer:
    """The answer of the finished runs in a folder: of a sweep that was killed, or is still running."""
    return answer(stored, _on_disk(Layout.restored(stored), out, {}), "running")


def _on_disk(layout: Layout, out: Path, known: Mapping[str, RunResult]) -> dict[str, RunResult]:
    """The finished runs that are not known yet."""
    unread = [place for place in layout.runs if place not in known and finished(out / place)]
    return {place: result_of(out / place, place) for place in unread}
