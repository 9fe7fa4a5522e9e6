"""Constant arrivals: equal gaps of 1/rate seconds, the first at 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from workloads._checks import positive

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Constant:
    """Request i arrives at i / `rate_rps` seconds (`rate_rps` in requests per second).

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
