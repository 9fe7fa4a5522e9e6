"""Where attainment crosses a goal, from a few blocks of traffic at different rates: a posterior on a grid.

Some requests miss at any rate; of the others logit(attainment) falls on a straight line over ln(rate). Two things keep
a block from its curve. The work that it drew is not the mean: ln(load) is off by a normal deviate with variance `WORK`
over its requests, the same as if its rate were. And requests that wait in one queue miss together: counts are divided
by a clump factor. Scatter of the blocks about the curve, beyond both, widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.stats.crossing import logit

Floats: TypeAlias = npt.NDArray[np.float64]

SLOPES = np.geomspace(2, 200, 18)
"""Slopes -dz/dx that are thought possible, equally likely in their logarithm."""
REACH = math.log(4)
"""How far beyond the rates tried the crossing may lie, in ln(rate)."""
STEPS = 160
FLOORS = (0.0, 0.35, 0.7)
"""Misses at any rate, as shares of those that the goal allows, which are thought equally likely: a few long prompts may
miss by themselves."""
WORK = 1.5
"""Squared coefficient of variation of the work of a request: a little more than exponential. How many requests came is
known, and no part of it."""
CLUMP = 4.0
"""Requests that miss together, beyond those of one load."""
PRIOR_DF = 4.0
"""What the two assumptions count for, in degrees of freedom, against the scatter that is seen."""
NODES, WEIGHTS = (np.asarray(part) for part in np.polynomial.hermite_e.hermegauss(7))
BELOW, ABOVE = 2.0, 2.5
"""Attainment is straight this far from the goal, in logit; beyond it a count tells a side and no more: that of a server
with too much to do depends on how long it had."""


@dataclass(frozen=True, slots=True)
class Block:
    """`met` of `of` values of `requests` requests at a rate; `parts` are the shares of equal parts of it, in order."""

    rate_rps: float
    met: float
    of: float
    requests: float
    parts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Knee:
    """The crossing: median and 95 % interval in req/s, standard deviation of its logarithm, slope, and by how much the
    blocks scatter more than was assumed (a ratio of variances)."""

    rate_rps: float
    low_rps: float
    high_rps: float
    sd: float
    slope: float
    scatter: float


@dataclass(frozen=True, slots=True)
class Most:
    """What a server answers when it has too much to do: it sustains hardly more. `sd` is that of its logarithm."""

    rate_rps: float = math.inf
    sd: float = 1.0


def knee(blocks: Sequence[Block], goal: float, *, most: Most = Most(), scatter: float | None = None) -> Knee:
    """The posterior given these blocks (at least one); `scatter` where it is known."""
    rates = [block.rate_rps for block in blocks]
    x = np.linspace(math.log(min(rates)) - REACH, math.log(max(rates)) + REACH, STEPS)
    for zoom in (False, True):  # twice, the second time on a grid that is as fine as the answer
        more = scatter or 1.0
        for _ in range(1 if scatter is not None else 2):  # the scatter and the curve depend on each other
            weight = _weight(blocks, goal, x, more)
            weight *= np.exp(-((np.maximum(0, x - math.log(most.rate_rps)) / most.sd) ** 2) / 2)
            weight /= weight.sum()
            by_floor, by_slope, by_rate = (weight.sum(axis=axes) for axes in ((1, 2), (0, 2), (0, 1)))
            total = np.cumsum(by_rate)
            low, median, high = (float(np.interp(share, total, x)) for share in (0.025, 0.5, 0.975))
            slope = math.exp(float((np.log(SLOPES) * by_slope).sum()))
            floor = float(by_floor @ FLOORS)
            if scatter is None:
                more = _scatter(blocks, goal, median, slope, floor)
        if not zoom:
            width = max(high - low, 0.01)
            x = np.linspace(low - 1.5 * width, high + 1.5 * width, STEPS)
    mean = float((x * by_rate).sum())
    sd = math.sqrt(float(((x - mean) ** 2 * by_rate).sum()))
    return Knee(math.exp(median), math.exp(low), math.exp(high), sd, slope, more)


def _weight(blocks: Sequence[Block], goal: float, x: Floats, scatter: float) -> Floats:
    """(floors, slopes, rates) the posterior probability of each point of the grid."""
    total = np.zeros((len(FLOORS), len(SLOPES), len(x)))
    least, most = window(goal)
    for block in blocks:
        met = min(max(block.met, least * block.of), most * block.of)
        away = math.log(block.rate_rps) - x + math.sqrt(WORK * scatter / block.requests) * NODES[:, None, None]
        for place, floor in enumerate(FLOORS):
            p = _attained(SLOPES[:, None] * away, goal, floor)  # (nodes, slopes, rates), as numpy reduces fastest
            found = (met * np.log(p) + (block.of - met) * np.log1p(-p)) / (CLUMP * scatter)
            best = found.max(axis=0)
            total[place] += best + np.log((np.exp(found - best) * WEIGHTS[:, None, None]).sum(axis=0))
    found = np.exp(total - total.max())
    return np.asarray(found / found.sum())


def _attained(away: Floats, goal: float, floor: float) -> Floats:
    """Attainment so far above the crossing, in logit, within what is taken as it is."""
    always = floor * (1 - goal)
    z = logit(goal / (1 - always)) - away
    return np.clip((1 - always) / (1 + np.exp(-np.clip(z, -30, 30))), *window(goal))


def window(goal: float) -> tuple[float, float]:
    """The shares between which attainment is taken as it is."""
    low, high = logit(goal) - BELOW, logit(goal) + ABOVE
    return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))


def _scatter(blocks: Sequence[Block], goal: float, at: float, slope: float, floor: float) -> float:
    """Squares of the distances from the curve over those assumed, where there are more blocks than the curve takes, or
    those of the parts of a block from its mean where these are more."""
    among, among_df = PRIOR_DF, PRIOR_DF
    within, within_df = PRIOR_DF, PRIOR_DF
    least, most = window(goal)
    for block in blocks:
        p = float(_attained(np.asarray(slope * (math.log(block.rate_rps) - at)), goal, floor))
        share = min(max(block.met / block.of, least), most)
        square = (share - p) ** 2 / _variance(block, p, slope)
        if least < share < most or square > 1:  # a side that is where it should be tells nothing
            among += square
            among_df += 1
        if least < share < most and block.parts:
            within += float(np.var(block.parts)) / _variance(block, share, slope)
            within_df += len(block.parts) - 1
    return max(1.0, among / max(PRIOR_DF, among_df - 2), within / within_df)


def _variance(block: Block, p: float, slope: float) -> float:
    """Of the share of a block, as it is assumed."""
    spread = p * (1 - p)
    return CLUMP * spread / block.of + (spread * slope) ** 2 * WORK / block.requests
