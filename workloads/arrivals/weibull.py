"""Weibull arrivals: independent gaps, with a tail heavier than exponential for shape < 1 and lighter for shape > 1."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive
from workloads.arrivals._renewal import times_from

SMALLEST_SHAPE, LARGEST_SHAPE = 0.15, 1000.0  # outside, the sums of float64 gaps lose the law
DEFAULT_SHAPE = 0.7


@dataclass(frozen=True, slots=True)
class Weibull:
    """A renewal process of `rate_rps` requests per second with Weibull gaps, of `shape` or of spread `cv`.

    P(gap <= x) = 1 - exp(-(x / scale_s)**shape) with scale_s = 1 / (rate_rps Gamma(1 + 1/shape)) seconds; the
    coefficient of variation is sqrt(Gamma(1 + 2/shape) / Gamma(1 + 1/shape)**2 - 1), so shape 1 is Poisson, 0.7
    (the default) has cv 1.46. Give `shape` or `cv`, not both. Gaps are neither clipped nor repeated. Like `gamma` it
    bends the gap law only. Source: ServeGen (NSDI 2026), which finds Weibull gaps for some of its workloads.
    """

    rate_rps: float = 1.0
    shape: float | None = None
    cv: float | None = None

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps)
        if self.shape is not None and self.cv is not None:
            raise ValueError("shape and cv are redundant; leave one of them out.")
        if self.shape is not None and not SMALLEST_SHAPE <= self.shape <= LARGEST_SHAPE:
            raise ValueError(f"shape must be between {SMALLEST_SHAPE:g} and {LARGEST_SHAPE:g}, got {self.shape:g}.")
        least, most = _cv(LARGEST_SHAPE), _cv(SMALLEST_SHAPE)
        if self.cv is not None and not least <= self.cv <= most:
            raise ValueError(f"cv must be between {least:.2g} and {most:.2g}, got {self.cv:g}.")

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    @property
    def gap_shape(self) -> float:
        """Shape of the law of the gaps: as given, or the one that has the given `cv`."""
        if self.cv is None:
            return DEFAULT_SHAPE if self.shape is None else self.shape
        return _shape_of(self.cv)

    @property
    def scale_s(self) -> float:
        """Scale of the law of the gaps, seconds."""
        return 1 / (self.rate_rps * math.gamma(1 + 1 / self.gap_shape))

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        shape, scale_s = self.gap_shape, self.scale_s
        return times_from(lambda n: scale_s * rng.weibull(shape, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        return np.asarray(-np.expm1(-((np.maximum(gaps_s, 0) / self.scale_s) ** self.gap_shape)))


def _cv(shape: float) -> float:
    """Coefficient of variation; falls as the shape grows."""
    return math.sqrt(math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))


def _shape_of(cv: float) -> float:
    """The shape that has this coefficient of variation, by halving the range of its logarithm."""
    low, high = math.log(SMALLEST_SHAPE), math.log(LARGEST_SHAPE)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _cv(math.exp(middle)) > cv else (low, middle)
    return math.exp(low)
