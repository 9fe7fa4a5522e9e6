"""Poisson arrivals: independent exponential gaps, as from very many independent users."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive
from workloads.arrivals._renewal import times_from


@dataclass(frozen=True, slots=True)
class Poisson:
    """A homogeneous Poisson process of `rate_rps` requests per second.

    Gaps have mean 1/rate_rps seconds and coefficient of variation 1. Source: the usual assumption of the
    field, e.g. DistServe (OSDI 2024, section 6.1); real traffic is burstier (see `gamma`, `trace`).
    """

    rate_rps: float = 1.0

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps)

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        return times_from(lambda n: rng.exponential(1 / self.rate_rps, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        return np.asarray(-np.expm1(-self.rate_rps * np.maximum(gaps_s, 0)))
