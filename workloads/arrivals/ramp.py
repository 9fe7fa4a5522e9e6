"""Ramp arrivals: the rate goes in a straight line from one value to another, and stays there."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive
from workloads.arrivals._path import Path, along, flat
from workloads.arrivals._renewal import check_cv, gamma_cdf


@dataclass(frozen=True, slots=True)
class Ramp:
    """The rate rises (or falls) from `from_rps` to `to_rps` requests per second over `over_s` seconds, then holds.

    rate(t) = from + (to - from) min(t, over) / over. A ramp to 0 ends there. The long-run mean is `to_rps`, and that
    is what --rate (`rate_rps`) sets: both ends are scaled by rate_rps / to_rps; without it they stand as written (for a
    ramp to 0 the mean is that of the ramp, from / 2). Inside, gamma gaps of coefficient of variation `cv` in
    operational time (the integral of the rate); cv = 1 is Poisson. Source: the `ramping-arrival-rate` executor of
    k6; time change as in Daley and Vere-Jones, An Introduction to the Theory of Point Processes (2003), section 7.4.
    """

    from_rps: float = 0.1
    to_rps: float = 1.0
    over_s: float = 60.0
    cv: float = 1.0
    rate_rps: float | None = None

    def __post_init__(self) -> None:
        positive(over_s=self.over_s)
        check_cv(self.cv)
        for name, value in (("from_rps", self.from_rps), ("to_rps", self.to_rps)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be >= 0, got {value:g}.")
        if self.from_rps == self.to_rps == 0:
            raise ValueError("from_rps and to_rps are both 0, so nothing would ever arrive.")
        if self.rate_rps is not None:
            positive(rate_rps=self.rate_rps)

    @property
    def mean_rate_rps(self) -> float:
        """Long-run mean rate in requests per second: where the ramp ends."""
        return self._path().mean_rate_rps if self.rate_rps is None else self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Arrival times in seconds, endless unless the ramp ends at 0."""
        return self._path().times(rng, self.cv)

    def gap_cdf(self, gaps: np.ndarray) -> np.ndarray:
        """Probability that a gap in operational time (mean 1) is at most each of `gaps` (N,)."""
        return gamma_cdf(gaps, self.cv)

    def operational_time(self, times_s: np.ndarray) -> np.ndarray:
        return self._path().operational_time(times_s)

    def _path(self) -> Path:
        mean = self.to_rps or self.from_rps / 2
        scale = 1.0 if self.rate_rps is None else self.rate_rps / mean
        start, end = scale * self.from_rps, scale * self.to_rps
        return Path(along((0.0, self.over_s), (start, end)), flat(math.inf, end) if end else ())
