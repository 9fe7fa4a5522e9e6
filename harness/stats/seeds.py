"""Statistics over the seeds of a run: mean, interval and range."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from harness.data.codec import Count, Number, Part
from harness.stats.tails import student

Seed = TypeVar("Seed")

LEAST_SEEDS = 5
"""Fewest seeds whose mean gets an interval (Student's t of fewer is wider than it is useful)."""


class Spread(Part, frozen=True):
    """A value over seeds: mean, 95% interval (None where the seeds do not give one), least and greatest."""

    n: Count
    mean: Number
    low: Number | None
    high: Number | None
    least: Number
    most: Number

    @property
    def ends(self) -> tuple[Number, Number]:
        """The interval where there is one, else the range over the seeds."""
        if self.low is None or self.high is None:
            return self.least, self.most
        return self.low, self.high


def spread(values: Sequence[float | None], *, most: float | None = None) -> Spread | None:
    """Mean, interval and range of one value per seed; None of no values.

    Values are not negative, and not above `most` where that is given. `low` and `high` are Student's t interval of the
    mean at 95%, taken on the scale of logarithms, or of log odds below `most`: None below 5 seeds, and where all seeds
    have the same value, which says nothing about its spread. A seed without a value is None.
    """
    present = [value for value in values if value is not None]
    if not present:
        return None
    n, mean = len(present), math.fsum(present) / len(present)
    low, high = _interval(present, mean, most)
    return Spread(n, mean, low, high, min(present), max(present))


def half_width(values: Sequence[float], least: int = LEAST_SEEDS) -> float | None:
    """Half the width of Student's t interval of the mean; None of fewer than `least` values, and of equal ones."""
    n = len(values)
    if n < least or min(values) == max(values):
        return None
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return student(n) * math.sqrt(variance / n)


def jackknife(estimate: Callable[[Seed | None], float | None], seeds: Sequence[Seed]) -> tuple[float, float] | None:
    """The interval of `estimate(None)`, which takes all seeds, from `estimate(seed)`, which leaves one of them out.

    Student's t on the pseudo-values (Tukey, "Bias and confidence in not-quite large samples", 1958); None where an
    estimate is None, and where `half_width` is.
    """
    overall, without = estimate(None), [estimate(seed) for seed in seeds]
    present, n = [value for value in without if value is not None], len(seeds)
    if overall is None or len(present) < n:
        return None
    half = half_width([n * overall - (n - 1) * value for value in present])
    return None if half is None else (overall - half, overall + half)


def _interval(values: Sequence[float], mean: float, most: float | None) -> tuple[float | None, float | None]:
    half = half_width(values)
    if half is None:
        return None, None
    # Note: mean +- half leaves the range of the quantity where seeds differ much, and cutting it there keeps an end
    # that is too near on the other side. By the delta method on the log (or log odds) scale neither happens, and the
    # truth is covered more often (docs/guide/statistics.md). The error of a mean of values above 0 is at most the mean.
    room = 1.0 if most is None else 1.0 - mean / most
    factor = math.exp(half / (mean * room))
    if most is None:
        return mean / factor, mean * factor
    odds = mean / (most - mean)
    return most * odds / (odds + factor), most * odds * factor / (1 + odds * factor)
