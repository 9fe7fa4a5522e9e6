"""The conditions of a capacity: shares of requests, each with the goal that it has to reach.

Also the options of a search beside those of a run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness import values as check
from harness.api import Bound, Slo
from harness.errors import UsageError, no_such
from harness.metrics.measure import metrics, succeeded
from harness.metrics.objective import JOINT, ShareKey, score
from harness.options import RunSpec
from harness.spec import seconds
from harness.stats.tails import at_least

Mask: TypeAlias = npt.NDArray[np.bool_]
Definition = Literal["joint", "separate"]
SURE, TELLS = 1.5e-3, 0.05
"""Requests tell a side that are that unlikely at the goal itself: 29 of 29 for one of 90 %, and 12 of 12 do not.
A trial is ended early, and a search before its first rate, where so many misses are as unlikely as `SURE`."""
DEFINITIONS: tuple[Definition, ...] = ("joint", "separate")
KEPT = 600
"""Requests of a trial after the warm-up cut, where nothing says how many: a run starts empty, so this belongs to the
definition of a capacity (statistics of the harness, section 6)."""
FOR_WARMUP = 1.1
TOLERANCE = {"virtual": 0.03, "wall": 0.05}
MAX_REQUESTS = 1_000_000
"""Requests that a search over a horizon may simulate, where --max-requests does not say how many."""
BUDGET_S = 600.0
"""Of a search on a wall clock, where nothing says how long it may take."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The share `key` (`joint`, or that of a bound) must be at least `goal`.

    A bound on a percentile is such a share too: p99 of TTFT is at most 0.5 s just when 99% of the requests of all
    trials at a rate have it within 0.5 s.
    """

    key: ShareKey
    goal: float


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One share of one trial: `met` of `of`, and which requests met it where it is a share of requests.

    `mask` (kept,) is in order of request ids; None for shares of gaps and of one class of traffic. `typical_s` is the
    median of the metric, or the percentile that is bounded, where requests were alone.
    """

    key: ShareKey
    met: int
    of: int
    mask: Mask | None = None
    typical_s: float | None = None

    @property
    def is_percentile(self) -> bool:
        """Whether it is that of a bound on a percentile, such as p99:ttft=0.5."""
        return isinstance(self.key, Bound) and self.key.percentile is not None


def conditions(slo: Slo, goal: float, definition: Definition) -> tuple[Condition, ...]:
    """What must hold at a goal: all bounds at once, or each of them, and every bound on a percentile."""
    singles = [Condition(bound, goal) for bound in slo.bounds if bound.percentile is None]
    percentiles = [Condition(b, b.percentile / 100) for b in slo.bounds if b.percentile is not None]
    if definition == "separate" and singles:
        return (*singles, *percentiles)
    return (Condition(JOINT, goal), *percentiles)


def shares(table: pa.Table, slo: Slo) -> tuple[Share, ...]:
    """Every share of a table in order of request ids: joint, then one per bound."""
    scored = score(table, slo)
    counted = [Share(JOINT, int(scored.met.sum()), len(table), scored.met)]
    for row in scored.bounds:
        met, total = (int(part.sum()) for part in row.counts(table))
        of_all = row.applies.all() and not (row.bound.percentile is not None and metrics()[row.bound.metric].pooled)
        counted.append(Share(row.bound, met, total, row.met if of_all else None))
    return tuple(counted)


def with_typical(found: Sequence[Share], table: pa.Table, slo: Slo) -> tuple[Share, ...]:
    """The shares with what was measured of each bound."""
    table = table.filter(pa.array(succeeded(table)))
    shares = [*found]
    for place, bound in enumerate(slo.bounds, 1):
        values = np.asarray(metrics()[bound.metric].of(table), float)
        values = values[np.isfinite(values)]
        if len(values) and bound.tag is None:
            typical_s = float(np.quantile(values, (50.0 if bound.percentile is None else bound.percentile) / 100))
            shares[place] = replace(shares[place], typical_s=typical_s)
    return tuple(shares)


def missed_unloaded(share: Share, goal: float) -> str:
    """Why no rate is low enough, where requests one by one miss a bound."""
    measured = ""
    if share.typical_s is not None:
        what = str(share.key).partition(":")[0] if share.is_percentile else "median"
        measured = f"; their {what} is {share.typical_s:.3g} s"
    return (
        f"even without load only {share.met / max(1, share.of):.1%} of the requests meet {share.key} "
        f"({100 * goal:.4g}% have to{measured}), so no rate is low enough."
    )


def hardly_met(joint: Share, goal: float) -> str:
    """Why it is not decided whether any rate is low enough, where requests one by one meet about the goal."""
    attained = f"{joint.met / max(1, joint.of):.1%}; goal: {100 * goal:.4g}%"
    return (
        f"even without load attainment is hardly the goal ({attained}), so whether any rate is low enough is not "
        "decided; set a slightly higher or lower goal."
    )


def kept_all(shares: Sequence[Share], wanted: Sequence[Condition]) -> bool:
    """Whether a trial that is over keeps its conditions."""
    by_key = {share.key: share for share in shares}
    return all(by_key[c.key].met >= c.goal * by_key[c.key].of for c in wanted)


def tells(met: int, of: int, goal: float, *, good: bool, level: float = TELLS) -> bool:
    """Whether so many of independent requests show that the goal is met, or that it is missed: an exact binomial."""
    return (at_least(met, of, goal) if good else at_least(of - met, of, 1 - goal)) <= level


def missed(shares: Sequence[Share], wanted: Sequence[Condition], level: float = TELLS) -> list[Condition]:
    """The conditions that requests tell to be missed."""
    by_key = {share.key: share for share in shares}
    return [c for c in wanted if tells(by_key[c.key].met, by_key[c.key].of, c.goal, good=False, level=level)]


def sure_misses(goal: float, of: int) -> int:
    """The fewest misses of so many requests that show that a goal is surely missed."""
    return 1 + bisect_left(range(1, of + 1), True, key=lambda misses: at_least(misses, of, 1 - goal) <= SURE)


def bounds_of(slo: Slo, goal: float) -> Iterator[Condition]:
    """Each bound by itself, with the goal that it has: what tells which of them binds."""
    for bound in slo.bounds:
        yield Condition(bound, goal if bound.percentile is None else bound.percentile / 100)


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of `bench capacity` itself; rates in requests per second, None where the clock decides."""

    goals: tuple[float, ...] = (0.9,)
    definition: Definition = "joint"
    tolerance: float | None = None
    budget_s: float | None = None
    at_rps: float | None = None
    from_rps: float | None = None
    max_requests: int | None = None
    """Of the whole search."""
    horizon_s: float | None = None
    """How long a simulated run lasts; None: the search says how long."""
    windows: float | None = None
    """Of simulated runs, so many have to meet the goal, each by itself; None: their mean has to."""

    def tolerance_of(self, clock: str) -> float:
        """Half of the interval, as a share of the capacity, that ends the search."""
        return TOLERANCE[clock] if self.tolerance is None else self.tolerance


def settings(
    goal: str | None,
    conditions: str | None,
    tolerance: str | None,
    budget: str | None,
    at: float | None,
    rate_from: float | None,
    max_requests: int | None = None,
    horizon: str | None = None,
    windows: str | None = None,
) -> Settings:
    """The settings of the options of a command line. Raises UsageError."""
    chosen = Settings(at_rps=at, from_rps=rate_from, max_requests=max_requests)
    if horizon is not None:
        chosen = replace(chosen, horizon_s=_time(horizon, "--horizon"))
    if windows is not None:
        chosen = replace(chosen, windows=_goal_share(windows, "windows"))
    if goal is not None:
        goals = tuple(sorted({_goal_share(part, "goal") for part in goal.split(",")}))
        chosen = replace(chosen, goals=goals)
    if conditions is not None:
        chosen = replace(chosen, definition=definition_of(conditions))
    if tolerance is not None:
        chosen = replace(chosen, tolerance=_goal_share(tolerance, "tolerance"))
    if budget is not None:
        chosen = replace(chosen, budget_s=_time(budget, "--budget"))
    return chosen


def _goal_share(text: str, name: str) -> float:
    fraction = check.share(text.strip(), f"--{name}", "0.03 or 3%" if name == "tolerance" else "0.9 or 90%")
    if fraction == 1:
        more = {"goal": "a queue never keeps all; ask for 99.9%", "windows": "ask for 95%", "tolerance": "take 3%"}[
            name
        ]
        raise UsageError(f"--{name} must be a share below 1, got '{text.strip()}': {more}.")
    return fraction


def definition_of(text: str) -> Definition:
    """Return the definition of that name. Raises UsageError with the nearest one."""
    for definition in DEFINITIONS:
        if definition == text.strip().lower():
            return definition
    raise no_such("condition", text, DEFINITIONS)


def _time(text: str, option: str) -> float:
    time_s = seconds(text, option)
    if not time_s > 0 or math.isinf(time_s):
        raise UsageError(f"{option} must be longer than 0 s, got '{text}'.")
    return time_s


def requests_of(spec: RunSpec) -> int:
    """Requests that a trial sends: the number given, or the usual number and a tenth more for the warm-up."""
    return math.ceil(KEPT * FOR_WARMUP) if spec.requests is None else spec.requests


def exit_code(states: Sequence[str], verdicts: Sequence[str]) -> int:
    """0 known; 1 surely not sustained at the rate of --at, or at no rate; 5 not decided."""
    if verdicts:
        return 1 if "not carried" in verdicts else 5 if "unresolved" in verdicts else 0
    return 1 if "unreachable" in states else 5 if "unresolved" in states else 0
