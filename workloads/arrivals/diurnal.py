"""Diurnal arrivals: a rate with a daily curve, and fewer requests on weekends."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from harness.bounds import NotNegative, Positive, check
from workloads._checks import DayHour, Weekday
from workloads.arrivals._operational import Piece
from workloads.arrivals._path import AlongPath, Path, along, levels, rest_of
from workloads.arrivals._renewal import AtRate, GapCv

CHORDS = 288  # straight lines of 5 min for a day's sinusoid: off by at most 0.006% of its amplitude, the mean is exact
WEEK = (1, 1, 1, 1, 1, 0, 0)  # Monday first; 0 is weekend


@dataclass(frozen=True, slots=True)
class Diurnal(AtRate, AlongPath):
    """A daily curve of the rate around its long-run mean `rate_rps` (requests per second).

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
            at = np.arange(CHORDS + 1) / CHORDS
            swing = (self.ratio - 1) / (self.ratio + 1)
            rates = 1 + swing * np.cos(2 * math.pi * (at - self.peak_h / 24))
        else:
            given = np.array(levels(self.hours, "hours"))
            middles = (np.arange(len(given)) + 0.5) / len(given)
            at = np.concatenate(([0.0], middles, [1.0]))
            rates = np.interp(at, middles, given / given.mean(), period=1.0)
        return along((self.period_s * at).tolist(), rates.tolist())
