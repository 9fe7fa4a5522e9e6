"""Carries out a sweep into its folder, from its beginning or from where it was left."""

import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import pool, writable
from harness.errors import BackendError, BenchError, Interrupted
from harness.storage import write_json
from harness.sweep.answer import answer
from harness.sweep.layout import Layout
from harness.sweep.plan import Sweep
from harness.sweep.progress import Progress, shown
from harness.sweep.runs import Order, Told, carry_out, finished, told
from harness.sweep.store import FILE, opened


@dataclass(slots=True)
class _Course:
    """How a sweep goes: what came of its runs so far, and how it ended."""

    told: dict[str, Told] = field(default_factory=dict)
    state: str = "finished"
    error: str | None = None


def conduct(
    sweep: Sweep,
    out: Path,
    *,
    command: str | None = None,
    workers: int | None = None,
    quiet: bool = True,
    say: Callable[[str], None] = lambda _: None,
    render: Callable[[Mapping[str, Any], str], str] | None = None,
) -> dict[str, Any]:
    """Carry out what is not done yet and write the answer, which is returned as sweep.json has it.

    Simulated runs go several at a time, one for each of `workers` (None: one per core); those in real time one after
    another. Ctrl-C and a backend that fails end it with an answer from what is there. `render` gives the answer as csv
    and as markdown, to be written beside it. Raises UsageError for a folder that holds anything else, BackendError
    where not a single run was made, Interrupted where none had ended.
    """
    with opened(out, sweep.stored, len(sweep.tasks)):
        course = _Course()
        given = command or shlex.join(["bench", *sys.argv[1:]])
        orders = [Order(task, str(out), given, quiet or sweep.virtual) for task in sweep.tasks]
        kept = {order.task.folder for order in orders if finished(order.path)}
        say(_opening(sweep, out, len(kept)))
        try:
            _carry_out(sweep, orders, course, kept, workers, quiet, say)
        except (KeyboardInterrupt, Interrupted):
            course.state = "interrupted"
        except BackendError as error:
            course.state, course.error = "failed", str(error)
        if course.state != "finished":
            course.told |= _on_disk(sweep.layout, out, course.told)
        if not any(run.facts for run in course.told.values()):
            raise _nothing(course)
        return _concluded(sweep, out, course, render)


def _carry_out(
    sweep: Sweep,
    orders: list[Order],
    course: _Course,
    kept: Collection[str],
    workers: int | None,
    quiet: bool,
    say: Callable[[str], None],
) -> None:
    """Every run, until one ends before its time. Those that are `kept` are read alone."""
    left = [order.task for order in orders if order.task.folder not in kept]
    timed = not sweep.virtual and all(task.sending_s is not None for task in left)
    work = {task.folder: (task.sending_s or 1.0) if timed else 1.0 for task in left}
    progress = Progress(len(orders), len(kept), sum(work.values()), timed)
    several = sweep.virtual and workers != 1 and len(orders) > 1
    with pool.of(workers) if several else pool.Here() as made, shown(progress, quiet=quiet or not sweep.virtual):
        announced = orders if sweep.virtual else _announced(orders, progress, say)
        for order, outcome in made.map(carry_out, announced):
            course.told[order.task.folder] = outcome
            if outcome.ended != "finished":
                course.state = "failed" if outcome.ended == "failed" else "interrupted"
                course.error = outcome.error
                return
            if order.task.folder in work:
                progress.add(work[order.task.folder])


def _announced(orders: Iterable[Order], progress: Progress, say: Callable[[str], None]) -> Iterator[Order]:
    """The orders, each told before it is carried out in real time."""
    for number, order in enumerate(orders, 1):
        if not finished(order.path):
            say(f"run {number} of {progress.total}: {order.task.name}; {progress.line()}")
        yield order


def _opening(sweep: Sweep, out: Path, kept: int) -> str:
    """One line that says what is about to happen."""
    points, runs = len(sweep.layout.points), len(sweep.tasks)
    there = f", {kept} of them there already" if kept else ""
    return f"{points} point{'s' * (points != 1)}, {runs} run{'s' * (runs != 1)}{there}; into {out}"


def _nothing(course: _Course) -> BenchError:
    """Why there is no answer at all."""
    if course.state == "failed":
        return BackendError(course.error or "the backend failed.")
    return Interrupted("interrupted before the first run had ended; the same command starts again.")


def _concluded(
    sweep: Sweep, out: Path, course: _Course, render: Callable[[Mapping[str, Any], str], str] | None
) -> dict[str, Any]:
    info = answer(sweep.stored, course.told, course.state, course.error)
    for form, name in (("csv", "sweep.csv"), ("markdown", "sweep.md")):
        if render is not None:
            writable.put(out / name, render(info, form).encode())
    write_json(out / FILE, info)
    return info


def reported(out: Path, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The answer that the finished runs of a folder give now: of a sweep that was killed, or still goes on."""
    return answer(stored, _on_disk(Layout.restored(stored), out, {}), "running")


def _on_disk(layout: Layout, out: Path, known: Mapping[str, Told]) -> dict[str, Told]:
    """The runs that ended without anybody having told of them yet."""
    untold = [place for place in layout.runs if place not in known and finished(out / place)]
    return {place: told(out / place, place, layout.looks) for place in untold}
