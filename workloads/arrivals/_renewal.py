"""Arrival times from independent gaps.

Gamma gaps of mean 1: the gap law inside a changing rate, and laws for processes that were already running when they are
first looked at.

A renewal process that begins with an ordinary gap begins with an arrival just before time 0, and so with a burst where
the law is bursty: (cv**2 - 1) / 2 arrivals too many, which is 25 for a gamma law of shape 0.02. The first gap must be
what is left of the gap under way: a gap chosen with probability in proportion to its length, cut at a uniform point.
Source: Cox, Renewal Theory (1962), sections 5.1 and 5.4.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import Checked
from workloads.arrivals._operational import Gaps

CHUNK = 4096  # gaps drawn at once, whatever the caller takes, so that its chunks do not change the stream
# outside, the sums of float64 gaps lose the law
GapCv: TypeAlias = Annotated[float, Meta(ge=1e-3, le=100.0, description="equal gaps are 'constant'")]


def times_from(gaps: Callable[[int], np.ndarray]) -> Iterator[float]:
    """Endless arrival times (s): running sums of `gaps(n)`; the first gap comes before the first arrival."""
    last_s = 0.0
    while True:
        chunk = gaps(CHUNK)
        chunk[0] += last_s
        times = np.cumsum(chunk).tolist()
        last_s = times[-1]
        yield from times


class AtRate(Checked):
    """Arrivals whose long-run mean is their `rate_rps`, requests per second."""

    __slots__ = ()
    rate_rps: float

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps


def gamma_gaps(rng: np.random.Generator, cv: float) -> Gaps:
    """Draws of gamma gaps of mean 1 and coefficient of variation `cv`; 1 is exponential (Poisson arrivals)."""
    if cv == 1:
        return lambda n: rng.standard_exponential(n)
    return lambda n: rng.gamma(1 / cv**2, cv**2, n)


def gamma_cdf(gaps: np.ndarray, cv: float) -> np.ndarray:
    """Probability that a gap of that law is at most each of `gaps` (N,)."""
    from scipy.special import gammainc  # heavy: only where a run is judged

    return np.asarray(gammainc(1 / cv**2, np.maximum(gaps, 0) / cv**2))


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
