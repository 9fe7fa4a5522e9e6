"""The kind of a change in a series: a step, stairs, a ramp, a creep; and the pattern of the week.

A change is found by `harness.stats.watch`; here it is only named. Stairs are the pieces of `harness.stats.steps`, a
ramp is flat, then linear, then flat. The name is that of the lower Bayesian information criterion for Laplace noise:
ln(mean absolute error) plus ln(n) / 2n for each parameter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.stats.steps import FLOOR, LONGEST, pieces
from harness.stats.watch import ROBUST, Side

Kind = Literal["step", "stairs", "ramp", "creep"]
Floats: TypeAlias = npt.NDArray[np.float64]

LONGEST_RAMP = 30
"""Values over which a rise is a ramp; a longer one is a creep."""
_SHORTEST_RAMP = 7
_GRID = 60
"""Places at most at which a ramp may begin or end: the work grows with their square."""
_SIGNIFICANT = 4.0
"""Standard deviations of the rank statistic, for a pattern: each run is another look."""
_FEWEST_WEEKS = 4
WEEKEND = (5, 6)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Shape:
    """A change by its kind: the first value of each new level, of a rise the value at which it began."""

    kind: Kind
    starts: tuple[int, ...]


def shape(values: Sequence[float], side: Side, least: float, fallback: int, *, higher: bool) -> Shape:
    """The kind of a change to that side that seemed to begin at `fallback`; jumps below `least` are not counted."""
    if not all(map(math.isfinite, values)):
        return Shape("step", (fallback,))
    left_out = max(0, len(values) - LONGEST)
    series = np.asarray(values[left_out:], float)
    rises = (side == "worse") is not higher
    found = pieces(series.tolist())
    levels = np.repeat([piece.level for piece in found], [piece.stop - piece.start for piece in found])
    jumps = [
        (after.start, after.level - before.level)
        for before, after in zip(found, found[1:], strict=False)
        if abs(after.level - before.level) >= least
    ]
    to_side = [place for place, by in jumps if (by > 0) is rises]
    start, stop, line = _ramp(series)
    by = float(line[-1] - line[0])
    drifts = (by > 0) is rises and abs(by) >= least
    # a piece costs a level and a place, a ramp two of each
    if drifts and _criterion(series, line, 4) < _criterion(series, levels, 2 * len(found) - 1):
        return Shape("ramp" if stop - start <= LONGEST_RAMP else "creep", (left_out + max(1, start),))
    if not to_side:
        return Shape("step", (fallback,))
    return Shape("stairs" if len(to_side) > 1 else "step", tuple(left_out + place for place, _ in jumps))


def _criterion(series: Floats, fit: Floats, parameters: int) -> float:
    n = len(series)
    floor = FLOOR * abs(float(np.median(series))) or np.finfo(float).tiny
    return math.log(floor + float(np.mean(np.abs(series - fit)))) + parameters * math.log(n) / (2 * n)


def _ramp(series: Floats) -> tuple[int, int, Floats]:
    """Begin and end of the best ramp, and its values, by least squares; values far from their neighbours are moved."""
    n = len(series)
    at = np.arange(n)
    around = (
        np.lib.stride_tricks.sliding_window_view(np.pad(series, 3, mode="reflect"), 7) if n > 3 else series[:, None]
    )
    middle = np.median(around, axis=1)  # (n,)
    away = series - middle
    most = 3 * ROBUST * float(np.median(np.abs(away)))
    calm = middle + np.clip(away, -most, most)
    grid = np.unique(np.linspace(0, n - 1, min(n, _GRID)).round().astype(int))
    starts, stops = (each.ravel() for each in np.meshgrid(grid, grid, indexing="ij"))
    long = stops - starts >= _SHORTEST_RAMP
    starts, stops = starts[long], stops[long]
    if not len(starts):
        return 0, n - 1, np.full(n, np.median(series))
    rise = np.clip((at - starts[:, None]) / (stops - starts)[:, None], 0, 1)  # (ramps, n)
    centred = rise - rise.mean(axis=1, keepdims=True)
    by = centred @ calm / np.sum(centred**2, axis=1)
    fits = calm.mean() + centred * by[:, None]
    best = int(np.argmin(np.abs(fits - calm).sum(axis=1)))
    return int(starts[best]), int(stops[best]), fits[best]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Days of the week (0 is Monday) whose values lie `by` above those of the others."""

    days: tuple[int, ...]
    by: float

    @property
    def name(self) -> str:
        """'weekend', or the day."""
        return "weekend" if self.days == WEEKEND else _DAYS[self.days[0]]

    def removed(self, values: Sequence[float], weekdays: Sequence[int]) -> list[float]:
        return [value - self.by * (day in self.days) for value, day in zip(values, weekdays, strict=True)]


def weekly(values: Sequence[float], weekdays: Sequence[int]) -> Pattern | None:
    """The pattern of the week: of the weekend and of each day the clearest, by the rank sum of Mann and Whitney.

    Values count less the median of the week around them, so neither steps nor drift are a pattern.
    """
    if len(values) < 7 * _FEWEST_WEEKS or not all(map(math.isfinite, values)):
        return None
    series, days = np.asarray(values, float), np.asarray(weekdays)
    middle = np.median(np.lib.stride_tricks.sliding_window_view(series, 7), axis=1)
    apart, days = series[3:-3] - middle, days[3:-3]
    _, place, ties = np.unique(apart, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    n, best, found = len(apart), _SIGNIFICANT, None
    for named in (WEEKEND, *((day,) for day in range(7))):
        there = np.isin(days, named)
        count = int(there.sum())
        if count < _FEWEST_WEEKS - 1 or count == n:
            continue
        sd = math.sqrt(float(np.var(ranks)) * count * (n - count) / (n - 1)) or math.inf
        z = abs(float(ranks[there].sum()) - count * (n + 1) / 2) / sd
        if z > best:
            best = z
            found = Pattern(named, float(np.median(apart[there]) - np.median(apart[~there])))
    return found
