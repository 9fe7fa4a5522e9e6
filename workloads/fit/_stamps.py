"""Arrival stamps made ready for a fit: what sits on a grid, and how regular neighbouring gaps are.

Where stamps sit on a grid (whole seconds, ticks of 3 s), only counts per tick mean anything: gaps shorter than the
tick are not known, so neither is their law, unless few stamps are shared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RARE = 0.01  # of the gaps are 0 on a grid: with fewer the grid hides nothing
COARSE = 0.1  # of the gaps are 0 on a grid: with more the gap distribution is not identifiable
SEED = 2  # of the places of stamps inside their tick: the same for every fit
SMALLEST_SHAPE, LARGEST_SHAPE = 0.01, 1e4  # of gaps that float64 sums can still tell apart
_EDGE = 1e-6  # of a tick: keeps a stamp off the edge of a bin


@dataclass(frozen=True, slots=True)
class Stamps:
    """Stamps with counts that are right in bins of whole ticks (`at_s`), and spread inside their tick (`spread_s`)."""

    at_s: Floats  # (N,)
    spread_s: Floats  # (N,) the same where there is no grid
    grain_s: float | None

    @classmethod
    def of(cls, at_s: Floats, grain_s: float | None) -> Stamps:
        """Stamps that sit on a grid of `grain_s`, if several share one; ticks that drift a little count as whole."""
        if grain_s is None or (np.diff(at_s) < grain_s / 2).mean() < RARE:
            return cls(at_s, at_s, None)
        ticks = np.concatenate([[0.0], np.cumsum(np.round(np.diff(at_s) / grain_s))])
        inside = np.random.default_rng(SEED).random(len(ticks))
        exact = (ticks + np.where(ticks > 0, _EDGE, 0.0)) * grain_s
        return cls(exact, np.sort((ticks + inside) * grain_s), grain_s)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last; on a grid, to the end of the last tick but one."""
        return float(self.at_s[-1] - self.at_s[0])

    @property
    def rate_rps(self) -> float:
        return (len(self.at_s) - 1) / self.span_s

    @property
    def least_s(self) -> float:
        """The width of the narrowest useful bins: a mean gap, in whole ticks."""
        gap_s = 1 / self.rate_rps
        return gap_s if self.grain_s is None else self.grain_s * max(1, math.ceil(gap_s / self.grain_s))

    @property
    def gaps_known(self) -> bool:
        """Whether the gap distribution is identifiable."""
        return self.grain_s is None or bool((np.diff(self.at_s) < self.grain_s / 2).mean() <= COARSE)


def gap_shape(times_s: Floats) -> float | None:
    """Gamma shape of the gaps in operational time, from neighbouring gaps only; None with fewer than 20.

    The local variation Lv = 3 * mean of ((a - b) / (a + b))**2 over neighbouring gaps a, b is 3 / (2 * shape + 1) for
    gamma gaps, whatever the rate, as long as it hardly changes from one gap to the next. Source: Shinomoto, Shima and
    Tanji, Differences in spiking patterns among cortical neurons, Neural Computation 15, 2003.
    """
    gaps_s = np.diff(times_s)
    total = gaps_s[:-1] + gaps_s[1:]
    known = total > 0
    if known.sum() < 20:
        return None
    variation = 3 * float(np.mean((np.diff(gaps_s)[known] / total[known]) ** 2))
    shape = (3 / variation - 1) / 2 if variation > 0 else LARGEST_SHAPE
    return min(max(shape, SMALLEST_SHAPE), LARGEST_SHAPE)
