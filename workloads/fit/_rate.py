"""The rate of a trace window by window, without the noise of counting.

Counts in windows are the rate plus the noise that arrivals bring at any rate; a generator that followed them would
add that noise a second time. So the tree of halves, quarters, eighths ... of the trace is walked from the top, and
the difference between two halves is shrunk, at each level by one factor, such that the differences of the rate have
the variance of the counts less the noise. Poisson arrivals give a flat rate. Sources: Kolaczyk, Bayesian multiscale
models for Poisson processes, JASA 94, 1999 (splitting counts in halves); Ghosh, Constrained Bayes estimation, JASA 87,
1992 (shrinking so that the variance is right).
"""

import math

import numpy as np
import numpy.typing as npt

from workloads.fit._cox import DispersionCurve, summed
from workloads.fit._verdict import Renewal, dispersion

Floats = npt.NDArray[np.float64]

MOST_LEVELS = 16  # 65,536 windows: a file of about half a megabyte
LEAST_ARRIVALS = 2.0  # per window, on average
GOOD = 0.3  # log2, root mean square, off the dispersion curve
CLEAR = 2.0  # standard errors by which a level must differ more than noise, to be the narrowest one kept


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
    both = halves.sum(axis=1)
    half, whole = (gaps.dispersion(np.maximum(x, 1e-3)) for x in (both / 2, both))
    noise = both * (2 * half - whole)  # expected squared difference at an even rate: 4 V(x) - V(2x), V the variance
    seen, expected = float(np.sum(np.diff(halves, axis=1) ** 2)), float(noise.sum())
    excess = max(seen - expected, 0.0)
    error = math.sqrt(2 * float(np.sum(noise**2)))
    return (math.sqrt(excess / seen) if seen else 0.0), excess > CLEAR * error


def off_by(curve: DispersionCurve, factors: Floats, gaps: Renewal) -> float:
    """By how much the dispersion that these factors give is off the curve of the trace (log2, root mean square)."""
    window_s = curve.span_s / len(factors)
    steps = np.clip(np.round(curve.widths_s / window_s), 1, max(len(factors) // 2, 1)).astype(int)
    spread = np.array([float((summed(factors, int(step)) / step).var()) for step in steps])
    found = dispersion(curve.rate_rps, (), gaps, curve.widths_s, spread)
    return curve.off_by(found)
