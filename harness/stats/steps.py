"""Steps in a series of values: where its level changes, and what it was before and after.

Pieces are constant at the median of their values. Their number minimises `2 ln(n) / n * pieces + ln(error)`, the
criterion of airspeed-velocity (`asv/step_detect.py`) with half its penalty; the best pieces of each number are exact
here, by dynamic programming (F. Friedrich et al., "Complexity Penalized M-Estimation: Fast Computation", 2008).
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

SHORTEST = 4
"""Values in a piece: as many as move the median of a week (`harness.stats.watch`); a few bad runs are no level."""

MOST_PIECES = 20

PENALTY = 2.0
"""asv: 4, because it also decides whether there is a step; here that is known before."""

LONGEST = 400
"""Values that are fitted, the last ones: the work grows with their square."""

FLOOR = 0.001
"""Error, as a share of the median value, below which nothing is a step: series without any noise have some too."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Values `start` to `stop` (exclusive) of a series, around `level`."""

    start: int
    stop: int
    level: float


def pieces(values: Sequence[float]) -> list[Piece]:
    """The pieces of constant level that describe a series best; only its last 400 values are looked at."""
    left_out = max(0, len(values) - LONGEST)
    series = np.asarray(values[left_out:], float)
    if not len(series):
        return []
    ends = _best(series)
    return [
        Piece(left_out + start, left_out + stop, float(np.median(series[start:stop])))
        for start, stop in zip([0, *ends[:-1]], ends, strict=True)
    ]


def _best(series: Floats) -> list[int]:
    """Where the pieces end."""
    n = len(series)
    most = max(1, min(MOST_PIECES, n // SHORTEST))
    total, before = _partitions(_costs(series), most)
    floor = FLOOR * abs(float(np.median(series))) or np.finfo(float).tiny
    penalty = PENALTY * math.log(n) / n
    count = min(range(most), key=lambda k: penalty * (k + 1) + math.log(floor + total[k] / n))
    ends = [n]
    for k in range(count, 0, -1):
        ends.append(int(before[k, ends[-1]]))
    return ends[::-1]


def _partitions(costs: Floats, most: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Least error of 1 to `most` pieces, and where the last piece of so many begins for each end."""
    n = len(costs) - 1
    least = costs[0].copy()  # (n + 1,) of one piece that ends there
    total, before = np.full(most, np.inf), np.zeros((most, n + 1), np.int64)
    total[0] = least[n]
    for k in range(1, most):
        sums = least[:, None] + costs  # (starts, ends)
        before[k] = np.argmin(sums, axis=0)
        least = sums[before[k], np.arange(n + 1)]
        total[k] = least[n]
    return total, before


def _costs(series: Floats) -> Floats:
    """(starts, ends) the sum of distances from the median of each piece; infinite where it is too short."""
    n = len(series)
    costs = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        for stop, cost in enumerate(_deviations(series[start:].tolist()), start + 1):
            if stop - start >= min(SHORTEST, n):
                costs[start, stop] = cost
    return costs


def _deviations(values: Sequence[float]) -> Iterator[float]:
    """Sum of distances from the median, of the first value, the first two, ...

    Lower and upper half stand in heaps; the sum is that of the upper minus that of the lower one.
    """
    low: list[float] = []  # negated: its largest comes first
    high: list[float] = []
    low_sum = high_sum = 0.0
    for value in values:
        moved = -heapq.heappushpop(low, -value)
        low_sum += value - moved
        heapq.heappush(high, moved)
        high_sum += moved
        if len(high) > len(low):
            moved = heapq.heappop(high)
            high_sum -= moved
            heapq.heappush(low, -moved)
            low_sum += moved
        odd = len(low) - len(high)
        yield max(0.0, high_sum - low_sum - odd * low[0])
