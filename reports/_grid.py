"""Positions of sliders: readable bounds on TTFT and on TPOT over the range of what was measured, and SLO scales."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.api import Bound, Slo
from harness.missing import missing
from harness.slo import OWN, Seen

METRICS = ("ttft", "tpot")
FINE = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
COARSE = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
MOST = 46
"""Positions beyond which a slider takes the coarse steps."""
AROUND = 10.0
"""How far to both sides of the SLO's own bound a slider goes, at most, as a factor."""
WIDEST = 300.0
"""Greatest ratio of the ends of a slider that has no bound of the SLO to lie around."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One slider: rising bounds in seconds, and after them one position without a bound.

    `start` is the position of the SLO's own bound, or the one without a bound.
    """

    metric: str
    limits_s: tuple[float, ...]
    start: int

    @property
    def own_s(self) -> float | None:
        """The bound of the SLO on every request of no class of its own; None where it has none."""
        return self.limits_s[self.start] if self.start < len(self.limits_s) else None


@dataclass(frozen=True, slots=True)
class Grid:
    """The positions of all sliders: two axes of bounds, and factors of the whole SLO.

    `slo` is what the sliders start from, without its bounds on percentiles; `rest` is what of it no slider moves. `own`
    says that requests bring bounds along, which no slider moves either.
    """

    slo: Slo
    rest: Slo
    axes: tuple[Axis, Axis]
    factors: tuple[float, ...]
    own: bool = False


def grid(seen: Sequence[Seen], slo: Slo) -> Grid:
    """The positions for these runs under an SLO; its own bounds are among them."""
    bounds = tuple(b for b in slo.bounds if b.percentile is None)
    ttft, tpot = (_axis(seen, metric, _own(bounds, metric)) for metric in METRICS)
    moved = {_own(bounds, metric) for metric in METRICS}
    rest = tuple(b for b in bounds if b not in moved)
    factors = series(1 / AROUND, AROUND, FINE) if bounds else ()
    own = any(s.own(metric) is not None for s in seen for metric in OWN)
    return Grid(Slo(bounds, slo.goal), Slo(rest, slo.goal), (ttft, tpot), tuple(factors), own)


def series(low: float, high: float, steps: Sequence[float]) -> list[float]:
    """The numbers of `steps` times powers of ten from the one below `low` to the one above `high`."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    every = [float(f"{step * 10.0**exponent:.6g}") for exponent in decades for step in steps]
    first = max(i for i, value in enumerate(every) if value <= low * (1 + 1e-9))
    last = min(i for i, value in enumerate(every) if value >= high * (1 - 1e-9))
    return every[first : last + 1]


def _own(bounds: Sequence[Bound], metric: str) -> Bound | None:
    """The bound on all requests that are of no class with a bound of its own."""
    return next((b for b in bounds if b.metric == metric and b.tag is None), None)


def _axis(seen: Sequence[Seen], metric: str, own: Bound | None) -> Axis:
    ends = None if any(metric in missing(s.table) for s in seen) else _ends(seen, metric)
    limit_s = None if own is None else own.limit
    if ends is None and limit_s is None:
        return Axis(metric, (), 0)
    low, high = ends or (limit_s or 1.0, limit_s or 1.0)
    if limit_s is None:
        low = max(low, high / WIDEST)
    else:
        low = min(max(low, limit_s / AROUND), limit_s / 2)
        high = max(min(high, limit_s * AROUND), limit_s * 2)
    fine = series(low, high, FINE)
    found = {*(fine if len(fine) <= MOST else series(low, high, COARSE))} | ({limit_s} if limit_s else set())
    rising = tuple(sorted(found))
    return Axis(metric, rising, len(rising) if limit_s is None else rising.index(limit_s))


def _ends(seen: Sequence[Seen], metric: str) -> tuple[float, float] | None:
    """Where all but the first and the last hundredth of the values of the runs lie; None where there are none."""
    known = []
    for s in seen:
        values = s.values(metric)
        values = values[s.ok & np.isfinite(values) & (values > 0)]
        if len(values):
            known.append(values)
    if not known:
        return None
    quantiles = np.array([np.quantile(values, (0.01, 0.99)) for values in known])
    return float(quantiles[:, 0].min()), float(quantiles[:, 1].max())
