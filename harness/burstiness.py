"""How bursty arrivals are: dispersion of counts, their memory, and the spread of gaps. Times in seconds, sorted.

A test of gaps alone cannot tell real traffic from Poisson (their distance on the Azure trace is 0.02), because the
burstiness of real traffic lies in its rate. The index of dispersion over several widths and the autocorrelation of
counts can.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

WIDTHS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""Bin widths at which two dispersion curves are compared."""

MIN_BINS = 10
"""Fewest bins of an index of dispersion; with 10 its standard error is already about 0.5 for Poisson."""


def counts(times_s: Floats, width_s: float) -> npt.NDArray[np.int64]:
    """(bins,) arrivals per bin of `width_s`: the whole bins from the first arrival to the last."""
    if len(times_s) == 0:
        return np.zeros(0, np.int64)
    bins = int((times_s[-1] - times_s[0]) / width_s)
    index = ((times_s - times_s[0]) / width_s).astype(np.int64)
    return np.bincount(index[index < bins], minlength=bins)


def dispersion(times_s: Floats, width_s: float) -> float | None:
    """Index of dispersion of counts: variance by mean of the arrivals per bin (Poisson: 1 at every width).

    None with fewer than 10 whole bins.
    """
    return spread(counts(times_s, width_s))


def spread(per_bin: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> float | None:
    """Variance by mean of counts; None with fewer than 10 of them, or where nothing was counted."""
    if len(per_bin) < MIN_BINS or per_bin.sum() == 0:
        return None
    return float(per_bin.var(ddof=1) / per_bin.mean())


def dispersion_curve(times_s: Floats, widths_s: Sequence[float] = WIDTHS_S) -> Floats:
    """(widths,) indices of dispersion; NaN where there are fewer than 10 bins."""
    found = (dispersion(times_s, width_s) for width_s in widths_s)
    return np.array([math.nan if value is None else value for value in found])


def curve_distance(found: Floats, wanted: Floats) -> float:
    """Root mean square of log2(found / wanted) over the widths at which both are known; NaN if there is none."""
    known = np.isfinite(found) & np.isfinite(wanted) & (found > 0) & (wanted > 0)
    if not known.any():
        return math.nan
    return float(np.sqrt(np.mean(np.log2(found[known] / wanted[known]) ** 2)))


def autocorrelation(values: npt.NDArray[np.float64] | npt.NDArray[np.int64], lag: int = 1) -> float | None:
    """Correlation of a series with itself `lag` steps later (biased estimator); None if it is constant or short."""
    centred = np.asarray(values, np.float64) - np.mean(values) if len(values) else np.zeros(0)
    total = float(centred @ centred)
    if len(centred) < MIN_BINS + lag or total == 0:
        return None
    return float(centred[:-lag] @ centred[lag:] / total)


def gap_cv(times_s: Floats) -> float | None:
    """Standard deviation by mean of the gaps; None with fewer than two gaps or all at one instant."""
    gaps_s = np.diff(times_s)
    if len(gaps_s) < 2 or gaps_s.mean() <= 0:
        return None
    return float(gaps_s.std(ddof=1) / gaps_s.mean())


def window_cvs(times_s: Floats, width_s: float, least_gaps: int = 10) -> Floats:
    """(windows,) `gap_cv` inside each window of `width_s` that has at least `least_gaps` gaps."""
    if len(times_s) == 0:
        return np.zeros(0)
    edges = np.arange(times_s[0], times_s[-1] + width_s, width_s)
    parts = np.split(times_s, np.searchsorted(times_s, edges[1:]))
    found = [gap_cv(part) for part in parts if len(part) > least_gaps]
    return np.array([value for value in found if value is not None])


def gaps_distance(one_s: Floats, other_s: Floats) -> float:
    """`distance` of the gaps of two series of arrivals."""
    return distance(np.sort(np.diff(one_s)), np.sort(np.diff(other_s)))


def distance(one: Floats, other: Floats) -> float:
    """Two-sample Kolmogorov-Smirnov distance of two sorted series: the largest between their shares at or below."""
    both = np.concatenate([one, other])
    below = [np.searchsorted(values, both, side="right") / len(values) for values in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


TICK = 0.005
"""Stamps sit on ticks if the steps between them are whole multiples of one, to this share of it: the recorded ticks
of 3 s of the Mooncake trace are 2.997 to 3.003 s long."""

SHARED = 0.01
"""Fewest gaps that are 0 where stamps sit on ticks; without shared stamps there is no tick to be seen."""

LEAST_TICK_S = 0.001


def tick_s(times_s: Floats) -> float | None:
    """The tick (s) on which several arrivals stand at a time, such as 3 s; None where they do not, or below 1 ms."""
    distinct = np.unique(times_s)
    steps = np.diff(distinct)
    if len(distinct) < MIN_BINS or len(steps) >= (1 - SHARED) * (len(times_s) - 1):
        return None
    least = float(np.quantile(steps, 0.01))
    times = np.round(steps / least)
    if least < LEAST_TICK_S or (times < 1).any() or (np.abs(steps / least - times) > TICK * times).any():
        return None
    return float(steps.sum() / times.sum())  # the mean: with it ticks do not drift away from the stamps


def per_tick(times_s: Floats, width_s: float) -> npt.NDArray[np.int64]:
    """(ticks,) arrivals on each tick of `width_s`, from the first to the last; each counts for the nearest one."""
    if len(times_s) == 0:
        return np.zeros(0, np.int64)
    return np.bincount(np.round((times_s - times_s[0]) / width_s).astype(np.int64))
