"""The simulator against the project's own engine: attainment at several rates of the same schedules.

Three engines: one whose step times are recorded and given to the simulator, one that takes the step times of a GPU on
the wall clock without computing anything, and the one that computes, whose step times are as noisy as its machine.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from acceptance.rows import Place, Row
from acceptance.topics._trials import trial
from harness.data.folder import read_info
from harness.experiments.validate import replay
from harness.metrics import slo
from harness.registry import names
from harness.validity.checks import LATE_STEPS_SHARE

STORED = Path(__file__).parents[1] / "simulator_against_engine.json"
"""What `tests/perf/simulator_against_engine.py --store` writes."""
HALVES = ("distserve-prefill", "distserve-decode")
"""Policies that are half of a system: the other half is on another replica."""
PACED = ("vllm-v0", "vllm-v1", "sarathi", "orca")
LATENCY = "abc:vllm"
OBJECTIVE = "ttft=0.3,tpot=0.06"
TRAFFIC = {"workload": "lognormal:prompt_mean=200,output_mean=20", "duration": "10s", "slo": OBJECTIVE}
SHARES = tuple(0.5 + 0.7 * n / 6 for n in range(7))
"""Rates that are tried, in shares of the knee; the requests of each are drawn from a seed of its own."""
TRIES = 3
"""A run of the paced engine with too many late steps measures the machine: it is repeated so many times in all."""
MEAN_POINTS, MOST_POINTS = 2.0, 5.0


def rows(place: Place) -> Iterator[Row]:
    """S27.a to S27.c, in seven minutes, most of which the paced engine sleeps."""
    yield _recorded(place)
    for policy in PACED:
        yield _paced(policy, place)
    yield _raw()


def _run(out: Path, **options: str) -> None:
    """A run, before everything else on this machine where the system allows it."""
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    command = (sys.executable, "-m", "harness", "run", *given, "--out", str(out), "--force", "--no-html", "--quiet")
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, preexec_fn=_first)


def _first() -> None:
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))


def _recorded(place: Place) -> Row:
    policies = [name for name in names("policies") if name not in HALVES]
    traffic = {"workload": "fixed:prompt=90,output=60", "rate": "400", "requests": "60", "slo": OBJECTIVE}
    apart, preempted = {}, 0
    for policy in policies:
        out = place.work / f"recorded-{policy}"
        _run(out, backend=f"engine:policy={policy},kv_blocks=20,nice=0", **traffic)
        found = replay.validate([str(out)], f"sim:latency=recorded:{out}", None)
        apart[policy] = max(abs(pair.measured - pair.simulated) for pair in found.pairs)
        preempted += read_info(out).summary.preemptions or 0
    differ = [policy for policy, most in apart.items() if most > 0]
    obtained = f"0 points and equal latencies under {len(apart) - len(differ)} of {len(policies)} policies"
    return Row(
        "S27.a", "simulator against the engine, on its recorded step times", "real", "one scheduler under two clocks",
        f"{obtained}, with {preempted:,} preemptions{'; not ' + ', '.join(differ) if differ else ''}",
        "0 points under every policy", not differ, "bench validate --against DIR --backend sim:latency=recorded:DIR",
        "Attainment and quantiles of TTFT and TPOT of 60 requests that arrive within a second and find 20 blocks.",
    )  # fmt: skip


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


def knee_rps(policy: str) -> float:
    """The rate, to 1 %, up to which 90 % of the requests meet the SLO in the simulator."""
    bounds = slo.parse(OBJECTIVE)
    low, high = 1.0, 40.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        run = trial(backend=f"sim:latency={LATENCY}", policy=policy, rate=middle, **TRAFFIC)
        low, high = (middle, high) if slo.score(run.table, bounds).attainment >= 0.9 else (low, middle)
    return low


def _point(policy: str, rate_rps: float, seed: int, out: Path) -> Point:
    """One rate; the run of several tries with the fewest late steps."""
    best: Point | None = None
    for _ in range(TRIES):
        if best is not None and best.valid:
            break
        _run(out, backend=f"engine:executor=paced:latency={LATENCY}", policy=policy, rate=f"{rate_rps:.3f}",
             seed=f"{seed}", **TRAFFIC)  # fmt: skip
        found = replay.validate([str(out)], f"sim:latency={LATENCY}", OBJECTIVE)
        (pair,) = (pair for pair in found.pairs if pair.metric == "attainment_pct")
        facts = read_info(out).backend
        late = float(facts["late_steps"]) / float(facts["paced_steps"])
        point = Point(rate_rps, pair.measured, pair.simulated, late)
        best = point if best is None or late < best.late else best
    assert best is not None
    return best


def _paced(policy: str, place: Place) -> Row:
    knee = knee_rps(policy)
    out = place.work / f"paced-{policy}"
    points = [_point(policy, share * knee, seed, out) for seed, share in enumerate(SHARES)]
    return judged(policy, knee, points)


def judged(policy: str, knee: float, points: list[Point]) -> Row:
    """The row of one policy; it is not decided where the engine was late at a rate."""
    mean, most = statistics.fmean(one.points for one in points), max(one.points for one in points)
    sides = ", ".join(f"{p.rate_rps:.3g}/s {p.engine_pct:.1f} {p.simulator_pct:.1f}" for p in points)
    late = ", ".join(f"{one.late:.2%}" for one in points)
    note = (
        f"Rate, engine, simulator: % within {OBJECTIVE} of {TRAFFIC['workload']}, {TRAFFIC['duration']} each; opt-13b "
        f"on an A100, {LATENCY}, 0.5 to 1.2 of the knee of {knee:.3g}/s. Steps that ended late: {late}."
    )
    valid = all(one.valid for one in points)
    if not valid:
        note += f" More than {LATE_STEPS_SHARE:.0%} are late: this machine was too busy to decide."
    return Row(
        f"S27.b.{policy}", f"simulator against the paced engine, {policy}", "real",
        "DistServe's simulator against its system: 2 points",
        f"{mean:.1f} points on average, {most:.1f} at most: {sides}",
        f"mean at most {MEAN_POINTS:g} points, each at most {MOST_POINTS:g}, at 7 rates",
        mean <= MEAN_POINTS and most <= MOST_POINTS if valid else None, "make systems ONLY=S27.b", note,
    )  # fmt: skip


def _raw() -> Row:
    """What `tests/perf/simulator_against_engine.py` has stored; it needs minutes of a quiet machine."""
    system, published = "simulator against the engine that computes", "none: its steps are as noisy as its machine"
    band, command = "none", "python tests/perf/simulator_against_engine.py"
    if not STORED.exists():
        return Row("S27.c", system, "real", published, "not run", band, None, command, "Needs a quiet machine.")
    found = json.loads(STORED.read_text(encoding="utf-8"))
    rates, real, ours = found["rates_rps"], found["measured_pct"], found["simulated_pct"]
    worst = max(abs(a - b) for a, b in zip(real, ours, strict=True))
    sides = ", ".join(f"{r:g}/s {a:.1f} {b:.1f}" for r, a, b in zip(rates, real, ours, strict=True))
    itself = max(abs(a - b) for a, b in zip(real, found["again_pct"], strict=True))
    note = (
        f"Rate, engine, simulator: % within {found['slo']}; {found['when']}; latency fitted on other runs. The engine "
        f"and itself, run again: at most {itself:.1f} points apart, so that this decides nothing."
    )
    return Row("S27.c", system, "real", published, f"{worst:.1f} points at most: {sides}", band, None, command, note)
