"""A capacity and its interval from whole trials: a curve per condition, the lowest crossing, a jackknife over seeds.

The mean of single-seed knees would be biased upwards and its t interval too short; see docs/design.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.stats.curves import Curve, crossing, fit

if TYPE_CHECKING:
    from harness.experiments.capacity.conditions import Condition
    from harness.experiments.capacity.trials import Trial

CONFIDENCE = 0.95
FITTED = 2
"""Degrees of freedom that the fit takes from the seeds: a level and a slope."""

FEWEST_SEEDS = 5
"""Fewer give no interval: Student's t with so few is too wide to be useful."""

NEAR, NEAR_LOGIT = math.log(1.25), 2.0
"""Trials within this of the capacity, in log rate and by the curve in logit(attainment), are fitted by the curve that
decides: further off it is not straight."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The attainment of each trial (trials,) in one condition, as it was found or adjusted for its traffic.

    `error` is the standard error that all of them share: of the long-run mean that the adjustment goes by.
    """

    values: tuple[float, ...]
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A capacity in requests per second; `low` and `high` where there are enough seeds.

    `knees` are the pseudo-values of ln(capacity) by seed: their mean is ln(capacity), and their standard deviation
    over the root of their number its standard error, but for `shared_error`, that of the traffic's long-run mean.
    """

    rate_rps: float
    low_rps: float | None
    high_rps: float | None
    capacity_by_seed: dict[int, float]
    binding: str
    curves: dict[str, Curve]
    shared_error: float = 0.0

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the capacity; infinite without one."""
        if self.low_rps is None or self.high_rps is None:
            return math.inf
        return (self.high_rps - self.low_rps) / (2 * self.rate_rps)


def estimate(
    trials: Sequence[Trial], wanted: Sequence[Condition], measure: Callable[[Sequence[Trial], Condition], Shares]
) -> Estimate | None:
    """The lowest crossing of the conditions with its interval; None where no curve crosses."""
    found = _lowest(trials, wanted, measure)
    if found is None:
        return None
    near = nearby(trials, found.rate_rps, found.curves)
    if not near and (centre_rps := _between(trials, wanted, measure)) is not None:
        near = nearby(trials, centre_rps, {})  # the curve through all trials crosses far away; their means do not
    if near:
        return _with_interval(near, wanted, measure) or _with_interval(trials, wanted, measure)
    return Estimate(found.rate_rps, None, None, {}, found.binding, found.curves, found.error)  # a guess


def nearby(trials: Sequence[Trial], rate_rps: float, curves: Mapping[str, Curve]) -> list[Trial]:
    """The trials near enough to a rate to be fitted there, by how steep the curves are."""
    slope = max((abs(curve.slope) for curve in curves.values()), default=0.0)
    within = min(NEAR, NEAR_LOGIT / slope) if slope else NEAR
    return [t for t in trials if abs(math.log(t.key.rate_rps / rate_rps)) < within]


def _between(
    trials: Sequence[Trial], wanted: Sequence[Condition], measure: Callable[[Sequence[Trial], Condition], Shares]
) -> float | None:
    """The lowest rate at which the means of neighbouring rates cross a goal; None where none is crossed."""
    found = []
    for condition in wanted:
        by_rate: dict[float, list[tuple[float, int]]] = {}
        for t, value in zip(trials, measure(trials, condition).values, strict=True):
            by_rate.setdefault(t.key.rate_rps, []).append((value, t.share(condition.text).of))
        rates = sorted(by_rate)
        means = [float(np.mean([value for value, _ in by_rate[rate]])) for rate in rates]
        sizes = [max(1, sum(size for _, size in by_rate[rate])) for rate in rates]
        found.append(crossing(rates, means, sizes, condition.goal).at)
    return min((rate for rate in found if rate is not None), default=None)


def _with_interval(
    trials: Sequence[Trial], wanted: Sequence[Condition], measure: Callable[[Sequence[Trial], Condition], Shares]
) -> Estimate | None:
    whole = _lowest(trials, wanted, measure)
    if whole is None:
        return None
    # Jackknife over seeds: n * ln(all) - (n - 1) * ln(all but one). Trials of one seed share their traffic and are not
    # independent, so whole seeds are left out, and the pseudo-values of the seeds are what Student's t is taken of.
    seeds = sorted({t.key.seed for t in trials})
    ln = math.log(whole.rate_rps)
    capacity_by_seed: dict[int, float] = {}
    for seed in seeds if len(seeds) > 1 else []:
        without = _lowest([t for t in trials if t.key.seed != seed], wanted, measure)
        if without is None:  # the curve falls only because of one seed, so it has no interval
            return Estimate(whole.rate_rps, None, None, {}, whole.binding, whole.curves)
        capacity_by_seed[seed] = len(seeds) * ln - (len(seeds) - 1) * math.log(without.rate_rps)
    low, high = _interval(list(capacity_by_seed.values()), whole.error)
    if low is None or high is None:
        return Estimate(whole.rate_rps, None, None, capacity_by_seed, whole.binding, whole.curves, whole.error)
    rate_rps = math.exp(float(np.mean(list(capacity_by_seed.values()))))
    return Estimate(rate_rps, low, high, capacity_by_seed, whole.binding, whole.curves, whole.error)


def _interval(capacity_by_seed: Sequence[float], shared_error: float) -> tuple[float | None, float | None]:
    """Student's t on the pseudo-values, widened by the error that they share."""
    if len(capacity_by_seed) < FEWEST_SEEDS:
        return None, None
    low, high = mean_interval(Shares(tuple(capacity_by_seed), shared_error))
    return math.exp(low), math.exp(high)


def mean_interval(values: Shares) -> tuple[float, float]:
    """The interval of the mean of independent values, one per seed, widened by the error that they share."""
    from scipy.special import stdtrit  # heavy

    count = len(values.values)
    error = math.hypot(float(np.std(values.values, ddof=1)) / math.sqrt(count), values.error)
    half = float(stdtrit(count - FITTED, 0.5 + CONFIDENCE / 2)) * error
    mean = float(np.mean(values.values))
    return mean - half, mean + half


@dataclass(frozen=True, slots=True)
class _Crossing:
    rate_rps: float
    binding: str
    curves: dict[str, Curve]
    error: float


def _lowest(
    trials: Sequence[Trial], wanted: Sequence[Condition], measure: Callable[[Sequence[Trial], Condition], Shares]
) -> _Crossing | None:
    """Where the first of the conditions stops to hold; None where one of them has no falling curve."""
    rates = [t.key.rate_rps for t in trials]
    curves: dict[str, Curve] = {}
    lowest: tuple[float, str, float] | None = None
    for condition in wanted:
        shares = measure(trials, condition)
        curve = fit(rates, shares.values, [t.share(condition.text).of for t in trials])
        if curve is None:
            continue
        curves[condition.text] = curve
        rate_rps = curve.crossing(condition.goal)
        if rate_rps is not None and (lowest is None or rate_rps < lowest[0]):
            error = shares.error / (condition.goal * (1 - condition.goal) * curve.slope)
            lowest = rate_rps, condition.text, error
    return None if lowest is None else _Crossing(lowest[0], lowest[1], curves, lowest[2])


def curve_of(
    trials: Sequence[Trial], condition: Condition, measure: Callable[[Sequence[Trial], Condition], Shares]
) -> Curve | None:
    """The curve of one condition through all trials."""
    shares = measure(trials, condition).values
    return fit([t.key.rate_rps for t in trials], shares, [t.share(condition.text).of for t in trials])


def measured_shares(trials: Sequence[Trial], condition: Condition) -> Shares:
    """The attainment of each trial as it was measured."""
    found = [t.share(condition.text) for t in trials]
    return Shares(tuple(s.met / s.of if s.of else 1.0 for s in found))
