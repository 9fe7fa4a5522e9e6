"""Step arrivals: a staircase of rates, each for the same time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workloads._checks import positive
from workloads.arrivals._lists import levels
from workloads.arrivals._path import Path, flat
from workloads.arrivals._renewal import check_cv, gamma_cdf


@dataclass(frozen=True, slots=True)
class Steps:
    """The rate is each of `levels` (requests per second, joined by '/') in turn, `every_s` seconds each.

    After the last level, `then` says what comes: `repeat` from the first, `hold` the last, or `stop`. The long-run
    mean is that of the levels (of the last one with `hold`), and that is what --rate (`rate_rps`) sets: all levels are
    scaled by one factor; without it they stand as written. Inside, gamma gaps of coefficient of variation `cv` in
    operational time (the integral of the rate), not begun anew at a step; cv = 1 is Poisson. Source: the staircase of
    load tests (k6 `ramping-arrival-rate` stages); time change as in Daley and Vere-Jones (2003), section 7.4.
    """

    levels: str = "1/2/4"
    every_s: float = 60.0
    then: Literal["repeat", "hold", "stop"] = "repeat"
    cv: float = 1.0
    rate_rps: float | None = None

    def __post_init__(self) -> None:
        positive(every_s=self.every_s)
        check_cv(self.cv)
        last = levels(self.levels)[-1]
        if self.then == "hold" and last == 0:
            raise ValueError(f"the last of levels is 0, got '{self.levels}'; holding it means then=stop.")
        if self.rate_rps is not None:
            positive(rate_rps=self.rate_rps)

    @property
    def mean_rate_rps(self) -> float:
        return self._mean_of_levels() if self.rate_rps is None else self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Arrival times in seconds, endless unless `then` is stop."""
        return self._path().times(rng, self.cv)

    def gap_cdf(self, gaps: np.ndarray) -> np.ndarray:
        """Probability that a gap in operational time (mean 1) is at most each of `gaps` (N,)."""
        return gamma_cdf(gaps, self.cv)

    def operational_time(self, times_s: np.ndarray) -> np.ndarray:
        return self._path().operational_time(times_s)

    def _mean_of_levels(self) -> float:
        rates = levels(self.levels)
        return rates[-1] if self.then == "hold" else math.fsum(rates) / len(rates)

    def _path(self) -> Path:
        scale = 1.0 if self.rate_rps is None else self.rate_rps / self._mean_of_levels()
        rates = [scale * level for level in levels(self.levels)]
        stairs = tuple(piece for rate in rates for piece in flat(self.every_s, rate))
        if self.then == "repeat":
            return Path((), stairs)
        return Path(stairs, flat(math.inf, rates[-1]) if self.then == "hold" else ())
