"""Arrival processes that a model can hold: a random rate like that of the trace, or the rate of the trace itself.

Both run a gamma renewal process in operational time, so that another rate leaves the spread of neighbouring gaps as it
is. The rate is multiplied, its ups and downs keep their times: the index of dispersion less 1 grows as the rate, which
is the law of thinning and superposition, not that of time compression.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, repeat
from typing import Any, TypeAlias

import numpy as np

from harness.bounds import Positive, check
from workloads.arrivals._operational import gamma_gaps, times_on_grid
from workloads.arrivals._services import STEPS, Component, LogRate
from workloads.fit import _rate

ARRIVALS = 65_536  # turned into times together, about
PER_MEMORY = 8  # steps of the rate in the shortest memory
PER_HOUR = 12  # steps of the rate in an hour of a daily curve
Process: TypeAlias = "Cox | RateTracking"


@dataclass(frozen=True, slots=True)
class Cox:
    """Arrivals (req/s) along a random rate: lognormal, with one or more memories, times a curve of the day and week."""

    rate_rps: Positive
    gap_shape: Positive
    components: tuple[Component, ...] = ()
    hourly: tuple[float, ...] = ()
    weekly: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "components", LogRate(self.components, 1.0).components)  # checks them
        for name, values, length in (("hourly", self.hourly, 24), ("weekly", self.weekly, 7)):
            if values and (len(values) != length or min(values) < 0 or not 0 < sum(values) < np.inf):
                raise ValueError(f"{name} must be {length} factors, none negative and not all 0, got {values}.")

    @property
    def step_s(self) -> float:
        """Seconds for which a rate holds."""
        steps = [part.tau_s / PER_MEMORY for part in self.components if part.sd > 0]
        if self.hourly:
            steps.append(_rate.HOUR_S / PER_HOUR)
        return min(steps, default=1 / self.rate_rps)

    def times(
        self, rng: np.random.Generator, rate_rps: float | None = None, over_s: float | None = None
    ) -> Iterator[np.ndarray]:  # fmt: skip
        """Endless blocks of arrival times (s), never falling; equal rngs have the same ups and downs at any rate.

        With `over_s` the rate is `rate_rps` in the mean over that time, as over an excerpt that is scaled to a rate.
        """
        rates_rng, gaps_rng = rng.spawn(2)
        rate_rps = self.rate_rps if rate_rps is None else rate_rps
        rates = _held(self._rates(rates_rng, rate_rps), rate_rps, self.step_s, over_s)
        return _along(self.step_s, rates, self.gap_shape, gaps_rng)

    def _rates(self, rng: np.random.Generator, rate_rps: float) -> Iterator[np.ndarray]:
        mean = float(np.mean(_rate.day_factors(np.arange(168) * _rate.HOUR_S, self.hourly, self.weekly)))
        for block, factors in zip(count(), LogRate(self.components, self.step_s).factors(rng), strict=False):
            at_s = (block * STEPS + np.arange(STEPS)) * self.step_s
            daily = _rate.day_factors(at_s, self.hourly, self.weekly) / mean if self.hourly else 1.0
            yield rate_rps * factors * daily

    def as_json(self) -> dict[str, Any]:
        parts = [{"sd": part.sd, "tau_s": part.tau_s} for part in self.components]
        return {"kind": "parametric", "rate_rps": self.rate_rps, "gap_shape": self.gap_shape, "components": parts,
                "hourly": list(self.hourly), "weekly": list(self.weekly)}  # fmt: skip

    def text(self) -> str:
        """The parameters in words."""
        parts = [f"{part.sd:.3g} with a memory of {part.tau_s:.3g} s" for part in self.components]
        day = ", a curve of the day" + (" and of the week" if self.weekly else "") if self.hourly else ""
        rate = (
            "a rate that wanders (standard deviation of its log " + " and ".join(parts) + ")" if parts else "even rate"
        )
        return f"{self.rate_rps:.4g} req/s, {rate}{day}, {_gaps(self.gap_shape)}"


@dataclass(frozen=True, slots=True)
class RateTracking:
    """Arrivals (req/s) along the rate of the trace, in windows of `window_s`; it starts again after the last."""

    rate_rps: Positive
    gap_shape: Positive
    window_s: Positive
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        check(self)
        if not self.factors or min(self.factors) < 0 or not 0 < sum(self.factors) < np.inf:
            raise ValueError("factors must be at least one number, none negative and not all 0.")

    @property
    def span_s(self) -> float:
        """Seconds after which the rate starts again."""
        return self.window_s * len(self.factors)

    def times(
        self, rng: np.random.Generator, rate_rps: float | None = None, over_s: float | None = None
    ) -> Iterator[np.ndarray]:  # fmt: skip
        """Endless blocks of arrival times (s), never falling; `over_s` as in `Cox`."""
        _, gaps_rng = rng.spawn(2)
        factors = np.array(self.factors) / np.mean(self.factors)
        rate_rps = self.rate_rps if rate_rps is None else rate_rps
        rates = _held(repeat(rate_rps * factors), rate_rps, self.window_s, over_s)
        return _along(self.window_s, rates, self.gap_shape, gaps_rng)

    def as_json(self) -> dict[str, Any]:
        return {"kind": "rate-following", "rate_rps": self.rate_rps, "gap_shape": self.gap_shape,
                "window_s": self.window_s, "factors": [round(x, 5) for x in self.factors]}  # fmt: skip

    def text(self) -> str:
        """The parameters in words."""
        return (
            f"{self.rate_rps:.4g} req/s, rate of the trace in {len(self.factors)} windows of {self.window_s:.4g} s "
            f"(starts again after {self.span_s:.6g} s), {_gaps(self.gap_shape)}"
        )


def from_json(values: Mapping[str, Any]) -> Process:
    """A process from `as_json`. Raises KeyError, TypeError or ValueError for anything else."""
    if values["kind"] == "parametric":
        parts = tuple(Component(float(part["sd"]), float(part["tau_s"])) for part in values["components"])
        day, week = (tuple(map(float, values[name])) for name in ("hourly", "weekly"))
        return Cox(float(values["rate_rps"]), float(values["gap_shape"]), parts, day, week)
    if values["kind"] == "rate-following":
        factors = tuple(map(float, values["factors"]))
        return RateTracking(float(values["rate_rps"]), float(values["gap_shape"]), float(values["window_s"]), factors)
    raise ValueError(f"kind must be parametric or rate-following, got '{values['kind']}'.")


def _held(
    rates: Iterator[np.ndarray], mean_rps: float, step_s: float, over_s: float | None
) -> Iterator[np.ndarray]:  # fmt: skip
    """The rates, each for a step, scaled to their mean over the first `over_s`; as they are where they are 0 there."""
    if over_s is None:
        return rates
    steps, path = over_s / step_s, next(rates)
    while len(path) < steps:
        path = np.concatenate((path, next(rates)))
    integral = float(np.interp(steps, np.arange(len(path) + 1), np.append(0.0, np.cumsum(path))))
    scale = mean_rps * steps / integral if integral else 1.0
    return (scale * block for block in chain([path], rates))


def _along(step_s: float, rates: Iterable[np.ndarray], shape: float, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Times in blocks of about 65,536 at most, whatever the rate."""
    return times_on_grid(step_s, _cut(rates, step_s), gamma_gaps(rng, shape**-0.5))


def _cut(rates: Iterable[np.ndarray], step_s: float) -> Iterator[np.ndarray]:
    for block in rates:
        pieces = int(np.ceil(block.sum() * step_s / ARRIVALS))
        yield from np.array_split(block, min(max(pieces, 1), len(block)))


def _gaps(shape: float) -> str:
    return "gaps gamma of shape " + f"{shape:.3g} (CV {shape**-0.5:.3g}) in operational time"
