"""Runs of the paced engine that several topics make for the sign of a ratio over seeds."""

import contextlib
import fcntl
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from acceptance.rows import Row
from harness.data.folder import read_info
from harness.options import respelled
from harness.stats.seeds import half_width
from harness.validity.checks import LATE_STEPS_SHARE

TRIES = 3
"""A run with too many late steps measures the machine: it is repeated so many times in all."""


def run(out: Path, **options: object) -> None:
    """A run, before everything else on this machine where the system allows it, and after other topics' runs.

    The processes of a run that starts compute for seconds, and would delay the steps of another one.
    """
    given = [part for name, value in respelled(options).items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = (sys.executable, "-m", "harness", "run", *given, "--out", str(out), "--force", "--no-html", "--quiet")
    with Path(__file__).open(encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False, preexec_fn=_first)


def _first() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))


def paced_run(out: Path, **options: object) -> float:
    """Run the paced engine, again where it was late; returns the share of its steps that ended late."""
    late = 1.0
    for _ in range(TRIES):
        run(out, **options)
        facts = read_info(out).backend
        late = float(facts["late_steps"]) / float(facts["paced_steps"])
        if late <= LATE_STEPS_SHARE:
            break
    return late


def late_note(shares: Iterable[float]) -> str:
    """The shares of steps that ended late, and whether that decides anything."""
    shares = tuple(shares)
    note = f"Steps that ended late: {', '.join(f'{share:.2%}' for share in shares)}."
    if max(shares) > LATE_STEPS_SHARE:
        note += f" More than {LATE_STEPS_SHARE:.0%} are late: this machine was too busy to decide."
    return note


def sign_row(
    row_id: str, system: str, published: str, what: str, ratios: Sequence[float], late: Sequence[float], command: str,
    note: str,
) -> Row:  # fmt: skip
    """The ratios of the seeds as a row: its 95 % interval, of the mean logarithm, must be above 1.

    Their size is not gated, and nothing is where a run of the engine was late.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = math.fsum(logs) / len(logs), half_width(logs) or math.inf
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Row(
        row_id, system, "simulated", published,
        f"{what} {math.exp(mean):.2f}x, 95% interval {low:.2f}x to {high:.2f}x over {len(ratios)} seeds "
        f"({min(ratios):.2f}x to {max(ratios):.2f}x)",
        "interval above 1", low > 1 if max(late) <= LATE_STEPS_SHARE else None, command,
        f"{note} {late_note(late)}",
    )  # fmt: skip
