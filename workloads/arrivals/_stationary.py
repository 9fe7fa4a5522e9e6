"""Gap laws of mean 1 for processes that were already running when they are first looked at.

A renewal process that begins with an ordinary gap begins with an arrival just before time 0, and so with a burst where
the law is bursty: (cv**2 - 1) / 2 arrivals too many, which is 25 for a gamma law of shape 0.02. The first gap must be
what is left of the gap under way: a gap chosen with probability in proportion to its length, cut at a uniform point.
Source: Cox, Renewal Theory (1962), sections 5.1 and 5.4.
"""

import math

import numpy as np

from workloads.arrivals._operational import Gaps


def gamma(shape: float, rng: np.random.Generator, *, running: bool = False) -> Gaps:
    """Draws of gamma gaps of mean 1 and this shape; where `running`, the very first is what is left of one."""
    gaps: Gaps = lambda n: rng.gamma(shape, 1 / shape, n)  # noqa: E731  # one line a law
    return _after(float(rng.random() * rng.gamma(shape + 1, 1 / shape)), gaps) if running else gaps


def weibull(shape: float, rng: np.random.Generator, *, running: bool = False) -> Gaps:
    """Draws of Weibull gaps of mean 1 and this shape; where `running`, the very first is what is left of one."""
    scale = 1 / math.gamma(1 + 1 / shape)
    gaps: Gaps = lambda n: scale * rng.weibull(shape, n)  # noqa: E731  # one line a law
    if not running:
        return gaps
    return _after(float(rng.random() * scale * rng.gamma(1 + 1 / shape) ** (1 / shape)), gaps)


def _after(first: float, gaps: Gaps) -> Gaps:
    """`gaps`, with `first` in place of the first draw of all."""
    pending = [first]

    def draw(n: int) -> np.ndarray:
        drawn = gaps(n)
        if pending and n:
            drawn[0] = pending.pop()
        return drawn

    return draw
