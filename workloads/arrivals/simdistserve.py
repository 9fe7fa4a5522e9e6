"""Arrivals of DistServe's simulator: exponential gaps of numpy's legacy generator, the first request at 0."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive


@dataclass(frozen=True, slots=True)
class Simdistserve:
    """A Poisson process of `rate_rps` requests a second whose times are those of DistServe's simulator, to the bit.

    They follow from `legacy_seed` (0 there) of numpy's legacy generator, not from the seed of the run: it is for
    repeating published results, and other seeds of a run change lengths alone. Source: LLMServe/DistServe @82831f1,
    simdistserve/base/workload.py.
    """

    rate_rps: float = 1.0
    legacy_seed: int = 0

    def __post_init__(self) -> None:
        positive(rate_rps=self.rate_rps)
        if not 0 <= self.legacy_seed < 1 << 32:
            raise ValueError(f"legacy_seed must be a whole number from 0 to {(1 << 32) - 1}, got {self.legacy_seed}.")

    @property
    def mean_rate_rps(self) -> float:
        return self.rate_rps

    def times(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002  the times are those of another seed
        gaps_s = np.random.RandomState(self.legacy_seed)
        at_s = 0.0
        while True:
            yield at_s
            at_s += gaps_s.gamma(1, 1 / self.rate_rps)
