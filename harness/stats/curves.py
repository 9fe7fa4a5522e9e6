"""Where a curve of attainment crosses a goal: between two points, by interpolation.

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


def logit(share: float) -> float:
    """ln(share / (1 - share)); a goal of 100% counts as a miss in ten million, because a curve never reaches it."""
    share = min(share, 1 - 1e-7)
    return math.log(share / (1 - share))


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
