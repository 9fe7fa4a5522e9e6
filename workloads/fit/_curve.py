"""The dispersion curve of a trace, binned once: what a Cox process is fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness import burstiness

Floats = npt.NDArray[np.float64]

PER_DECADE = 8  # widths of the curve
_FLOOR = 1e-3  # of an index of dispersion: perfectly even counts have 0
MODEL_ERROR = 0.05  # of the log of an index of dispersion: what no model of this kind explains


@dataclass(frozen=True, slots=True)
class Curve:
    """The index of dispersion of counts at widths from about a mean gap to a tenth of the span.

    `base` is how many arrivals lie in each bin of the smallest width; wider bins are sums of these.
    """

    base: npt.NDArray[np.int64]  # (B,)
    least_s: float
    rate_rps: float
    steps: npt.NDArray[np.int64]  # (W,) widths in units of the smallest
    values: Floats  # (W,)

    @classmethod
    def of(cls, times_s: Floats, least_s: float) -> Curve:
        """The curve of a trace; widths are whole multiples of `least_s`, about 8 per decade."""
        base = burstiness.counts(times_s, least_s)
        largest = max(len(base) // burstiness.MIN_BINS, 1)
        steps = np.unique(np.round(np.geomspace(1, largest, 1 + int(PER_DECADE * math.log10(largest)))).astype(int))
        values = [dispersion(summed(base, step)) for step in steps]
        rate_rps = (len(times_s) - 1) / float(times_s[-1] - times_s[0])
        return cls(base, least_s, rate_rps, steps, np.array(values))

    @property
    def widths_s(self) -> Floats:
        """(W,) bin widths."""
        return np.asarray(self.steps * self.least_s)

    @property
    def bins(self) -> npt.NDArray[np.int64]:
        """(W,) whole bins of each width."""
        return np.asarray(len(self.base) // self.steps)

    @property
    def span_s(self) -> float:
        """Length of the trace in whole bins of the smallest width."""
        return len(self.base) * self.least_s

    @property
    def errors(self) -> Floats:
        """(W,) standard error of the log of each value: that of a variance of n values, and the model's."""
        return np.asarray(np.sqrt(MODEL_ERROR**2 + 2 / np.maximum(self.bins - 1, 1)))

    def logs_over(self, wanted: Floats) -> Floats:
        """(W,) log of the values by those wanted."""
        return np.asarray(np.log(np.maximum(self.values, _FLOOR) / np.maximum(wanted, _FLOOR)))

    def off_by(self, wanted: Floats) -> float:
        """Root mean square of the log2 of values by those wanted; the better a width is known, the more it counts."""
        return float(np.sqrt(np.average(self.logs_over(wanted) ** 2, weights=self.errors**-2)) / np.log(2))


def summed(values: npt.NDArray[np.int64] | Floats, step: int) -> npt.NDArray[np.int64] | Floats:
    """Sums of every `step` neighbouring values; the last few that do not fill a step are left out."""
    bins = len(values) // step
    return np.asarray(values[: bins * step].reshape(bins, step).sum(axis=1))


def dispersion(values: npt.NDArray[np.int64] | Floats) -> float:
    """Variance by mean."""
    return float(values.var(ddof=1) / values.mean())
