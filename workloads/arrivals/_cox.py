"""A stationary random rate: its logarithm is a sum of Ornstein-Uhlenbeck processes, each with its own memory.

Arrivals that follow such a rate are a Cox process: their counts are overdispersed over seconds and over hours at once,
which no law of the gaps alone can do. Source: Cox, Some statistical methods connected with series of events, Journal
of the Royal Statistical Society B 17, 1955; Moeller, Syversveen and Waagepetersen, Log Gaussian Cox processes,
Scandinavian Journal of Statistics 25, 1998. The step of each component is the exact transition of its process.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workloads._checks import positive
from workloads.arrivals._grid import times_on_grid
from workloads.arrivals._operational import Gaps, Piece

STEPS = 4096  # drawn at once, whatever the caller takes
LARGEST_SD = 4.0  # of the log-rate; above, almost all arrivals come in a share of the time that no run contains


class Component(NamedTuple):
    """One part of the log-rate: its standard deviation, and the time in which its correlation falls to 1/e."""

    sd: float
    tau_s: float


@dataclass(frozen=True, slots=True)
class LogRate:
    """Factors of mean 1 by which a rate is multiplied, one every `step_s` seconds, lognormal and stationary.

    The log-rate at two moments u seconds apart has covariance sum(sd**2 * exp(-u / tau_s)). Raises ValueError for
    parts that are no such process. Choose `step_s` well below the smallest tau that matters.
    """

    components: tuple[Component, ...]
    step_s: float

    def __post_init__(self) -> None:
        positive(step_s=self.step_s)
        object.__setattr__(self, "components", tuple(Component(*part) for part in self.components))
        for part in self.components:
            positive(tau_s=part.tau_s)
            if not 0 <= part.sd <= LARGEST_SD:
                raise ValueError(f"sd of a component must be between 0 and {LARGEST_SD:g}, got {part.sd:g}.")

    @property
    def variance(self) -> float:
        """Variance of the log-rate."""
        return sum(part.sd**2 for part in self.components)

    def covariance(self, lag_s: np.ndarray) -> np.ndarray:
        """Covariance of the factors at moments `lag_s` apart (any shape): exp(covariance of the log) - 1."""
        of_log = np.zeros(np.shape(lag_s))
        for part in self.components:
            of_log += part.sd**2 * np.exp(-np.abs(lag_s) / part.tau_s)
        return np.asarray(np.expm1(of_log))

    def factors(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Endless blocks (STEPS,) of factors; their expectation is exactly 1."""
        states = [part.sd * float(rng.standard_normal()) for part in self.components]
        while True:
            log = np.full(STEPS, -self.variance / 2)
            for i, part in enumerate(self.components):
                path, states[i] = self._path(part, states[i], rng)
                log += path
            yield np.exp(log)

    def pieces(self, rate_rps: float, rng: np.random.Generator) -> Iterator[Piece]:
        """Endless pieces of `step_s` at a constant rate, `rate_rps` on average."""
        for block in self.factors(rng):
            yield from (Piece(self.step_s, rate, rate) for rate in (rate_rps * block).tolist())

    def times(self, rate_rps: float, gaps: Gaps, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times (s) at `rate_rps` on average, a renewal process of `gaps` (mean 1) along the rate.

        Give `gaps` another stream of random numbers than `rng`: then another rate has the same ups and downs.
        """
        for block in times_on_grid(self.step_s, (rate_rps * factors for factors in self.factors(rng)), gaps):
            yield from block.tolist()

    def _path(self, part: Component, state: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """(STEPS,) values from `state` on, and the state after them."""
        from scipy.signal import lfilter  # heavy

        keep = math.exp(-self.step_s / part.tau_s)
        noise = part.sd * math.sqrt(-math.expm1(-2 * self.step_s / part.tau_s)) * rng.standard_normal(STEPS)
        after = lfilter([1.0], [1.0, -keep], noise, zi=[keep * state])[0]  # keep * last + fresh, step by step
        return np.concatenate([[state], after[:-1]]), float(after[-1])
