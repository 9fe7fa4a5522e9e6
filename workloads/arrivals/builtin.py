"""Arrivals of one law each: independent gaps at one rate, or a rate along straight lines, over the day, or in jumps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from harness.bounds import DayHour, NotNegative, Positive, Weekday, check
from harness.errors import UsageError
from harness.spec import seconds
from workloads.arrivals._operational import AtRate, GapCv, Piece, gamma_cdf, gamma_gaps, times_along, times_from
from workloads.arrivals._path import AlongPath, Path, along, flat, levels, rest_of

CHORDS = 288  # straight lines of 5 min for a day's sinusoid: off by at most 0.006% of its amplitude, the mean is exact
WEEK = (1, 1, 1, 1, 1, 0, 0)  # Monday first; 0 is weekend


@dataclass(frozen=True, slots=True)
class Constant(AtRate):
    """Constant arrivals: equal gaps of 1/rate seconds, the first at 0.

    Request i arrives at i / `rate_rps` seconds (`rate_rps` in requests per second).

    Source: the closed schedule of a metronome; nothing is drawn. It has no gap law to test a run against,
    because all its gaps are equal.
    """

    rate_rps: Positive = 1.0

    def times(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002  # nothing is random here
        return (i / self.rate_rps for i in count())


@dataclass(frozen=True, slots=True)
class Poisson(AtRate):
    """Poisson arrivals: independent exponential gaps, as from very many independent users.

    A homogeneous Poisson process of `rate_rps` requests per second.

    Gaps have mean 1/rate_rps seconds and coefficient of variation 1. Source: the usual assumption of the
    field, e.g. DistServe (OSDI 2024, section 6.1); real traffic is burstier (see `gamma`, `trace`).
    """

    rate_rps: Positive = 1.0

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        return times_from(lambda n: rng.exponential(1 / self.rate_rps, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        return np.asarray(-np.expm1(-self.rate_rps * np.maximum(gaps_s, 0)))


@dataclass(frozen=True, slots=True)
class Gamma(AtRate):
    """Gamma arrivals: independent gamma gaps, burstier than Poisson for cv > 1 and more regular for cv < 1.

    A renewal process of `rate_rps` requests per second whose gaps have coefficient of variation `cv`.

    Gamma shape = 1/cv**2, scale = cv**2/rate_rps seconds; cv = 1 is Poisson. Gaps are neither clipped nor
    repeated. Source: BurstGPT (KDD 2025, section 3), and the `burstiness` of vLLM's benchmark, which is the
    shape. It bends the gap law only: counts over long windows stay as even as their mean allows.
    """

    rate_rps: Positive = 1.0
    cv: GapCv = 1.0

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times in seconds; the first gap comes before the first arrival."""
        shape, scale_s = 1 / self.cv**2, self.cv**2 / self.rate_rps
        return times_from(lambda n: rng.gamma(shape, scale_s, n))

    def gap_cdf(self, gaps_s: np.ndarray) -> np.ndarray:
        return gamma_cdf(np.asarray(gaps_s) * self.rate_rps, self.cv)


@dataclass(frozen=True, slots=True)
class Ramp(AlongPath):
    """Ramp arrivals: the rate goes in a straight line from one value to another, and stays there.

    The rate rises (or falls) from `from_rps` to `to_rps` requests per second over `over_s` seconds, then holds.

    rate(t) = from + (to - from) min(t, over) / over. A ramp to 0 ends there. The long-run mean is `to_rps`, and that
    is what --rate (`rate_rps`) sets: both ends are scaled by rate_rps / to_rps; without it they stand as written (for a
    ramp to 0 the mean is that of the ramp, from / 2). Inside, gamma gaps of coefficient of variation `cv` in
    operational time (the integral of the rate); cv = 1 is Poisson. Source: the `ramping-arrival-rate` executor of
    k6; time change as in Daley and Vere-Jones, An Introduction to the Theory of Point Processes (2003), section 7.4.
    """

    from_rps: NotNegative = 0.1
    to_rps: NotNegative = 1.0
    over_s: Positive = 60.0
    cv: GapCv = 1.0
    rate_rps: Positive | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.from_rps == self.to_rps == 0:
            raise ValueError("from_rps and to_rps are both 0, so nothing would ever arrive.")

    @property
    def mean_rate_rps(self) -> float:
        """Long-run mean rate in requests per second: where the ramp ends."""
        return self._path().mean_rate_rps if self.rate_rps is None else self.rate_rps

    def _path(self) -> Path:
        mean = self.to_rps or self.from_rps / 2
        scale = 1.0 if self.rate_rps is None else self.rate_rps / mean
        start, end = scale * self.from_rps, scale * self.to_rps
        return Path(along((0.0, self.over_s), (start, end)), flat(math.inf, end) if end else ())


@dataclass(frozen=True, slots=True)
class Spike(AtRate, AlongPath):
    """Spike arrivals: a steady rate that is multiplied for a short time, once or again and again.

    A base rate that is `factor` times as high for `for_s` seconds from `at_s` seconds on, then each `every_s`.

    `rate_rps` is the long-run mean in requests per second: without `every_s` that is the base rate, with it the base
    rate is rate_rps / (1 + (factor - 1) for_s / every_s). A factor below 1 is a dip, 0 an outage of the clients.
    Inside, gamma gaps of coefficient of variation `cv` in operational time (the integral of the rate); cv = 1 is
    Poisson. Source: the spike test of load testing (k6 guides, "spike testing"); time change as in Daley and
    Vere-Jones, An Introduction to the Theory of Point Processes (2003), section 7.4.
    """

    rate_rps: Positive = 1.0
    factor: NotNegative = 5.0
    at_s: NotNegative = 60.0
    for_s: Positive = 10.0
    every_s: float | None = None
    cv: GapCv = 1.0

    def __post_init__(self) -> None:
        check(self)
        if self.every_s is not None and not self.for_s < self.every_s < math.inf:
            raise ValueError(f"every_s must be longer than for_s ({self.for_s:g} s), got {self.every_s:g} s.")

    @property
    def base_rps(self) -> float:
        """Rate outside the spikes, requests per second."""
        if self.every_s is None:
            return self.rate_rps
        return self.rate_rps / (1 + (self.factor - 1) * self.for_s / self.every_s)

    def _path(self) -> Path:
        before, spike = flat(self.at_s, self.base_rps), flat(self.for_s, self.factor * self.base_rps)
        if self.every_s is None:
            return Path(before + spike, flat(math.inf, self.base_rps))
        return Path(before, spike + flat(self.every_s - self.for_s, self.base_rps))


@dataclass(frozen=True, slots=True)
class Steps(AlongPath):
    """Step arrivals: a staircase of rates, each for the same time.

    The rate is each of `levels` (requests per second, joined by '/') in turn, `every_s` seconds each.

    After the last level, `then` says what comes: `repeat` from the first, `hold` the last, or `stop`. The long-run
    mean is that of the levels (of the last one with `hold`), and that is what --rate (`rate_rps`) sets: all levels are
    scaled by one factor; without it they stand as written. Inside, gamma gaps of coefficient of variation `cv` in
    operational time (the integral of the rate), not begun anew at a step; cv = 1 is Poisson. Source: the staircase of
    load tests (k6 `ramping-arrival-rate` stages); time change as in Daley and Vere-Jones (2003), section 7.4.
    """

    levels: str = "1/2/4"
    every_s: Positive = 60.0
    then: Literal["repeat", "hold", "stop"] = "repeat"
    cv: GapCv = 1.0
    rate_rps: Positive | None = None

    def __post_init__(self) -> None:
        check(self)
        last = levels(self.levels)[-1]
        if self.then == "hold" and last == 0:
            raise ValueError(f"the last of levels is 0, got '{self.levels}'; holding it means then=stop.")

    @property
    def mean_rate_rps(self) -> float:
        return self._mean_of_levels() if self.rate_rps is None else self.rate_rps

    def _mean_of_levels(self) -> float:
        rates = levels(self.levels)
        return rates[-1] if self.then == "hold" else math.fsum(rates) / len(rates)

    def _path(self) -> Path:
        scale = 1.0 if self.rate_rps is None else self.rate_rps / self._mean_of_levels()
        rates = [scale * level for level in levels(self.levels)]
        stairs = tuple(piece for rate in rates for piece in flat(self.every_s, rate))
        if self.then == "repeat":
            return Path((), stairs)
        return Path(stairs, flat(math.inf, rates[-1]) if self.then == "hold" else ())


@dataclass(frozen=True, slots=True)
class Diurnal(AtRate, AlongPath):
    """Diurnal arrivals: a rate with a daily curve, and fewer requests on weekends.

    A daily curve of the rate around its long-run mean `rate_rps` (requests per second).

    Without `hours` the curve is 1 + a cos(2 pi (h - peak_h) / 24), h the hour of day, with a = (ratio - 1) /
    (ratio + 1), so that `ratio` is peak rate by trough rate. With `hours`, relative rates joined by '/' (24 of them,
    or any number from 2 on), each stands at the middle of its equal part of the day, joined by straight lines; then
    `ratio` and `peak_h` are not used. Saturdays and Sundays have `weekend` times the rate of the other days. A run
    begins at hour `start_h` of day `start_day` (0 is Monday). `period_s` is the length of a day in seconds: a shorter
    one compresses the curve, not the gaps. Inside, gamma gaps of coefficient of variation `cv` in operational time
    (the integral of the rate); cv = 1 is Poisson. Source: the daily curves of BurstGPT (KDD 2025, figure 4); time
    change as in Daley and Vere-Jones, An Introduction to the Theory of Point Processes (2003), section 7.4.
    """

    rate_rps: Positive = 1.0
    ratio: Annotated[float, Meta(ge=1, description="peak by trough")] = 4.0
    peak_h: DayHour = 16.0
    hours: str | None = None
    weekend: NotNegative = 1.0
    start_h: DayHour = 0.0
    start_day: Weekday = 0
    period_s: Positive = 86400.0
    cv: GapCv = 1.0

    def __post_init__(self) -> None:
        check(self)
        if self.hours is not None and len(levels(self.hours, "hours")) < 2:
            raise ValueError(f"hours must be at least 2 relative rates, such as 1/2/4/2, got '{self.hours}'.")

    def _path(self) -> Path:
        """The week (or the day, where all are alike), from its first hour on; before it what is left of the first."""
        day = self._day()
        days = [1.0] if self.weekend == 1 else [1.0 if weekday else self.weekend for weekday in WEEK]
        scale = self.rate_rps / (math.fsum(days) / len(days))
        cycle = tuple(Piece(d, scale * f * a, scale * f * b) for f in days for d, a, b, _ in day)
        start_s = (self.start_day % len(days) + self.start_h / 24) * self.period_s
        return Path(rest_of(cycle, start_s) if start_s else (), cycle)

    def _day(self) -> tuple[Piece, ...]:
        """A day with mean rate 1."""
        if self.hours is None:
            phase = np.arange(CHORDS + 1) / CHORDS
            swing = (self.ratio - 1) / (self.ratio + 1)
            rates = 1 + swing * np.cos(2 * math.pi * (phase - self.peak_h / 24))
        else:
            hourly = np.array(levels(self.hours, "hours"))
            middles = (np.arange(len(hourly)) + 0.5) / len(hourly)
            phase = np.concatenate(([0.0], middles, [1.0]))
            rates = np.interp(phase, middles, hourly / hourly.mean(), period=1.0)
        return along((self.period_s * phase).tolist(), rates.tolist())


@dataclass(frozen=True, slots=True)
class Mmpp(AtRate):
    """MMPP arrivals: a Poisson process whose rate jumps at random between a few states.

    A Markov-modulated Poisson process of long-run mean `rate_rps` requests per second.

    State i has the relative rate `levels`[i] and lasts an exponential time of mean `dwells`[i] seconds (both joined by
    '/', two states or more); then each of the other states is as likely as any. So state i has the share p_i =
    dwells[i] / sum(dwells) of the time and the rate r_i = rate_rps levels[i] / sum_j p_j levels[j]. The first state is
    drawn with those shares, so the process is stationary.

    The index of dispersion of counts (`dispersion`) is 1 + (2 / rate_rps) int_0^T (1 - u/T) c(u) du, c being the
    covariance of the rate; for two states it grows to 1 + 2 (r_1 - r_2)**2 p_1 p_2 tau / rate_rps with tau = 1 /
    (1/dwell_1 + 1/dwell_2) seconds. Inside, gamma gaps of coefficient of variation `cv` in operational time; only
    cv = 1 is Poisson, and only for it does the formula hold. The rate is random, so its gaps have no law to be tested
    against. Source: Fischer and Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook, Performance
    Evaluation 18 (1993).
    """

    rate_rps: Positive = 1.0
    levels: str = "1/10"
    dwells: str = "90s/10s"
    cv: GapCv = 1.0

    def __post_init__(self) -> None:
        check(self)
        states, times = len(levels(self.levels)), len(dwells_of(self.dwells))
        if states != times or states < 2:
            raise ValueError(
                f"levels and dwells must have one value for each of 2 or more states, got {states} and {times}."
            )

    @property
    def shares(self) -> np.ndarray:
        """(states,) share of the time."""
        dwells_s = np.array(dwells_of(self.dwells))
        return np.asarray(dwells_s / dwells_s.sum())

    @property
    def rates_rps(self) -> np.ndarray:
        """(states,) rate of each state, requests per second."""
        relative = np.array(levels(self.levels))
        return np.asarray(self.rate_rps * relative / (self.shares @ relative))

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        gaps, chain = rng.spawn(2)  # a stream each, so that another rate has the same states
        return times_along(self._states(chain), gamma_gaps(gaps, self.cv))

    def _states(self, rng: np.random.Generator) -> Iterator[Piece]:
        rates, dwells_s = self.rates_rps.tolist(), dwells_of(self.dwells)
        state = int(rng.choice(len(rates), p=self.shares))
        while True:
            yield Piece(rng.exponential(dwells_s[state]), rates[state], rates[state])
            other = int(rng.integers(len(rates) - 1))
            state = other + (other >= state)


def dwells_of(text: str) -> tuple[float, ...]:
    """Durations in seconds, all > 0, written like '90s/5min'. Raises ValueError otherwise."""
    try:
        found = tuple(seconds(part, "dwells") for part in text.split("/"))
    except UsageError:
        raise ValueError(f"dwells must be durations joined by '/', such as 90s/10s, got '{text}'.") from None
    if not all(duration_s > 0 for duration_s in found):
        raise ValueError(f"dwells must be > 0, got '{text}'.")
    return found
