"""What the arrivals of a run will show: its rate, and the dispersion of its counts.

Runs are drawn with other seeds: a further one is between the k-th lowest and the k-th highest of n with probability
1 - 2 k / (n + 1), whatever the law (Wilks, Determination of Sample Sizes for Setting Tolerance Limits, 1941).
"""

import heapq
from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from harness.api import Arrivals
from harness.stats.arrivals import counts, spread
from workloads.arrivals._exact import CLOSE, Conditional

DRAWN = ((2_000, 39, 2), (None, 19, 1))
"""Up to so many arrivals of a run, so many are drawn, and the k-th of them bound nine of ten."""
WIDTHS_S = (10.0, 60.0)
"""Of the counts; fewer than 10 of them have no dispersion."""


def expected(parts: Sequence[Arrivals], span_s: float, what: str) -> str:
    """Rate (of `what`: req, sessions) and dispersion of 9 of 10 runs of `span_s` with these arrivals together."""
    mean_rps = sum(part.mean_rate_rps for part in parts)
    runs, k = next((runs, k) for most, runs, k in DRAWN if most is None or mean_rps * span_s <= most)
    exact = all(isinstance(part, Conditional) and part.over_s is not None for part in parts)
    rates: list[float] = []
    spreads: dict[float, list[float]] = {width_s: [] for width_s in WIDTHS_S if width_s < span_s / 10}
    for rng in np.random.default_rng(len(parts)).spawn(runs):
        streams = [
            part.times(own, 1) if isinstance(part, Conditional) else part.times(own)
            for part, own in zip(parts, rng.spawn(len(parts)), strict=True)
        ]
        at_s = np.fromiter(takewhile(lambda t: t < span_s, heapq.merge(*streams)), float)
        rates.append(len(at_s) / span_s)
        for width_s, found in spreads.items():
            found.append(spread(counts(at_s, width_s)) or 0.0)
    low, high = (mean_rps * (1 - CLOSE), mean_rps * (1 + CLOSE)) if exact else _between(rates, k)
    texts = [f"{a:.2g} to {b:.2g} in {w:g} s" for w, found in spreads.items() for a, b in [_between(found, k)]]
    return f"{low:.3g} to {high:.3g} {what}/s" + (f", dispersion {', '.join(texts)}" if texts else "")


def _between(values: list[float], k: int) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]
