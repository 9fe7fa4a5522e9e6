"""Arrivals of BurstGPT's own generator: gamma gaps of one fixed shape, which is far from the data it was made for."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive
from workloads.arrivals._renewal import times_from


@dataclass(frozen=True, slots=True)
class BurstgptPublished:
    """Independent gamma gaps of mean 1/`rate_rps` seconds and `shape`, as the published code falls back to.

    Shape 0.5 and scale 2 s (rate 1 request/s, CV 1.41) are its fallback, 0.25 its class default; the paper changes
    them every 20 minutes, the code cannot, because its lists are never set. Warning: for repeating published results
    only. Real API traffic has an index of dispersion of 200 over 20 minutes, this has 2; use `burstgpt` for the
    service itself. Source: HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py (MIT).
    """

    rate_rps: float = 1.0
    shape: float = 0.5

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps, shape=self.shape)
        if not 1e-4 <= self.shape <= 1e6:
            raise ValueError(f"shape must be between 0.0001 and 1e+06, got {self.shape:g}.")

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps."""
        return 1 / math.sqrt(self.shape)

    @property
    def facts(self) -> dict[str, object]:
        return {
            "source": "HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py",
            "licence": "MIT (example code)",
            "warning": "one fixed gamma law has none of the changes of rate of the BurstGPT traces",
            "remedy": "keep it for repeating published results; --arrivals burstgpt is like the traces",
        }

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        scale_s = 1 / (self.shape * self.rate_rps)
        return times_from(lambda n: rng.gamma(self.shape, scale_s, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        from scipy.special import gammainc  # heavy: only where a run is judged

        return np.asarray(gammainc(self.shape, np.maximum(gaps_s, 0) * self.shape * self.rate_rps))
