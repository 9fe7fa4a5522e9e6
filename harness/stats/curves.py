"""Attainment as a function of the rate: straight in logit(attainment) over log(rate), fitted to trials of any seeds.

A least-squares line through logits would be biased by trials near 100%; the quasi-likelihood of a logistic curve takes
shares as they are (Papke and Wooldridge, "Econometric methods for fractional response variables", 1996).

Where a curve of attainment crosses a goal: between two points, by interpolation.

Attainment over all points is made monotone first (pool adjacent violators), then interpolated linearly in
logit(attainment) against the logarithm of the load; linear in attainment would be biased by -0.3%.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

STEPS = 60
"""Most steps of Newton's method; some 6 are enough wherever there is an answer."""

FLATTEST = 1e-3
"""A curve that falls by less than this in logit(attainment) while the rate grows e-fold does not fall."""


@dataclass(frozen=True, slots=True)
class Curve:
    """logit(attainment) = `level` - `slope` * ln(rate / `centre_rps`)."""

    centre_rps: float
    level: float
    slope: float

    def at(self, rate_rps: float) -> float:
        return 1 / (1 + math.exp(-self.logit(rate_rps)))

    def logit(self, rate_rps: float) -> float:
        """logit(attainment) at a rate, kept within what a number can hold."""
        found = self.level - self.slope * math.log(rate_rps / self.centre_rps)
        return max(-700.0, min(700.0, found))

    def crossing(self, goal: float) -> float | None:
        """The rate at which attainment is `goal`; None where the curve does not fall."""
        if self.slope < FLATTEST:
            return None
        away = (self.level - logit(goal)) / self.slope
        return self.centre_rps * math.exp(away) if abs(away) < 20 else None


def logit(share: float) -> float:
    """ln(share / (1 - share)); a goal of 100% counts as a miss in ten million, because a curve never reaches it."""
    share = min(share, 1 - 1e-7)
    return math.log(share / (1 - share))


def fit(rates_rps: Sequence[float], shares: Sequence[float], sizes: Sequence[float]) -> Curve | None:
    """The curve through the shares (trials,) of trials of `sizes` requests; None where there is no one curve.

    Each rate has half a request added that met and half a request that missed, so that rates at which no request missed
    leave the slope finite.
    """
    x = np.log(np.asarray(rates_rps))
    if not len(x) or np.ptp(x) < 1e-9:
        return None
    centre = float(x.mean())
    y, n = np.asarray(shares, float), np.asarray(sizes, float)
    distinct = np.unique(x)
    y = np.concatenate([y, np.full(len(distinct), 0.5)])
    n = np.concatenate([n, np.ones(len(distinct))])
    found = _newton(np.concatenate([x, distinct]) - centre, y, n / n.sum())
    return None if found is None else Curve(math.exp(centre), float(found[0]), -float(found[1]))


def _newton(x: Floats, y: Floats, weight: Floats) -> Floats | None:
    """The level and the rise of the logistic curve whose quasi-likelihood is greatest."""
    design = np.column_stack([np.ones_like(x), x])
    mean = float(np.clip((weight * y).sum(), 1e-6, 1 - 1e-6))
    found = np.array([logit(mean), 0.0])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(design @ found, -40, 40)))
        curvature = (design * (weight * np.maximum(p * (1 - p), 1e-9))[:, None]).T @ design
        step = np.linalg.solve(curvature, design.T @ (weight * (y - p)))
        scale = min(1.0, 3.0 / max(1e-12, float(np.abs(step).max())))
        found = found + scale * step
        if float(np.abs(step).max()) < 1e-9:
            return found
    return None


def falling(values: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The values made to fall, by pooling neighbours that do not; of the points that a report draws."""
    from scipy.optimize import isotonic_regression  # heavy

    return [float(v) for v in isotonic_regression(values, weights=sizes, increasing=False).x]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The goal is crossed at `at`, which lies between the points `between`; None for both where it is not.

    `side` tells then whether all points are "above" or "below" the goal.
    """

    at: float | None
    between: tuple[float, float] | None
    side: Literal["above", "below"] | None = None


def crossing(
    at: Sequence[float], attainment: Sequence[float], requests: Sequence[int], goal: float, *, rising: bool = False
) -> Crossing:
    """Where attainment at the points `at` (above 0, in order) falls below `goal`, or rises to it when `rising`.

    `requests` stand behind each point: they are its weight, and no attainment counts as nearer to 0 or 1 than half a
    request. Points that lie exactly on the goal keep it.
    """
    from scipy.optimize import isotonic_regression  # heavy

    weights = np.asarray(requests, np.float64)
    fitted = isotonic_regression(np.asarray(attainment, np.float64), weights=weights, increasing=rising).x
    keeps = np.asarray(fitted) >= goal - 1e-12
    if keeps.all() or not keeps.any():
        return Crossing(None, None, "above" if keeps.all() else "below")
    left = int(np.flatnonzero(keeps[:-1] != keeps[1:])[0])
    ends = slice(left, left + 2)
    x = np.log(np.asarray(at, np.float64)[ends])
    y = _logit(np.asarray(fitted)[ends], weights[ends])
    goal_y = _logit(np.array([goal]), weights[ends].max(keepdims=True))[0]
    share = (goal_y - y[0]) / (y[1] - y[0]) if y[0] != y[1] else 0.0
    found = float(np.exp(x[0] + min(max(share, 0.0), 1.0) * (x[1] - x[0])))
    return Crossing(found, (float(at[left]), float(at[left + 1])))


def _logit(share: Floats, requests: Floats) -> Floats:
    least = 0.5 / requests
    inside = np.clip(share, least, 1 - least)
    return np.log(inside / (1 - inside))
