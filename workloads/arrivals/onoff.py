"""On/off arrivals: bursts at a steady rate, with silence between them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import numpy as np

from harness.bounds import Positive
from workloads.arrivals._operational import Piece, times_along
from workloads.arrivals._path import Path, flat
from workloads.arrivals._renewal import AtRate, GapCv, gamma_cdf, gamma_gaps


@dataclass(frozen=True, slots=True)
class OnOff(AtRate):
    """Requests come for `on_s` seconds, then none for `off_s` seconds, and so on; the first are on.

    `rate_rps` is the long-run mean in requests per second; while on, the rate is rate_rps (on_s + off_s) / on_s. With
    `dwell` exponential (the default) both times are means of exponential laws, with fixed they are kept to the
    second. Inside, gamma gaps of coefficient of variation `cv` in operational time: a gap under way stops while off
    and goes on afterwards; cv = 1 is Poisson (the interrupted Poisson process). With exponential times and cv = 1 the
    index of dispersion of counts grows to 1 + 2 rate_rps off_s**2 / (on_s + off_s). The law of the gaps is stated for
    fixed times only, where the rate is known beforehand. Source: Kuczura, The Interrupted Poisson Process as an
    Overflow Process, Bell System Technical Journal 52 (1973).
    """

    rate_rps: Positive = 1.0
    on_s: Positive = 10.0
    off_s: Positive = 30.0
    dwell: Literal["exponential", "fixed"] = "exponential"
    cv: GapCv = 1.0

    @property
    def on_rps(self) -> float:
        """Rate while on, requests per second."""
        return self.rate_rps * (self.on_s + self.off_s) / self.on_s

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        if self.dwell == "fixed":
            return self._path().times(rng, self.cv)
        gaps, dwells = rng.spawn(2)  # a stream each, so that another rate has the same bursts
        turns = cycle([(self.on_s, self.on_rps), (self.off_s, 0.0)])
        pieces = (Piece(dwells.exponential(mean_s), rate_rps, rate_rps) for mean_s, rate_rps in turns)
        return times_along(pieces, gamma_gaps(gaps, self.cv))

    @property
    def gap_cdf(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Probability that a gap in operational time (mean 1) is at most its arguments; None for random times."""
        return (lambda gaps: gamma_cdf(gaps, self.cv)) if self.dwell == "fixed" else None

    @property
    def operational_time(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Arrivals expected from 0 to its arguments (s); None for random times."""
        return self._path().operational_time if self.dwell == "fixed" else None

    def _path(self) -> Path:
        return Path((), flat(self.on_s, self.on_rps) + flat(self.off_s, 0.0))
