"""Arrival times from independent gaps.

Gamma gaps of mean 1: the gap law inside a changing rate.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import Checked
from workloads.arrivals._operational import Gaps

CHUNK = 4096  # gaps drawn at once, whatever the caller takes, so that its chunks do not change the stream


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


# outside, the sums of float64 gaps lose the law
GapCv: TypeAlias = Annotated[float, Meta(ge=1e-3, le=100.0, description="equal gaps are 'constant'")]


def gamma_gaps(rng: np.random.Generator, cv: float) -> Gaps:
    """Draws of gamma gaps of mean 1 and coefficient of variation `cv`; 1 is exponential (Poisson arrivals)."""
    if cv == 1:
        return lambda n: rng.standard_exponential(n)
    return lambda n: rng.gamma(1 / cv**2, cv**2, n)


def gamma_cdf(gaps: np.ndarray, cv: float) -> np.ndarray:
    """Probability that a gap of that law is at most each of `gaps` (N,)."""
    from scipy.special import gammainc  # heavy: only where a run is judged

    return np.asarray(gammainc(1 / cv**2, np.maximum(gaps, 0) / cv**2))
