"""Where attainment crosses a goal: of independent runs by a line, of the points of a curve by interpolation.

Of the mean share of independent runs, as a function of x = ln(rate):

One observation is the share of one run, whatever its requests have in common. Near the crossing

    logit E[share] = logit(goal) - slope * (x - crossing)

is fitted by quasi-likelihood (Papke and Wooldridge, "Econometric methods for fractional response variables", 1996);
its errors are those of seeds (the sandwich of Liang and Zeger, "Longitudinal data analysis using generalized linear
models", 1986), so runs of one seed at several rates count as one. `controls` are what a run drew beyond what runs draw
on average: the part of the shares that they explain is taken off (Lavenberg and Welch, "A perspective on the use of
control variables", 1981), and the error of that average is added.

A curve over all points is made monotone first (pool adjacent violators), then interpolated linearly in
logit(attainment) against the logarithm of the load; linear in attainment would be biased by -0.3%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.stats.tails import student

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

INFLATE = 1.1
"""Of Student's t, because the width is looked at more than once: two or three times in a search. At 1.06 93 % of
intervals held on queues 0 to 79 of tests/perf/capacity_queues.py."""
CLUMPS = 8.0
"""Misses that lie in fewer runs than this make a mean that is skewed: its interval is widened."""
WINDOW, NARROWEST, WIDEST = 1.1, 0.03, 0.5
"""Runs within so much of the goal in logits, and within these distances in x, are near enough to lie on one line. With
0.2 a flat curve was read off two runs, and an answer was 15 % off."""
FEWEST_SEEDS, PER_CONTROL = 3, 8
"""Seeds of a line, and how many there must be for each control, the first of which count first."""
FLATTEST, STEEPEST = 0.1, 600.0
"""Slopes outside of these are noise."""
PLANNED = 0.9
"""Part of the half interval that runs are planned for at first: scatter and slope of few seeds say too much as often as
too little, and runs that were not needed are lost, while missing ones are added. With 1.2 finals took a fifth more."""
NEWTON_STEPS, WINDOWS, HALVINGS = 100, 5, 60


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Runs: the seed, x = ln(rate), the share met and the controls of each; all (runs,), controls (runs, k)."""

    seed: Ints
    x: Floats
    share: Floats
    controls: Floats
    half_a_miss: float
    """No share counts as nearer to 0 or 1 than this."""

    def __len__(self) -> int:
        return len(self.x)

    def part(self, wanted: npt.NDArray[np.bool_]) -> Shares:
        """The runs where `wanted` (runs,) is True."""
        return Shares(
            self.seed[wanted], self.x[wanted], self.share[wanted], self.controls[wanted], self.half_a_miss
        )  # fmt: skip

    @property
    def clumps(self) -> float:
        """In how many seeds the misses lie: fewer than there are where few hold most of them."""
        misses = np.bincount(np.unique(self.seed, return_inverse=True)[1], 1 - self.share)
        return max(1.0, float(misses.sum() ** 2 / max(1e-12, float((misses**2).sum()))))


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A fitted line. `crossing` is in x; `scatter` is the standard deviation of the shares about the line, by seed."""

    goal: float
    crossing: float
    slope: float
    slope_error: float
    seeds: int
    degrees: int
    scatter: float
    clumps: float
    beta: Floats
    near: npt.NDArray[np.bool_]
    """(runs,) the runs that it was fitted to."""
    _residual: Floats
    _middle: float
    _theta: Floats
    _covariance: Floats

    @property
    def sharpness(self) -> float:
        """By how much the share falls per unit of x at the goal."""
        return self.goal * (1 - self.goal) * self.slope

    def interval(self, inflate: float = INFLATE) -> tuple[float, float]:
        """The x at which the line is within its error of the goal (Fieller).

        Where the slope may be none it is that of the slope found, widened by its error; infinite where the error is
        larger than the slope.
        """
        q = (student(self.degrees + 1) * inflate) ** 2
        level, slope, v = self._theta[0] - logit(self.goal), self._theta[1], self._covariance
        a = slope**2 - q * v[1, 1]
        b = 2 * (level * slope - q * v[0, 1])
        under = b * b - 4 * a * (level**2 - q * v[0, 0])
        wider = math.sqrt(max(1.0, CLUMPS / self.clumps))
        if a > 0 and under >= 0:
            ends = [self._middle + (-b + sign * math.sqrt(under)) / (2 * a) for sign in (-1, 1)]
        elif self.slope_error < self.slope:
            away = self.crossing - self._middle
            error = math.sqrt(max(0.0, v[0, 0] + 2 * away * v[0, 1] + away**2 * v[1, 1])) / self.slope
            half = math.sqrt(q) * error * (1 + self.slope_error / self.slope)
            ends = [self.crossing - half, self.crossing + half]
        else:
            return -math.inf, math.inf
        low, high = (self.crossing + wider * (end - self.crossing) for end in ends)
        return low, high


@dataclass(frozen=True, slots=True)
class Root:
    """Where runs that were planned beforehand cross the goal, on the slope of a line.

    `by_seed` is what each of them says by itself; the mean of these values is `x`.
    """

    x: float
    half: float
    scatter: float
    by_seed: dict[int, float]


def near(runs: Shares, goal: float, center: float, width: float) -> Line | None:
    """The line through the runs near its own crossing, looked for from `center`; None where there is none."""
    line = None
    for _ in range(WINDOWS):
        inside = np.abs(runs.x - center) <= width + 1e-9
        fitted = _controlled(runs.part(inside), goal) if inside.sum() > FEWEST_SEEDS else None
        if fitted is None:
            break
        line = replace(fitted, near=inside)
        before = center, width
        x = runs.x[inside]
        center = min(max(line.crossing, float(x.min())), float(x.max()))
        width = min(max(WINDOW / line.slope, NARROWEST), WIDEST)
        if abs(center - before[0]) < 1e-3 and abs(width - before[1]) < 0.1 * before[1]:
            break
    return line


def _controlled(runs: Shares, goal: float) -> Line | None:
    share = np.clip(runs.share, runs.half_a_miss, 1 - runs.half_a_miss)
    line = _fitted(runs, share, goal, 2)
    varies = np.flatnonzero(runs.controls.std(axis=0) > 1e-9)
    varies = varies[: 0 if line is None else line.seeds // PER_CONTROL]
    k = len(varies)
    if line is None or not k:
        return line
    residual = line._residual  # noqa: SLF001
    for _ in range(2):
        beta = np.zeros(runs.controls.shape[1])
        beta[varies] = np.linalg.lstsq(runs.controls[:, varies], residual, rcond=None)[0]
        explained = runs.controls @ beta
        refit = _fitted(runs, share - explained, goal, 2 + k)
        if refit is None:
            break
        line = replace(refit, beta=beta, clumps=line.clumps)
        residual = refit._residual + explained  # noqa: SLF001
    return line


def _fitted(runs: Shares, share: Floats, goal: float, parameters: int) -> Line | None:
    """The line through shares from which the controls have been taken off."""
    distinct, place = np.unique(runs.seed, return_inverse=True)
    if len(distinct) < FEWEST_SEEDS or np.ptp(runs.x) < 1e-6:
        return None
    middle = float(runs.x.mean())
    u = runs.x - middle
    theta = np.array([logit(min(max(float(share.mean()), 1e-6), 1 - 1e-6)), -6.0])
    for _ in range(NEWTON_STEPS):
        p = _logistic(theta[0] + theta[1] * u)
        weight = p * (1 - p)
        mixed = float((weight * u).sum())
        curvature = np.array([[weight.sum(), mixed], [mixed, (weight * u * u).sum()]]) + 1e-12 * np.eye(2)
        residual = share - p
        step = np.linalg.solve(curvature, [residual.sum(), (residual * u).sum()])
        if not np.isfinite(step).all():
            return None
        theta = theta + step * min(1.0, 1.5 / max(1e-9, abs(step[0])), 15 / max(1e-9, abs(step[1])))
        if np.abs(step).max() < 1e-8:
            break
    if not FLATTEST < -theta[1] < STEEPEST:
        return None
    seeds = len(distinct)
    degrees = max(1, seeds - parameters)
    by_seed = np.stack([np.bincount(place, residual, seeds), np.bincount(place, residual * u, seeds)])
    inverse = np.linalg.inv(curvature)
    covariance = inverse @ (by_seed @ by_seed.T * seeds / degrees) @ inverse
    return Line(
        goal=goal,
        crossing=middle + float((logit(goal) - theta[0]) / theta[1]),
        slope=-float(theta[1]),
        slope_error=math.sqrt(covariance[1, 1]),
        seeds=seeds,
        degrees=degrees,
        scatter=math.sqrt(float((residual**2).mean()) * seeds / degrees),
        clumps=runs.clumps,
        beta=np.zeros(runs.controls.shape[1]),
        near=np.ones(len(runs), bool),
        _residual=residual,
        _middle=middle,
        _theta=theta,
        _covariance=covariance,
    )


def root(line: Line, runs: Shares, drawn_variance: Floats) -> Root:
    """Where `runs` alone cross the goal; the slope and what the controls explain are those of the line.

    The number of these runs does not depend on what they say, so stopping does not select narrow intervals.
    `drawn_variance` (k, k) is the variance of the average that the controls are centred at: 0 where it is known.
    """
    share, n = runs.share - runs.controls @ line.beta, len(runs)
    target, middle = logit(line.goal), float(runs.x.mean())
    low, high = middle - 1, middle + 1
    for _ in range(HALVINGS):
        x = (low + high) / 2
        expected = _logistic(target - line.slope * (runs.x - x))
        low, high = (x, high) if float((share - expected).sum()) > 0 else (low, x)
    scatter = float((share - expected).std(ddof=1 + int(np.count_nonzero(line.beta))))
    falls = float((expected * (1 - expected)).mean()) * line.slope
    error = math.sqrt(scatter**2 / n + float(line.beta @ drawn_variance @ line.beta)) / falls
    away = abs(x - middle) * line.slope_error / line.slope
    skewed = math.sqrt(max(1.0, CLUMPS / runs.clumps))
    unsure = 1 + 0.5 * line.slope_error / line.slope
    by_seed = dict(zip(runs.seed.tolist(), (x + (share - expected) / falls).tolist(), strict=True))
    return Root(x, student(n - 1) * math.hypot(error, away) * unsure * INFLATE * skewed, scatter, by_seed)


def runs_needed(line: Line, scatter: float, tolerance: float, fewest: int) -> int:
    """Runs that give a root whose half interval is the tolerance in x; at least one miss a run on average."""
    n = fewest
    for _ in range(3):
        half = PLANNED * student(max(4, n)) * scatter / (line.sharpness * tolerance)
        n = max(fewest, math.ceil(1 / (1 - line.goal)), math.ceil(half**2))
    return n


def _logistic(z: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))), float)


def logit(share: float) -> float:
    """ln(share / (1 - share)); a goal of 100% counts as a miss in ten million, because a curve never reaches it."""
    share = min(share, 1 - 1e-7)
    return math.log(share / (1 - share))


def falling(values: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """The values made to fall, by pooling neighbours that do not; of the points that a report draws."""
    return monotone(values[::-1], sizes[::-1])[::-1]


def monotone(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The values made to rise, or to stay: neighbours that fall get their weighted mean.

    Note: scipy's isotonic_regression gives the same, and takes longer to load than a short run.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight and number of values of each; the means rise
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, size, number = blocks.pop()
            mean, total, count = (size * before + total * mean) / (size + total), size + total, number + count
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]


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
    weights = np.asarray(requests, np.float64)
    fitted = np.asarray((monotone if rising else falling)(attainment, requests), np.float64)
    keeps = fitted >= goal - 1e-12
    if keeps.all() or not keeps.any():
        return Crossing(None, None, "above" if keeps.all() else "below")
    before = int(np.flatnonzero(keeps[:-1] != keeps[1:])[0])
    ends = slice(before, before + 2)
    x = np.log(np.asarray(at, np.float64)[ends])
    y = _logit(fitted[ends], weights[ends])
    goal_y = _logit(np.array([goal]), weights[ends].max(keepdims=True))[0]
    share = (goal_y - y[0]) / (y[1] - y[0]) if y[0] != y[1] else 0.0
    crossed_at = float(np.exp(x[0] + min(max(share, 0.0), 1.0) * (x[1] - x[0])))
    return Crossing(crossed_at, (float(at[before]), float(at[before + 1])))


def _logit(share: Floats, requests: Floats) -> Floats:
    least = 0.5 / requests
    inside = np.clip(share, least, 1 - least)
    return np.log(inside / (1 - inside))
