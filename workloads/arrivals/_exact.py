"""A window of a bursty process, scaled to the requested rate: the rate wanders inside it, its mean is exact.

The path of the rate is drawn as ever and divided by its own mean over the window, as a trace is that is cut and thinned
to a rate. Gaps along it are drawn until the count is within 1 % of the expected one: rejection sampling from the law
of the process, given its path and its count. Source of the method: Devroye, Non-Uniform Random Variate Generation,
1986, section II.3.

What the arrivals of a run will show, its rate and the dispersion of its counts, comes from runs that are drawn with
other seeds: a further one is between the k-th lowest and the k-th highest of n with probability 1 - 2 k / (n + 1),
whatever the law (Wilks, Determination of Sample Sizes for Setting Tolerance Limits, 1941).
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count, takewhile
from typing import Literal, Protocol, Self, runtime_checkable

import numpy as np

from harness.api import Arrivals
from harness.stats.arrivals import counts, spread
from workloads.arrivals._operational import Stretch, chunks_along, gamma_pieces, one_more_idle

Mean = Literal["exact", "long-run"]
LONGEST_S = 7200.0  # runs of minutes; over hours the changes of rate are what such arrivals are for
CLOSE = 0.01  # of the requests
MOST_DRAWS = 200  # of a window; then the closest is taken
MOST_EMPTY = 100_000  # windows in a row: some seconds of drawing
Path = Callable[[float, np.random.Generator], Iterator[Stretch]]
"""Endless stretches from a time (s) on; the first has a shape. Only the ratios of their rates matter."""

DRAWN = ((2_000, 39, 2), (None, 19, 1))
"""Up to so many arrivals of a run, so many are drawn, and the k-th of them bound nine of ten."""
WIDTHS_S = (10.0, 60.0)
"""Of the counts; fewer than 10 of them have no dispersion."""


@runtime_checkable
class Conditional(Protocol):
    """Arrivals that can hold the requested rate exactly over a run."""

    @property
    def over_s(self) -> float | None:
        """Seconds of a window in which the rate is exact; None where it is that of the long run only."""
        ...

    def for_run(self, span_s: float) -> Self:
        """These arrivals for a run of so many seconds."""
        ...

    def times(self, rng: np.random.Generator, draws: int = ...) -> Iterator[float]:
        """Endless arrival times in seconds; `draws` as of `times`."""
        ...


def check(mean: Mean, over_s: float | None) -> None:
    """Raise ValueError for a window of an unconditional mean."""
    if over_s is not None and mean != "exact":
        raise ValueError("over goes with mean=exact; with mean=long-run no window has an exact rate.")


def window(mean: Mean, over_s: float | None, span_s: float) -> float | None:
    """Over how many seconds the rate of a run of `span_s` is exact; None for its long-run mean only."""
    return span_s if over_s is None and mean == "exact" and span_s <= LONGEST_S else over_s


def times(
    path: Path, rate_rps: float, over_s: float, rng: np.random.Generator, draws: int = MOST_DRAWS
) -> Iterator[float]:
    """Endless arrival times (s): `rate_rps` within 1 % in each window of `over_s`; windows are independent.

    Below one request the count of a window is 0 or 1, so that it is the expected one on average. With fewer `draws` of
    a window its count is less exact, and its dispersion as it is. Raises UsageError for MOST_EMPTY windows in a row.
    """
    mean = rate_rps * over_s
    idle = 0
    for k in count():
        path_rng, gaps_rng = rng.spawn(2)  # the path does not depend on the rate
        if mean < 1 and gaps_rng.random() >= mean:
            idle = one_more_idle(idle, MOST_EMPTY)
            continue
        idle = 0
        start_s = k * over_s
        stretches = list(_until(path(start_s, path_rng), over_s))
        scale = mean / math.fsum(s.duration_s * s.rate for s in stretches)
        yield from (start_s + _drawn(stretches, scale, max(mean, 1.0), gaps_rng, draws)).tolist()


def _until(path: Iterator[Stretch], end_s: float) -> Iterator[Stretch]:
    for stretch in path:
        yield stretch._replace(duration_s=min(stretch.duration_s, end_s))
        end_s -= stretch.duration_s
        if end_s <= 0:
            return


def _drawn(stretches: list[Stretch], scale: float, expected: float, rng: np.random.Generator, draws: int) -> np.ndarray:
    """Times of the first draw whose count is close to the expected one, or of the closest of all."""
    best: np.ndarray | None = None
    for _ in range(draws):
        pieces = gamma_pieces((s._replace(rate=scale * s.rate) for s in stretches), rng)
        drawn = np.concatenate([np.zeros(0), *chunks_along(pieces, rng.standard_exponential)])
        if best is None or abs(len(drawn) - expected) < abs(len(best) - expected):
            best = drawn
        if abs(len(best) - expected) <= max(CLOSE * expected, 0.5):
            break
    assert best is not None
    return best


def expected(parts: Sequence[Arrivals], span_s: float, what: str) -> str:
    """Rate (of `what`: req, sessions) and dispersion of 9 of 10 runs of `span_s` with these arrivals together."""
    mean_rps = sum(part.mean_rate_rps for part in parts)
    runs, k = next((runs, k) for most, runs, k in DRAWN if most is None or mean_rps * span_s <= most)
    exact = all(isinstance(part, Conditional) and part.over_s is not None for part in parts)
    rates: list[float] = []
    spreads: dict[float, list[float]] = {width_s: [] for width_s in WIDTHS_S if width_s < span_s / 10}
    for rng in np.random.default_rng(len(parts)).spawn(runs):
        streams = [
            part.times(part_rng, 1) if isinstance(part, Conditional) else part.times(part_rng)
            for part, part_rng in zip(parts, rng.spawn(len(parts)), strict=True)
        ]
        at_s = np.fromiter(takewhile(lambda t: t < span_s, heapq.merge(*streams)), float)
        rates.append(len(at_s) / span_s)
        for width_s, per_run in spreads.items():
            per_run.append(spread(counts(at_s, width_s)) or 0.0)
    low, high = (mean_rps * (1 - CLOSE), mean_rps * (1 + CLOSE)) if exact else _between(rates, k)
    texts = [f"{a:.2g} to {b:.2g} in {w:g} s" for w, per_run in spreads.items() for a, b in [_between(per_run, k)]]
    return f"{low:.3g} to {high:.3g} {what}/s" + (f", dispersion {', '.join(texts)}" if texts else "")


def _between(values: list[float], k: int) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]
