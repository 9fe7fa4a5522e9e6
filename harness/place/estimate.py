"""A rate with its interval over seeds, and whether two of them can be told apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
      2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)  # fmt: skip
"""97.5% quantiles of Student's t with 1 to 29 degrees of freedom (any table; scipy would take longer to load)."""

MOST_SEEDS = len(_T) + 1


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate per GPU: `value` is what decides, `mean` that over seeds.

    `low` and `high` hold the mean of all traffic of this kind with 95%; both are None of one seed. `width` is how
    finely each seed's rate is known.
    """

    value: float
    mean: float
    low: float | None
    high: float | None
    by_seed: Mapping[int, float]
    width: float

    def times(self, factor: float) -> Rate:
        """The rate of so many times as much."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        by_seed = {seed: value * factor for seed, value in self.by_seed.items()}
        return Rate(self.value * factor, self.mean * factor, low, high, by_seed, self.width * factor)


def rate(by_seed: Mapping[int, float], width: float, *, first: bool = False) -> Rate:
    """The mean of independent values, one per seed, each known to `width` from itself upwards.

    With `first` the first seed decides, as in DistServe's planner, which has one; the others tell how far to trust it.
    """
    values = [*by_seed.values()]
    mean = math.fsum(values) / len(values)
    value = values[0] if first else mean
    if len(values) == 1:
        return Rate(value, mean, None, None, dict(by_seed), width)
    half = math.hypot(_half(values, mean), width / 2)
    # On the scale of logarithms, because a rate is above 0 and mean - half may not be (as harness.sweep.spread).
    low, high = (mean * math.exp(sign * half / mean) for sign in (-1, 1)) if mean > 0 else (0.0, half)
    return Rate(value, mean, low, high, dict(by_seed), width)


def apart(one: Rate, other: Rate) -> bool | None:
    """Whether two rates of the same seeds differ by more than their seeds do; None where one seed tells nothing."""
    seeds = sorted(set(one.by_seed) & set(other.by_seed))
    if len(seeds) < 2:
        return None
    gaps = [one.by_seed[seed] - other.by_seed[seed] for seed in seeds]
    mean = math.fsum(gaps) / len(gaps)
    return abs(mean) > max(_half(gaps, mean), max(one.width, other.width))


def _half(values: Sequence[float], mean: float) -> float:
    """Half of the 95% interval of a mean."""
    count = len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return _T[count - 2] * math.sqrt(variance / count)
