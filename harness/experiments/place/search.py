"""The highest rate that a system sustains, by the bisection of DistServe's planner; it makes no trial itself.

Source: Zhong et al., DistServe, OSDI 2024, section 4 (binary search), with the numbers of its released code.

A rate with its interval over seeds, and whether two of them differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.experiments.capacity.steady import student

RESOLUTION = 0.05
"""A rate is known at least to this share of itself; DistServe's width alone is coarse for large models."""

NOTHING = 16
"""Rates below the width over this are not looked for."""

DOUBLINGS = 12
"""Times that the highest rate is doubled while it is sustained."""

FindMiss = Callable[[float], str | None]
"""The condition that is missed at a rate per GPU; None where the rate is sustained."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The highest rate per GPU that was sustained (0: none was) and the lowest above it that was not; what is missed
    there (None where every rate was sustained); and how many trials it took. `tried_rps` are the lowest rate that was
    sustained and the highest that was not."""

    low_rps: float
    high_rps: float
    binding: str | None
    trials: int
    tried_rps: tuple[float | None, float | None] = field(compare=False)


class _Search:
    """Rates per GPU on both sides, narrowed trial by trial."""

    def __init__(self, find_miss: FindMiss, low_rps: float, high_rps: float) -> None:
        self._find_miss = find_miss
        self.low_rps, self.high_rps = low_rps, high_rps
        self.binding: str | None = None
        self.trials = 0
        self._least_rps: float | None = None
        self._most_rps: float | None = None

    def sustains(self, rate_rps: float) -> bool:
        """Make a trial and move the end that it is about."""
        self.trials += 1
        missed = self._find_miss(rate_rps)
        if missed is None:
            self.low_rps = rate_rps
            self._least_rps = min(rate_rps, self._least_rps or rate_rps)
        else:
            self.high_rps, self.binding = rate_rps, missed
            self._most_rps = max(rate_rps, self._most_rps or rate_rps)
        return missed is None

    def narrow(self, width_rps: float, hopeless_rps: float = 0.0) -> None:
        """Halve what lies between the ends, until it is narrow enough.

        Once no rate is sustained down to `hopeless_rps`, one trial of next to no load decides whether to go on.
        """
        while self._is_wide(width_rps):
            self.sustains((self.low_rps + self.high_rps) / 2)
            if self.low_rps == 0.0 and self.high_rps <= hopeless_rps:
                hopeless_rps = 0.0
                if not self.sustains(width_rps / NOTHING):
                    return
                self.low_rps = 0.0  # the ends stay on the grid of the bisection

    def _is_wide(self, width_rps: float) -> bool:
        apart = self.high_rps - self.low_rps
        if self.low_rps == 0.0:
            return apart > width_rps / NOTHING
        return apart > width_rps or apart > RESOLUTION * self.high_rps

    @property
    def ends(self) -> Ends:
        return Ends(self.low_rps, self.high_rps, self.binding, self.trials, (self._least_rps, self._most_rps))


def bisected(find_miss: FindMiss, top_rps: float, width_rps: float) -> Ends:
    """From 0 to `top_rps`, as DistServe searches; the top is doubled while all below it is sustained."""
    going = _Search(find_miss, 0.0, top_rps)
    going.narrow(width_rps, top_rps / 8)
    for _ in range(DOUBLINGS):
        if going.binding is not None or not going.sustains(going.high_rps):
            break
        going.high_rps = 2 * going.low_rps
    going.narrow(width_rps)
    return going.ends


def nearby(find_miss: FindMiss, guess: Ends) -> Ends:
    """The same for other traffic, from what was found for one: few trials, to `RESOLUTION` of the rate."""
    width = max(guess.high_rps - guess.low_rps, RESOLUTION * guess.low_rps)
    going = _Search(find_miss, 0.0, guess.high_rps)
    if guess.low_rps == 0.0 or going.sustains(guess.low_rps):
        _upwards(going, guess.low_rps + width, width)
    else:  # ever longer steps down until a rate is sustained
        step = width
        while going.high_rps > width and not going.sustains(max(going.high_rps - step, width / 2)):
            step *= 2
    if going.low_rps > 0.0:
        going.narrow(width)
    return going.ends


def _upwards(going: _Search, rate_rps: float, step: float) -> None:
    """Ever longer steps up until a rate is not sustained."""
    for _ in range(DOUBLINGS):
        if not going.sustains(rate_rps):
            return
        step *= 2
        rate_rps += step


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

    The first seed decides, as in DistServe's planner, which has one; the others tell how far to trust it.
    """
    values = [*by_seed.values()]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Rate(values[0], mean, None, None, dict(by_seed), width)
    half = math.hypot(_half(values, mean), width / 2)
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
    mean = math.fsum(gaps) / len(gaps)
    return abs(mean) > max(_half(gaps, mean), width)


def _half(values: Sequence[float], mean: float) -> float:
    """Half of the 95% interval of a mean."""
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return student(len(values)) * math.sqrt(variance / len(values))
