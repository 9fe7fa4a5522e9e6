"""Runs of the paced engine that several topics make: beside the simulator, and for the sign of a ratio over seeds."""

import contextlib
import fcntl
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from acceptance.rows import Place, Row
from acceptance.topics._trials import trial
from harness.data.folder import read_info
from harness.experiments.validate import replay
from harness.metrics.objective import parse_slo, score
from harness.options import respelled
from harness.stats.seeds import half_width
from harness.validity.checks import LATE_STEPS_SHARE

LATENCY = "abc:vllm"
OBJECTIVE = "ttft=0.3,tpot=0.06"
WORKLOAD = "lognormal:prompt_mean=200,output_mean=20"
SHARES = tuple(0.5 + 0.7 * n / 6 for n in range(7))
"""Rates that are tried, in shares of the knee; the requests of each are drawn from a seed of its own."""
MEAN_POINTS, MOST_POINTS = 2.0, 5.0
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


@dataclass(frozen=True, slots=True)
class Point:
    """Attainment of one run in percent on either side, and the share of the engine's steps that ended late."""

    rate_rps: float
    engine_pct: float
    simulator_pct: float
    late: float

    @property
    def points(self) -> float:
        """Points of attainment between the two."""
        return abs(self.engine_pct - self.simulator_pct)

    @property
    def valid(self) -> bool:
        """Whether the engine kept the step times of its latency model."""
        return self.late <= LATE_STEPS_SHARE


@dataclass(frozen=True, slots=True)
class System:
    """What is measured on the paced engine and simulated, with these options and latency model on both sides.

    `objective` is that of requests that come for `duration`; `steps` names the latency model in the note of the row.
    """

    row: str
    title: str
    latency: str
    objective: str
    duration: str
    options: Mapping[str, object]
    steps: str = LATENCY

    @property
    def given(self) -> dict[str, object]:
        """Options of a run on either side, without the rate."""
        return {"workload": WORKLOAD, "duration": self.duration, "slo": self.objective, **self.options}


def knee_rps(system: System) -> float:
    """The rate, to 1 %, up to which 90 % of the requests meet the SLO in the simulator."""
    bounds = parse_slo(system.objective)
    low, high = 1.0, 40.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        made = trial(backend=f"sim:latency={system.latency}", rate=middle, **system.given)
        low, high = (middle, high) if score(made.table, bounds).attainment >= 0.9 else (low, middle)
    return low


def _point(system: System, rate_rps: float, seed: int, out: Path) -> Point:
    backend = f"engine:executor=paced:latency={system.latency}"
    late = paced_run(out, backend=backend, rate=f"{rate_rps:.3f}", seed=seed, **system.given)
    found = replay.validate([str(out)], f"sim:latency={system.latency}", system.objective)
    (pair,) = (pair for pair in found.pairs if pair.metric == "attainment_pct")
    return Point(rate_rps, pair.measured, pair.simulated, late)


def against_simulator(system: System, place: Place) -> Row:
    """The row of a paced engine at seven rates around the knee."""
    knee = knee_rps(system)
    out = place.work / system.row
    return judged(system, knee, [_point(system, share * knee, seed, out) for seed, share in enumerate(SHARES)])


def judged(system: System, knee: float, points: Sequence[Point]) -> Row:
    """The row of one system; it is not decided where the engine was late at a rate."""
    mean, most = statistics.fmean(one.points for one in points), max(one.points for one in points)
    sides = ", ".join(f"{p.rate_rps:.3g}/s {p.engine_pct:.1f} {p.simulator_pct:.1f}" for p in points)
    note = (
        f"Rate, engine, simulator: % within {system.objective} of {WORKLOAD}, {system.duration} each; opt-13b on an "
        f"A100, {system.steps}, 0.5 to 1.2 of the knee of {knee:.3g}/s. {late_note(one.late for one in points)}"
    )
    return Row(
        system.row, f"simulator against the paced engine, {system.title}", "real",
        "DistServe's simulator against its system: 2 points",
        f"{mean:.1f} points on average, {most:.1f} at most: {sides}",
        f"mean at most {MEAN_POINTS:g} points, each at most {MOST_POINTS:g}, at 7 rates",
        mean <= MEAN_POINTS and most <= MOST_POINTS if all(one.valid for one in points) else None,
        f"python tests/acceptance/run.py --only {system.row}", note,
    )  # fmt: skip


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
