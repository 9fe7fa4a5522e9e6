"""Arrivals with one rate and independent gaps: the short ones, a class each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from workloads._checks import positive
from workloads.arrivals._renewal import check_cv, gamma_cdf, times_from


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant arrivals: equal gaps of 1/rate seconds, the first at 0.

    Request i arrives at i / `rate_rps` seconds (`rate_rps` in requests per second).

    Source: the closed schedule of a metronome; nothing is drawn. It has no gap law to test a run against,
    because all its gaps are equal.
    """

    rate_rps: float = 1.0

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps)

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002  # nothing is random here
        return (i / self.rate_rps for i in count())


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson arrivals: independent exponential gaps, as from very many independent users.

    A homogeneous Poisson process of `rate_rps` requests per second.

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


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma arrivals: independent gamma gaps, burstier than Poisson for cv > 1 and more regular for cv < 1.

    A renewal process of `rate_rps` requests per second whose gaps have coefficient of variation `cv`.

    Gamma shape = 1/cv**2, scale = cv**2/rate_rps seconds; cv = 1 is Poisson. Gaps are neither clipped nor
    repeated. Source: BurstGPT (KDD 2025, section 3), and the `burstiness` of vLLM's benchmark, which is the
    shape. It bends the gap law only: counts over long windows stay as even as their mean allows.
    """

    rate_rps: float = 1.0
    cv: float = 1.0

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps)
        check_cv(self.cv)

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    @property
    def shape(self) -> float:
        """Shape of the gamma law of the gaps."""
        return 1 / self.cv**2

    @property
    def scale_s(self) -> float:
        """Scale of the gamma law of the gaps, seconds."""
        return self.cv**2 / self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        return times_from(lambda n: rng.gamma(self.shape, self.scale_s, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        return gamma_cdf(np.asarray(gaps_s) * self.rate_rps, self.cv)
