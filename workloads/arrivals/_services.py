"""The two services of BurstGPT as pieces of rate and gap law: conversation, and API with its campaigns.

Rates are relative, with mean 1 in the long run; a user's rate multiplies them. The source of each number is in
`tools/fit_burstgpt.py`.

A stationary random rate: its logarithm is a sum of Ornstein-Uhlenbeck processes, each with its own memory.

Arrivals that follow such a rate are a Cox process: their counts are overdispersed over seconds and over hours at once,
which no law of the gaps alone can do. Source: Cox, Some statistical methods connected with series of events, Journal
of the Royal Statistical Society B 17, 1955; Moeller, Syversveen and Waagepetersen, Log Gaussian Cox processes,
Scandinavian Journal of Statistics 25, 1998. The step of each component is the exact transition of its process.
"""

import heapq
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from harness.bounds import positive
from workloads.arrivals._operational import Gaps, Piece, Stretch, gamma_pieces, times_on_grid, wandering

HOUR_S = 3600.0
WINDOW_S = 1200.0  # figure 6: gap law and rate are those of 20 minutes
DAYS, WORKDAYS = 7, 5  # Monday first
NEAR = 1.5  # a run begins while campaigns carry their mean within this factor: half the time they carry nothing
SPREAD_S = 60.0  # width of the means by which windows are held to a trace
MOST_WINDOWS = 1000  # drawn for one that is like those of a trace
STEPS = 4096  # drawn at once, whatever the caller takes
LARGEST_SD = 4.0  # of the log-rate; above, almost all arrivals come in a share of the time that no run contains


def read_figures() -> dict[str, Any]:
    """The published figures and what was derived from them (`figures/burstgpt.json`)."""
    path = Path(__file__).with_name("figures") / "burstgpt.json"
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


@dataclass(frozen=True, slots=True)
class Conversation:
    """People who chat: a daily curve, quieter weekends, every hour's own noise; nearly Poisson inside."""

    requests_per_hour: Sequence[float]
    weekend_factor: float
    noise_sd: float
    gamma_shape: float

    def pieces(self, rate_rps: float, start_h: float, rng: np.random.Generator) -> Iterator[Piece]:
        """Endless pieces of an hour; `start_h` counts from Monday, 0:00, and may lie inside an hour."""
        week = self.week()
        hour, left_s = int(start_h), HOUR_S * (1 - start_h % 1)
        while True:
            noise = math.exp(self.noise_sd * float(rng.standard_normal()) - self.noise_sd**2 / 2)
            rate = rate_rps * noise * float(week[hour % len(week)])
            yield Piece(left_s, rate, rate)
            hour, left_s = hour + 1, HOUR_S

    def week(self) -> np.ndarray:
        """(168,) relative rate of every hour from Monday, 0:00; its mean is 1."""
        day = np.array(self.requests_per_hour)
        week = np.concatenate([day if i < WORKDAYS else self.weekend_factor * day for i in range(DAYS)])
        return np.asarray(week / week.mean())


@dataclass(frozen=True, slots=True)
class Api:
    """Programs that call: campaigns of heavy-tailed rate, and inside them bursts whose law changes every 20 minutes.

    Campaigns begin at `campaigns_per_day` * (1 + `begin_swing` * cos(hours from `begin_peak_h`, as part of a day)).
    """

    campaigns_per_day: float
    begin_swing: float
    begin_peak_h: float
    campaign_h: float
    campaign_sd: float
    window_sd: float
    window_shape_correlation: float
    shape_memory: float
    shapes: Sequence[float]

    def pieces(self, levels: Iterator[tuple[float, float]], rng: np.random.Generator) -> Iterator[Piece]:
        """Endless pieces from `levels` (duration s, rate); each window of 20 minutes has its own factor and gap law."""
        gaps_rng, windows_rng = rng.spawn(2)
        return gamma_pieces(self.stretches(levels, windows_rng), gaps_rng)

    def stretches(self, levels: Iterator[tuple[float, float]], rng: np.random.Generator) -> Iterator[Stretch]:
        """Endless stretches of one rate; the first of each window brings the shape of its gaps."""
        return wandering((Stretch(*level) for level in levels), self.windows(rng), WINDOW_S)

    def windows(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        """Endless (factor of the rate, gamma shape), one for each 20 minutes.

        The shape has the law of figure 6 and, through a normal score, its memory. The factor is lognormal, of mean 1,
        correlated with the shape.
        """
        keep, joint, sd = self.shape_memory, self.window_shape_correlation, self.window_sd
        table = shape_table(self.shapes)
        score = float(rng.standard_normal())
        while True:
            fresh, noise = rng.standard_normal(2).tolist()
            shape = math.exp(float(np.interp(score, *table)))
            yield math.exp(sd * (joint * score + math.sqrt(1 - joint**2) * noise) - sd**2 / 2), shape
            score = keep * score + math.sqrt(1 - keep**2) * fresh

    def levels(self, rate_rps: float, start_h: float, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        """Endless (duration s, rate): what all campaigns carry together, `rate_rps` in the long run.

        Begins at hour `start_h` of the first day on which they then carry the mean within a factor of 1.5 (`NEAR`), so
        that a short run is neither idle nor a flood; the days before are left out.
        """
        begins_s, now_s = (24 + start_h) * HOUR_S, 0.0  # the first day is to forget how it began
        path = self._campaigns(rng)
        for duration_s, level in path:
            now_s += duration_s
            while begins_s < now_s and not 1 / NEAR <= level <= NEAR:
                begins_s += 24 * HOUR_S
            if begins_s < now_s:
                yield now_s - begins_s, rate_rps * level
                break
        yield from ((duration_s, rate_rps * level) for duration_s, level in path)

    def _campaigns(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        """Endless (duration s, level) of mean 1 from hour 0 on: campaigns begin as a Poisson process whose rate has a
        daily swing, and last exponential times.
        """
        between_s, lasts_s = 24 * HOUR_S / self.campaigns_per_day, self.campaign_h * HOUR_S
        mean_active = lasts_s / between_s
        centre = -math.log(mean_active) - self.campaign_sd**2 / 2
        ends: list[tuple[float, float]] = []  # (time, rate) of the campaigns under way, a heap
        most, now_s = 1 + self.begin_swing, 0.0

        def next_begin(after_s: float) -> float:  # Lewis and Shedler's thinning, 1979
            while True:
                after_s += float(rng.exponential(between_s / most))
                turn = 2 * math.pi * (after_s / HOUR_S - self.begin_peak_h) / 24
                if most * rng.random() < 1 + self.begin_swing * math.cos(turn):
                    return after_s

        def begin() -> None:
            heapq.heappush(
                ends, (now_s + float(rng.exponential(lasts_s)), float(rng.lognormal(centre, self.campaign_sd)))
            )

        for _ in range(int(rng.poisson(mean_active))):
            begin()
        begins_s = next_begin(0.0)
        while True:
            next_s = min(begins_s, ends[0][0]) if ends else begins_s
            yield next_s - now_s, math.fsum(rate for _, rate in ends)
            now_s = next_s
            if ends and ends[0][0] <= now_s:
                heapq.heappop(ends)
            else:
                begin()
                begins_s = next_begin(now_s)


def shape_table(shapes: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(normal scores, logarithms of the shapes), both rising: the law of the shapes, not beyond the given ones."""
    normal = NormalDist()
    scores = [normal.inv_cdf((i + 0.5) / len(shapes)) for i in range(len(shapes))]
    return np.array(scores), np.log(np.sort(shapes))


def table_pieces(table: Mapping[str, Sequence[float]], scale: float, rng: np.random.Generator) -> Iterator[Piece]:
    """The windows of figure 6 one after the other, again and again; `scale` multiplies their rates."""
    windows = cycle(zip(table["gamma_shape"], table["mean_gap_s"], strict=True))
    return gamma_pieces((Stretch(WINDOW_S, scale / mean_gap_s, shape) for shape, mean_gap_s in windows), rng)


class Component(NamedTuple):
    """One part of the log-rate: its standard deviation, and the time in which its correlation falls to 1/e."""

    sd: float
    tau_s: float


@dataclass(frozen=True, slots=True)
class LogRate:
    """Factors of mean 1 by which a rate is multiplied, one every `step_s` seconds, lognormal and stationary.

    The log-rate at two moments u seconds apart has covariance sum(sd**2 * exp(-u / tau_s)). Raises ValueError for
    parts that are no such process. Choose `step_s` well below the smallest tau that matters.
    """

    components: tuple[Component, ...]
    step_s: float

    def __post_init__(self) -> None:
        positive(step_s=self.step_s)
        object.__setattr__(self, "components", tuple(Component(*part) for part in self.components))
        for part in self.components:
            positive(tau_s=part.tau_s)
            if not 0 <= part.sd <= LARGEST_SD:
                raise ValueError(f"sd of a component must be between 0 and {LARGEST_SD:g}, got {part.sd:g}.")

    def covariance(self, lag_s: np.ndarray) -> np.ndarray:
        """Covariance of the factors at moments `lag_s` apart (any shape): exp(covariance of the log) - 1."""
        of_log = sum(part.sd**2 * np.exp(-np.abs(lag_s) / part.tau_s) for part in self.components)
        return np.asarray(np.expm1(of_log))

    def factors(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Endless blocks (STEPS,) of factors; their expectation is exactly 1."""
        states = [part.sd * float(rng.standard_normal()) for part in self.components]
        variance = sum(part.sd**2 for part in self.components)
        while True:
            log = np.full(STEPS, -variance / 2)
            for i, part in enumerate(self.components):
                path, states[i] = self._path(part, states[i], rng)
                log += path
            yield np.exp(log)

    def variance_within(self, width_s: float, span_s: float) -> float:
        """Expected variance of the means over `width_s` inside a window of `span_s`, about the mean of the window."""

        def of_mean(over_s: float) -> float:
            lags_s = np.concatenate([[0.0], np.geomspace(1e-3, over_s, 400)])
            return 2 / over_s**2 * float(np.trapezoid((over_s - lags_s) * self.covariance(lags_s), lags_s))

        return of_mean(width_s) - of_mean(span_s)

    def window(self, span_s: float, spread: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
        """(ceil(span_s / step_s),) factors of one window, divided by their mean.

        The variance of their means over a minute (a tenth of the span, where that is less) is within `spread` times
        the expected one: other windows are drawn again.
        """
        steps = math.ceil(span_s / self.step_s)
        if steps == 1:  # nothing varies inside
            return np.ones(1)
        chunk_steps = max(round(min(SPREAD_S, span_s / 10) / self.step_s), 1)
        expected = self.variance_within(chunk_steps * self.step_s, span_s)
        for _ in range(MOST_WINDOWS):
            blocks, path = self.factors(rng), np.zeros(0)
            while len(path) < steps:
                path = np.concatenate([path, next(blocks)])
            path = path[:steps] / path[:steps].mean()
            seen = float(path[: steps // chunk_steps * chunk_steps].reshape(-1, chunk_steps).mean(axis=1).var())
            if spread[0] * expected <= seen <= spread[1] * expected:
                break
        return path

    def times(self, rate_rps: float, gaps: Gaps, rng: np.random.Generator) -> Iterator[float]:
        """Endless arrival times (s) at `rate_rps` on average, a renewal process of `gaps` (mean 1) along the rate.

        Give `gaps` another stream of random numbers than `rng`: then another rate has the same ups and downs.
        """
        for block in times_on_grid(self.step_s, (rate_rps * factors for factors in self.factors(rng)), gaps):
            yield from block.tolist()

    def _path(self, part: Component, state: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """(STEPS,) values from `state` on, and the state after them."""
        from scipy.signal import lfilter  # heavy

        keep = math.exp(-self.step_s / part.tau_s)
        noise = part.sd * math.sqrt(-math.expm1(-2 * self.step_s / part.tau_s)) * rng.standard_normal(STEPS)
        after = lfilter([1.0], [1.0, -keep], noise, zi=[keep * state])[0]  # keep * last + fresh, step by step
        return np.concatenate([[state], after[:-1]]), float(after[-1])
