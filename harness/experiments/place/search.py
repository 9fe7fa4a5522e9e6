"""A rate with its interval over seeds, and whether two of them differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.stats.seeds import half_width


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


def rate(by_seed: Mapping[int, float], width: float) -> Rate:
    """Of independent values, one per seed, each known to `width` from itself upwards.

    The first seed decides, and the others tell how far to trust it.
    """
    values = [*by_seed.values()]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Rate(values[0], mean, None, None, dict(by_seed), width)
    half = math.hypot(half_width(values, 2) or 0.0, width / 2)
    # On the scale of logarithms, because a rate is above 0 and mean - half may not be (as harness.stats.seeds).
    low, high = (mean * math.exp(sign * half / mean) for sign in (-1, 1)) if mean > 0 else (0.0, half)
    return Rate(values[0], mean, low, high, dict(by_seed), width)


def apart(one: Mapping[int, float], other: Mapping[int, float], width: float = 0.0) -> bool | None:
    """Whether the values of two systems on equal seeds differ by more than their seeds do, and by more than `width`;
    None where one seed tells nothing."""
    seeds = sorted(set(one) & set(other))
    if len(seeds) < 2:
        return None
    gaps = [one[seed] - other[seed] for seed in seeds]
    return abs(math.fsum(gaps) / len(gaps)) > max(half_width(gaps, 2) or 0.0, width)
