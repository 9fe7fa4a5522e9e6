"""Fits a log-Gaussian Cox process to the dispersion curve of a trace, by least squares on its logarithm.

A trace is one draw, and the spread of counts over few long bins is skew: most draws show less than the expectation.
So the curve is held against what a typical (median) draw of the model shows over a span of the same length, found by
simulating the rate. Source of the idea: Gourieroux, Monfort and Renault, Indirect inference, Journal of Applied
Econometrics 8, 1993.

The dispersion curve of a trace, binned once: what a Cox process is fitted to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.data.lists import Floats
from harness.stats import arrivals
from workloads.arrivals._services import LARGEST_SD, STEPS, Component, LogRate
from workloads.fit import _verdict

MOST_COMPONENTS = 3
LEAST_GAIN = (
    18.4  # of the weighted squares, for one more component: twice the 1 % point of chi-square with 2 degrees of
)
# freedom, since errors at neighbouring widths go together and count for about half
LEAST_FALL = 0.15  # of the root mean square of the weighted errors, too: else it is noise that it follows
ROUNDS = 5  # at most, of simulating a typical draw and fitting again
MOST_STEPS = 40  # of a least-squares search; most need about 15
SETTLED = 0.02  # change of all parameters below which a round is the last
GOOD = 0.5  # log2, root mean square
DRAWS = 60  # simulated in a round
LONGEST = 0.25  # of the span: a longer memory cannot be distinguished from a trend
GRID = 2 * STEPS  # points of a simulated rate
SEED = 1  # of the simulated rates: the same for all parameters, so that a fit is repeatable
PER_DECADE = 8  # widths of the curve
_FLOOR = 1e-3  # of an index of dispersion: perfectly even counts have 0
MODEL_ERROR = 0.05  # of the log of an index of dispersion: what no model of this kind explains


@dataclass(frozen=True, slots=True)
class TargetDispersion:
    """What a draw as long as the trace should show: the closed form for its gaps, a known share of the rate that
    comes from a daily curve, and by how much a typical draw stays below the expectation."""

    curve: DispersionCurve
    gaps: _verdict.Renewal
    profile: Floats  # (W + 1,) variance of the mean of the daily curve over each width, and over the span
    typical: Floats  # (W,) median by mean of the variance that slow components bring

    def of(self, components: Sequence[Component]) -> Floats:
        """(W,) indices of dispersion."""
        curve = self.curve
        widths_s = np.append(curve.widths_s, curve.span_s)
        slow = [part for part in components if _is_slow(part, curve)]
        total = _verdict.dispersion(curve.rate_rps, components, self.gaps, widths_s, self.profile)
        seen = _verdict.seen_in(total[:-1], float(total[-1]), widths_s[:-1], curve.span_s)
        extra = curve.rate_rps * widths_s * _verdict.rate_variance(slow, widths_s)
        varied = _verdict.seen_in(extra[:-1], float(extra[-1]), widths_s[:-1], curve.span_s)
        return np.asarray(seen + (self.typical - 1) * varied)

    def errors(self, components: Sequence[Component]) -> Floats:
        """(W,) log of seen by wanted, in standard errors."""
        return np.asarray(self.curve.logs_over(self.of(components)) / self.curve.errors)

    def cost(self, components: Sequence[Component]) -> float:
        """Sum of the squared errors."""
        return float(np.sum(self.errors(components) ** 2))


class Fit(NamedTuple):
    """Components of the log-rate, slowest first, and by how much a typical draw is off the curve (log2, RMS)."""

    components: tuple[Component, ...]
    off_by: float


def fit(curve: DispersionCurve, gaps: _verdict.Renewal, profile: Floats | None = None) -> Fit:
    """As many components (0 to 3) as the curve can distinguish.

    One more component is taken if it lowers the sum of squared weighted errors by 18.4 (twice the 1 % point with two
    degrees of freedom of chi-square) and their root mean square by 15 %. `profile` (W + 1,) is the variance that a
    daily curve gives the mean rate (1) over each width and over the span. Where no typical draw of such a process
    comes within 0.5 of the curve (a few campaigns carry the trace), the fit is the one whose expectation is right.
    """
    variance = np.zeros(len(curve.widths_s) + 1) if profile is None else profile
    plain = best = _grown(TargetDispersion(curve, gaps, variance, np.ones(len(curve.widths_s))))
    tried = []
    for _ in range(ROUNDS):
        target = TargetDispersion(curve, gaps, variance, _typical(curve, best))
        tried.append(Fit(best, curve.off_by(target.of(best))))
        if not best or (len(tried) > 1 and np.allclose(best, tried[-2].components, rtol=SETTLED)):
            break
        best = _fitted(target, [best])
    closest = min(tried, key=lambda one: one.off_by)
    components = plain if closest.off_by > GOOD else closest.components
    return Fit(tuple(sorted(components, key=lambda part: -part.tau_s)), closest.off_by)


def _grown(wanted: TargetDispersion) -> tuple[Component, ...]:
    best: tuple[Component, ...] = ()
    cost = wanted.cost(best)
    for number in range(1, MOST_COMPONENTS + 1):
        if len(wanted.curve.widths_s) < 2 * number + 2:
            break
        # what was found before, with one more component beside it whose memory is tried over the whole range
        ladder = np.geomspace(wanted.curve.widths_s[0] * 3, wanted.curve.span_s / 3, 6)
        candidate = _fitted(wanted, [(*best, Component(0.1 if best else 0.3, float(tau_s))) for tau_s in ladder])
        lower = wanted.cost(candidate)
        if cost - lower < LEAST_GAIN or lower > cost * (1 - LEAST_FALL) ** 2:
            break
        best, cost = candidate, lower
    return best


def _fitted(wanted: TargetDispersion, starts: Sequence[Sequence[Component]]) -> tuple[Component, ...]:
    """The best components among those reached from each of some starting points."""
    from scipy.optimize import least_squares  # heavy

    def errors(logs: Floats) -> Floats:
        return wanted.errors(_components(logs))

    low = np.log([1e-3, wanted.curve.widths_s[0]])
    high = np.log([LARGEST_SD, wanted.curve.span_s * LONGEST])
    fits = []
    for start in starts:
        values = np.clip(np.log(np.array(start)), low + 1e-3, high - 1e-3)  # (number, 2)
        bounds = (np.tile(low, len(start)), np.tile(high, len(start)))
        result = least_squares(errors, values.ravel(), bounds=bounds, max_nfev=MOST_STEPS)
        fits.append((float(result.cost), _components(result.x)))
    return min(fits)[1]


def _components(logs: Floats) -> tuple[Component, ...]:
    return tuple(Component(float(sd), float(tau_s)) for sd, tau_s in np.exp(np.reshape(logs, (-1, 2))))


def _is_slow(part: Component, curve: DispersionCurve) -> bool:
    return part.tau_s > 2 * curve.span_s / GRID


def _typical(curve: DispersionCurve, components: Sequence[Component]) -> Floats:
    """(W,) median over draws by expectation of the variance of the rate, as a span of this length shows it.

    Components faster than two steps of the grid are left out: a span holds so many of their ups and downs that it
    shows their expectation.
    """
    slow = tuple(part for part in components if _is_slow(part, curve))
    step_s = curve.span_s / GRID
    widths = np.unique(np.round(np.maximum(curve.widths_s / step_s, 1)).astype(int))
    if not slow:
        return np.ones(len(curve.widths_s))
    rate = LogRate(slow, step_s)
    draws = [
        np.concatenate(list(islice(rate.factors(np.random.default_rng(seed)), GRID // STEPS)))
        for seed in np.random.SeedSequence(SEED).spawn(DRAWS)
    ]
    seen = [[summed(path, w).var(ddof=1) / w**2 / path.mean() for w in widths] for path in draws]
    expected = _verdict.rate_variance(slow, np.append(widths * step_s, curve.span_s))
    # a variance of means, so it is the width times it that `seen_in` takes for an index of dispersion
    model = _verdict.seen_in(expected[:-1] * widths, float(expected[-1]) * GRID, widths * step_s, curve.span_s) / widths
    ratio = np.median(seen, axis=0) / np.maximum(model, 1e-12)
    return np.asarray(np.interp(np.log(curve.widths_s), np.log(widths * step_s), ratio))


@dataclass(frozen=True, slots=True)
class DispersionCurve:
    """The index of dispersion of counts at widths from about a mean gap to a tenth of the span.

    `base` is how many arrivals lie in each bin of the smallest width; wider bins are sums of these.
    """

    base: npt.NDArray[np.int64]  # (B,)
    least_s: float
    rate_rps: float
    steps: npt.NDArray[np.int64]  # (W,) widths in units of the smallest
    values: Floats  # (W,)

    @classmethod
    def of(cls, times_s: Floats, least_s: float) -> DispersionCurve:
        """The curve of a trace; widths are whole multiples of `least_s`, about 8 per decade."""
        base = arrivals.counts(times_s, least_s).filled()
        largest = max(len(base) // arrivals.MIN_BINS, 1)
        steps = np.unique(np.round(np.geomspace(1, largest, 1 + int(PER_DECADE * math.log10(largest)))).astype(int))
        values = [float(sums.var(ddof=1) / sums.mean()) for sums in (summed(base, step) for step in steps)]
        rate_rps = (len(times_s) - 1) / float(times_s[-1] - times_s[0])
        return cls(base, least_s, rate_rps, steps, np.array(values))

    @property
    def widths_s(self) -> Floats:
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
