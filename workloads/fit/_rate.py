"""The rate of a trace: its stamps made ready, its curve of a day, and windows without the noise of counting.

Where stamps sit on a grid (whole seconds, ticks of 3 s), only counts per tick mean anything: gaps shorter than the
tick are not known, so neither is their law, unless few stamps are shared.

Counts in windows are the rate plus the noise that arrivals bring at any rate; a generator that followed them would
add that noise a second time. So the tree of halves, quarters, eighths ... of the trace is walked from the top, and
the difference between two halves is shrunk, at each level by one factor, such that the differences of the rate have
the variance of the counts less the noise. Poisson arrivals give a flat rate. Sources: Kolaczyk, Bayesian multiscale
models for Poisson processes, JASA 94, 1999 (splitting counts in halves); Ghosh, Constrained Bayes estimation, JASA 87,
1992 (shrinking so that the variance is right).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.data.lists import Floats
from harness.stats.arrivals import autocorrelation
from workloads.fit._cox import DispersionCurve, summed
from workloads.fit._verdict import Renewal, dispersion

MOST_LEVELS = 16  # 65,536 windows: a file of about half a megabyte
LEAST_ARRIVALS = 2.0  # per window, on average
GOOD = 0.3  # log2, root mean square, off the dispersion curve
CLEAR = 2.0  # standard errors by which a level must differ more than noise, to be the narrowest one kept
RARE = 0.01  # of the gaps are 0 on a grid: with fewer the grid hides nothing
COARSE = 0.1  # of the gaps are 0 on a grid: with more the gap distribution is not identifiable
SEED = 2  # of the places of stamps inside their tick: the same for every fit
SMALLEST_SHAPE, LARGEST_SHAPE = 0.01, 1e4  # of gaps that float64 sums can still tell apart
_EDGE = 1e-6  # of a tick: keeps a stamp off the edge of a bin

HOUR_S, DAY_S = 3600.0, 86_400.0
LEAST_ROUNDS = 2  # of days, or of weeks
COMES_BACK = 0.4  # autocorrelation of hourly counts at 24 h, above which there is a curve of the day


def levels_for(rows: int, span_s: float, narrowest_s: float | None, window_s: float | None) -> int:
    """How often the span can be halved: windows of two arrivals on average, not below `narrowest_s`; or `window_s`."""
    if window_s is not None:
        return min(max(round(math.log2(max(span_s / window_s, 1))), 0), MOST_LEVELS)
    most = math.log2(max(rows / LEAST_ARRIVALS, 1))
    if narrowest_s is not None:
        most = min(most, math.log2(max(span_s / narrowest_s, 1)))
    return min(int(most), MOST_LEVELS)


def factors(times_s: Floats, levels: int, gaps: Renewal, *, keep: bool = False) -> Floats:
    """(2**L,) rate in equal windows over the span, divided by its mean; L is at most `levels`.

    Levels below the last one that differs clearly from noise are left out, unless `keep`.
    """
    bins = 2**levels
    span_s = times_s[-1] - times_s[0]
    index = np.minimum(((times_s - times_s[0]) / span_s * bins).astype(np.int64), bins - 1)
    tree = [np.bincount(index, minlength=bins)]  # from the leaves to the root
    while len(tree[-1]) > 1:
        tree.append(tree[-1].reshape(-1, 2).sum(axis=1))
    tree = tree[::-1]
    shrinks, clear = zip(*(_shrink(counts, gaps) for counts in tree[1:]), strict=True) if levels else ((), ())
    last = levels if keep else max((i + 1 for i, yes in enumerate(clear) if yes), default=0)
    rate = np.ones(1)
    for counts, shrink in zip(tree[1 : last + 1], shrinks[:last], strict=True):
        halves = counts.reshape(-1, 2).astype(np.float64)
        share = (halves[:, 0] - halves[:, 1]) / np.maximum(halves.sum(axis=1), 1)
        rate = np.stack([rate * (1 + shrink * share), rate * (1 - shrink * share)], axis=1).ravel()
    return rate


def _shrink(counts: npt.NDArray[np.int64], gaps: Renewal) -> tuple[float, bool]:
    """The factor of one level, and whether its differences are clearly more than noise."""
    halves = counts.reshape(-1, 2).astype(np.float64)
    pairs = halves.sum(axis=1)
    half, full = (gaps.dispersion(np.maximum(x, 1e-3)) for x in (pairs / 2, pairs))
    noise = pairs * (2 * half - full)  # expected squared difference at an even rate: 4 V(x) - V(2x), V the variance
    seen, expected = float(np.sum(np.diff(halves, axis=1) ** 2)), float(noise.sum())
    excess = max(seen - expected, 0.0)
    error = math.sqrt(2 * float(np.sum(noise**2)))
    # The root: shrunk by it, the differences have the variance of the rate's own. Shrunk to the best guess of
    # each (without the root) they would vary less than the rate, and the traffic would be too even.
    return (math.sqrt(excess / seen) if seen else 0.0), excess > CLEAR * error


def off_by(curve: DispersionCurve, factors: Floats, gaps: Renewal) -> float:
    """By how much the dispersion that these factors give is off the curve of the trace (log2, root mean square)."""
    window_s = curve.span_s / len(factors)
    steps = np.clip(np.round(curve.widths_s / window_s), 1, max(len(factors) // 2, 1)).astype(int)
    spread = np.array([float((summed(factors, int(step)) / step).var()) for step in steps])
    modelled = dispersion(curve.rate_rps, (), gaps, curve.widths_s, spread)
    return curve.off_by(modelled)


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
    nonzero = total > 0
    if nonzero.sum() < 20:
        return None
    variation = 3 * float(np.mean((np.diff(gaps_s)[nonzero] / total[nonzero]) ** 2))
    shape = (3 / variation - 1) / 2 if variation > 0 else LARGEST_SHAPE
    return min(max(shape, SMALLEST_SHAPE), LARGEST_SHAPE)


def periodic(times_s: Floats, slot_s: float, slots: int) -> tuple[float, ...]:
    """Factors of mean 1, one for each of the `slots` of `slot_s` that come again and again from the trace's time 0.

    Those of hours make the curve of the day, those of days that of the week. Empty below two rounds, and where the
    counts of one round do not tell those of the next (autocorrelation of at least 0.4; by hours a month of BurstGPT
    has 0.03, a pure daily curve 0.996).
    """
    number = np.floor(times_s / slot_s).astype(np.int64)
    full_slots = int(number[-1])  # the last one is not full
    if full_slots < LEAST_ROUNDS * slots:
        return ()
    counts = np.bincount(number[number < full_slots], minlength=full_slots)
    correlation = autocorrelation(counts, slots)
    if correlation is None or correlation < COMES_BACK:
        return ()
    slot = np.arange(full_slots) % slots
    mean = np.bincount(slot, counts, slots) / np.bincount(slot, minlength=slots)
    return tuple(float(x) for x in mean / mean.mean())


def day_factors(at_s: npt.NDArray[np.floating], day: tuple[float, ...], week: tuple[float, ...]) -> Floats:
    """(N,) factors at the moments `at_s`."""
    scale = np.ones(len(at_s))
    if day:
        scale = scale * np.array(day)[(at_s // HOUR_S).astype(np.int64) % 24]
    if week:
        scale = scale * np.array(week)[(at_s // DAY_S).astype(np.int64) % 7]
    return np.asarray(scale)


def day_variance(curve: DispersionCurve, day: tuple[float, ...], week: tuple[float, ...]) -> Floats:
    """(W + 1,) variance of the mean factor over each width of the curve, as the trace's span shows it, and 0 for the
    span itself: the curve is the same in every draw."""
    if not day:
        return np.zeros(len(curve.widths_s) + 1)
    step_s = 300.0
    values = day_factors(np.arange(int(curve.span_s / step_s)) * step_s, day, week)
    values = values / values.mean()
    widths = np.maximum(np.round(curve.widths_s / step_s), 1).astype(int)
    variances = [float((summed(values, int(w)) / w).var()) for w in widths]
    return np.append(variances, 0.0)
