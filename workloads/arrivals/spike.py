"""Spike arrivals: a steady rate that is multiplied for a short time, once or again and again."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive
from workloads.arrivals._path import Path, flat
from workloads.arrivals._renewal import check_cv, gamma_cdf


@dataclass(frozen=True, slots=True)
class Spike:
    """A base rate that is `factor` times as high for `for_s` seconds from `at_s` seconds on, then each `every_s`.

    `rate_rps` is the long-run mean in requests per second: without `every_s` that is the base rate, with it the base
    rate is rate_rps / (1 + (factor - 1) for_s / every_s). A factor below 1 is a dip, 0 an outage of the clients.
    Inside, gamma gaps of coefficient of variation `cv` in operational time (the integral of the rate); cv = 1 is
    Poisson. Source: the spike test of load testing (k6 guides, "spike testing"); time change as in Daley and
    Vere-Jones, An Introduction to the Theory of Point Processes (2003), section 7.4.
    """

    rate_rps: float = 1.0
    factor: float = 5.0
    at_s: float = 60.0
    for_s: float = 10.0
    every_s: float | None = None
    cv: float = 1.0

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps, for_s=self.for_s)
        check_cv(self.cv)
        for name, value in (("factor", self.factor), ("at_s", self.at_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0, got {value:g}.")
        if self.every_s is not None and not self.for_s < self.every_s < math.inf:
            raise ValueError(f"every_s must be longer than for_s ({self.for_s:g} s), got {self.every_s:g} s.")

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    @property
    def base_rps(self) -> float:
        """Rate outside the spikes, requests per second."""
        if self.every_s is None:
            return self.rate_rps
        return self.rate_rps / (1 + (self.factor - 1) * self.for_s / self.every_s)

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        return self._path().times(rng, self.cv)

    def gap_cdf(self, gaps: np.ndarray) -> np.ndarray:
        """Probability that a gap in operational time (mean 1) is at most each of `gaps` (N,)."""
        return gamma_cdf(gaps, self.cv)

    def operational_time(self, times_s: np.ndarray) -> np.ndarray:
        return self._path().operational_time(times_s)

    def _path(self) -> Path:
        before, spike = flat(self.at_s, self.base_rps), flat(self.for_s, self.factor * self.base_rps)
        if self.every_s is None:
            return Path(before + spike, flat(math.inf, self.base_rps))
        return Path(before, spike + flat(self.every_s - self.for_s, self.base_rps))
