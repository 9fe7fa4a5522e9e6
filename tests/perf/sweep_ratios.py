"""How often a sweep's intervals of a crossing, and of the ratio of two systems, hold the truth; of systems at random.

Each case is a system of `random_systems.py` with bounds on single requests, beside the same with another policy. Both
run at six rates from 0.8 to 1.25 of their own crossing with `--seeds` seeds. These are taken for all there are, and
sweeps of 5 and of 10 of them are drawn again and again.

    python tests/perf/sweep_ratios.py [--first 3000] [--cases 10] [--seeds 30] [--requests 600]
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow.compute as pc
from _options import parsed  # beside this file
from random_systems import POLICIES, drawn

from harness.errors import BenchError
from harness.experiments.trial import own_rate, simulate
from harness.metrics.objective import parse_slo, score
from harness.options import RunSpec
from harness.stats.crossing import crossing
from harness.stats.seeds import jackknife
from harness.validity import steady_state

AWAY = (0.8, 0.9, 0.97, 1.03, 1.12, 1.25)
DRAWS = 300
STEPS = 16


def attained(spec: RunSpec, rate_rps: float, seed: int) -> float:
    """Attainment of one seed at one rate, after the cut of its warm-up."""
    trial = simulate(replace(spec, rate=rate_rps, seed=seed))
    kept = trial.table.filter(
        pc.greater_equal(trial.table["scheduled_s"], steady_state.find(trial.table, "mser5").at_s)
    )
    return float(score(kept, parse_slo(spec.slo or "")).attainment)


def knee(spec: RunSpec, goal: float) -> float | None:
    """About where a system crosses the goal, by bisection with three seeds that no sweep has."""
    least, most = own_rate(spec) / 200, own_rate(spec) * 200
    low, high = least, most
    for _ in range(STEPS):
        rate_rps = math.sqrt(low * high)
        met = np.mean([attained(replace(spec, requests=300), rate_rps, 90_000 + seed) for seed in range(3)]) >= goal
        low, high = (rate_rps, high) if met else (low, rate_rps)
    return low if low > least and high < most else None


def crossed(rates: list[float], table: np.ndarray, goal: float, requests: int) -> float | None:
    """ln of the crossing of the means of a table (rates, seeds)."""
    found = crossing(rates, table.mean(axis=1), [requests * table.shape[1]] * len(rates), goal)
    return None if found.at is None else math.log(found.at)


def held(tables: list[np.ndarray], rates: list[list[float]], goal: float, requests: int, seeds: int) -> list[float]:
    """Of sweeps of so many seeds: shares whose interval of the first crossing and of the ratio holds the truth.

    Then the median half width of both, and the share of sweeps that have the latter.
    """
    rng = np.random.default_rng(0)

    def logs(kept: np.ndarray) -> list[float | None]:
        return [crossed(*each, goal, requests) for each in zip(rates, (t[:, kept] for t in tables), strict=True)]

    def first(kept: np.ndarray) -> float | None:
        return logs(kept)[0]

    def ratio(kept: np.ndarray) -> float | None:
        base, head = logs(kept)
        return None if base is None or head is None else head - base

    def without(estimate: Callable[[np.ndarray], float | None], chosen: np.ndarray, seed: int | None) -> float | None:
        return estimate(chosen if seed is None else chosen[chosen != seed])

    found = []
    for estimate in (first, ratio):
        truth, ends = estimate(np.arange(tables[0].shape[1])), []
        for _ in range(DRAWS):
            chosen = rng.choice(tables[0].shape[1], seeds, replace=False)
            ends.append(jackknife(partial(without, estimate, chosen), [*chosen]))
        known = [one for one in ends if one is not None]
        holds = np.mean([low <= truth <= high for low, high in known]) if known and truth is not None else math.nan
        found.append((float(holds), float(np.median([(high - low) / 2 for low, high in known] or [math.nan]))))
    return [found[0][0], found[1][0], found[0][1], found[1][1], len(known) / DRAWS]


def main() -> None:
    given = parsed(__doc__, first=3000, cases=10, seeds=30, requests=600)
    print("case  seeds  crossing held  ratio held  crossing +-  ratio +-  with interval  ratio  system", flush=True)
    number, done = given.first, 0
    while done < given.cases:
        spec, goal, strata = drawn(number)
        number += 1
        if strata["layout"] == "apart" or strata["bound"].startswith("p99"):
            continue
        begun_s = time.monotonic()
        other = POLICIES[(POLICIES.index(str(spec.policy)) + 1 + number % 4) % len(POLICIES)]
        sides = [replace(spec, requests=given.requests), replace(spec, policy=other, requests=given.requests)]
        try:
            at = [knee(side, goal) for side in sides]
        except BenchError:
            continue
        if at[0] is None or at[1] is None:
            continue
        done += 1
        rates = [[away * each for away in AWAY] for each in at if each is not None]
        tables = [
            np.array([[attained(side, rate_rps, seed) for seed in range(given.seeds)] for rate_rps in each])
            for side, each in zip(sides, rates, strict=True)
        ]
        for seeds in (5, 10):
            found = held(tables, rates, goal, given.requests, seeds)
            print(
                f"{number - 1:<4}  {seeds:>5}  {found[0]:>13.0%}  {found[1]:>10.0%}  {found[2]:>11.1%}  "
                f"{found[3]:>8.1%}  {found[4]:>13.0%}  {at[1] / at[0]:>5.2f}  {spec.model} {spec.policy}/{other} "
                f"{spec.workload} {strata['arrivals']} {spec.slo} goal {goal:g} ({time.monotonic() - begun_s:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
