"""The statistics by which a model, toys and the trace are compared, all measured by the same code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.stats import arrivals
from workloads.fit._stamps import Stamps

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator], Iterator[Floats]]
"""Endless blocks of arrival times in seconds."""

LONG_S = (300.0, 1200.0, 3600.0, 21_600.0, 86_400.0)
"""Widths beyond those of `burstiness.WIDTHS_S`, where the trace is long enough."""

ACF_S = (1.0, 10.0, 60.0, 3600.0)
MOST_BINS, MOST_PER_ROW = 10_000_000, 100  # of a longer or emptier trace the narrowest widths are left out
MOST_GAPS = 200_000  # compared; the distance of so many is known to 0.003
WINDOWS_S = (300.0, 1200.0, 3600.0)  # the first one in which at least three windows have 10 gaps is taken


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is measured on a series of arrivals (s): the widths that the trace allows, and its gaps to compare with."""

    widths_s: tuple[float, ...]
    acf_s: tuple[float, ...]
    window_s: float | None
    gaps_s: Floats | None  # sorted, of the trace; None where their distribution is not identifiable

    @classmethod
    def of_trace(cls, stamps: Stamps) -> Statistics:
        """The statistics that suit a trace."""
        grain_s, span_s = stamps.grain_s or 0.0, stamps.span_s
        least_s = span_s / min(MOST_BINS, MOST_PER_ROW * len(stamps.at_s))
        widths = _within((*arrivals.WIDTHS_S, *LONG_S), grain_s, least_s, span_s / arrivals.MIN_BINS)
        acf = _within(ACF_S, grain_s, least_s, span_s / (arrivals.MIN_BINS + 1))
        known = stamps.gaps_known
        windows = (w for w in WINDOWS_S if known and w > least_s and len(arrivals.window_cvs(stamps.spread_s, w)) >= 3)
        gaps_s = sorted_gaps(stamps.spread_s) if known else None
        return cls(widths, acf, next(windows, None), gaps_s)

    def measure(self, at_s: Floats) -> Floats:
        """Dispersion at each width, lag-1 autocorrelation at each, CV of gaps, CV in windows, KS of gaps, rate."""
        found = [_nan(arrivals.dispersion(at_s, width_s)) for width_s in self.widths_s]
        found += [_nan(arrivals.autocorrelation(arrivals.counts(at_s, width_s))) for width_s in self.acf_s]
        found.append(_nan(arrivals.gap_cv(at_s)) if self.gaps_s is not None else math.nan)
        cvs = arrivals.window_cvs(at_s, self.window_s) if self.window_s is not None else np.zeros(0)
        found.append(float(np.median(cvs)) if len(cvs) else math.nan)
        found.append(arrivals.distance(sorted_gaps(at_s), self.gaps_s) if self.gaps_s is not None else math.nan)
        return np.array([*found, (len(at_s) - 1) / (at_s[-1] - at_s[0])])

    def drawn(self, draw: Draw, span_s: float, seeds: int) -> Floats:
        """(seeds, statistics) of draws of `span_s`; those that bring fewer than 3 arrivals count as unknown."""
        draws = (until(draw(np.random.default_rng(seed)), span_s) for seed in range(seeds))
        empty = np.full(len(self.widths_s) + len(self.acf_s) + 4, math.nan)
        return np.array([self.measure(at_s) if len(at_s) > 2 else empty for at_s in draws])


def sorted_gaps(at_s: Floats) -> Floats:
    """At most about 200,000 of the gaps, evenly spaced over the series."""
    gaps_s = np.diff(at_s)
    return np.sort(gaps_s[:: -(-len(gaps_s) // MOST_GAPS) or 1])


def toy(rate_rps: float, cv: float) -> Draw:
    """Gamma renewal arrivals at a constant rate; `cv` 1 is Poisson."""

    def blocks(rng: np.random.Generator) -> Iterator[Floats]:
        last_s = 0.0
        while True:
            block = last_s + np.cumsum(rng.gamma(cv**-2, cv**2 / rate_rps, 4096))
            yield block
            last_s = float(block[-1])

    return blocks


def until(blocks: Iterator[Floats], span_s: float) -> Floats:
    """The times up to `span_s`."""
    kept = []
    for block in blocks:
        kept.append(block)
        if len(block) and block[-1] > span_s:
            break
    at_s = np.concatenate(kept)
    return np.asarray(at_s[at_s <= span_s])


def _within(widths_s: Sequence[float], grain_s: float, least_s: float, most_s: float) -> tuple[float, ...]:
    """Those widths of which the span holds enough and not too many; on a grid the nearest whole ticks, each once."""
    if grain_s:
        widths_s = [max(round(w / grain_s), 1) * grain_s for w in widths_s]
    return tuple(sorted({w for w in widths_s if least_s <= w <= most_s}))


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
