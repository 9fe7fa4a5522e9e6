"""Attainment against SLO scale, exactly: all bounds times a factor, for every factor in one pass.

Source of the axis: Zhong et al., DistServe, OSDI 2024, figures 8 and 9, drawn there from a run per point.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.api import Bound, Slo
from harness.metrics.objective import BoundScore, Score, Seen, score

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Attainment at each factor: joint, and per bound, as it is at factor 1.

    Where every bound is on a percentile no single request is scored, and the joint attainment is NaN.
    `ratio` (requests,) is the factor from which on a request meets everything, infinite for one that failed. Bounds
    on percentiles are not in the joint attainment; `holds_from` has the factor from which on each of them holds.
    """

    factors: Floats
    attainment: Floats
    bounds: dict[Bound, Floats]
    ratio: Floats
    holds_from: dict[Bound, float]

    def crossing(self, goal: float) -> float | None:
        """The smallest factor at which a share `goal` of the requests meets the bounds; None when none does."""
        if not len(self.ratio):
            return None
        needed = max(1, int(np.ceil(goal * len(self.ratio) - 1e-9)))
        factor = float(np.partition(self.ratio, needed - 1)[needed - 1])
        return factor if np.isfinite(factor) else None


def scaled(slo: Slo, factor: float) -> Slo:
    """The SLO with every limit times `factor`; the bounds that requests bring along are not in it."""
    return dataclasses.replace(slo, bounds=tuple(dataclasses.replace(b, limit=b.limit * factor) for b in slo.bounds))


def curve(seen: Seen, slo: Slo, factors: Sequence[float], scored: Score | None = None) -> Curve:
    """The curve over rising `factors`: at each what scoring under the scaled SLO gives, equal to the last bit.

    `scored` is the score under the SLO itself, where it is known.
    """
    rising = np.asarray(factors, np.float64)
    scored = score(seen.table, slo, seen) if scored is None else scored
    scores = scored.bounds
    per_request = [b for b in scores if b.bound.percentile is None]
    failed = np.where(seen.ok, 0, len(rising))  # (requests,) beyond every factor
    places: dict[Bound, Ints] = {}  # (requests,) the first factor at which each request meets the bound
    for b in per_request if len(rising) else ():
        place = first_within(seen.values(b.bound.metric), b.limit_s, rising)
        places[b.bound] = np.maximum(np.where(b.applies, place, 0), failed)
    joint = np.maximum.reduce([failed, *places.values()]) if len(rising) else np.empty(0, np.int64)
    return Curve(
        rising,
        _shares(joint, len(rising)) if scored.by_request and not scored.unknown else np.full(len(rising), np.nan),
        {b.bound: _shares(places[b.bound][b.applies], len(rising)) if places else np.empty(0) for b in per_request},
        _joint_ratio(seen, per_request),
        {
            b.bound: 0.0 if b.value_s is None or np.isnan(b.value_s) else b.value_s / b.bound.limit
            for b in scores
            if b.bound.percentile is not None
        },
    )


def first_within(values: Floats, limit: Floats | float, factors: Floats) -> Ints:
    """(requests,) the first of the rising factors with value <= factor * limit; 0 for no value, their number for none.

    Note: dividing by a limit of each request would round otherwise than multiplying it.
    """
    if np.ndim(limit) == 0:
        return np.where(np.isnan(values), 0, np.searchsorted(factors * limit, values))
    places = np.zeros(len(values), np.int64)
    for factor in factors:
        places += values > factor * limit
    return places


def _joint_ratio(seen: Seen, each: Sequence[BoundScore]) -> Floats:
    """(requests,) the factor from which on each request meets all of the bounds."""
    joint = np.where(seen.ok, 0.0, np.inf)
    for scored in each:
        with np.errstate(invalid="ignore"):  # a task that failed, of a request that it does not bind: inf / inf
            ratio = seen.values(scored.bound.metric) / scored.limit_s
        if not scored.applies.all():
            ratio[~scored.applies] = 0.0
        np.fmax(joint, ratio, out=joint)  # not np.maximum: a request without a value meets the bound
    return joint


def _shares(places: Ints, factors: int) -> Floats:
    """At each factor the share of requests whose place is at or before it; NaN of no requests."""
    met = np.cumsum(np.bincount(places, minlength=factors + 1)[:factors])
    return met / len(places) if len(places) else np.full(factors, np.nan)
