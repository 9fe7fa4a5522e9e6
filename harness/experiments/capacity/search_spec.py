"""A capacity search: its spec, the trials that it requests, and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.api import Slo
from harness.experiments.capacity.capacity_json import HorizonRuns, RunsNear
from harness.experiments.capacity.conditions import Condition, Definition, bounds_of, conditions
from harness.experiments.trial import Filling
from harness.metrics.objective import ShareKey

if TYPE_CHECKING:
    from harness.experiments.capacity.trials import Key, Trial

CONFIDENCE = 0.95

Answer = TypeVar("Answer")

SearchSteps = Generator["list[TrialRequest]", "list[Trial]", "SearchResult"]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A trial that the search needs next, decided by its conditions; `settle_s` are not counted at its start.

    A run over a horizon lasts `horizon_s` after that, under an `slo` of its own.
    """

    key: Key
    conditions: tuple[Condition, ...] = ()
    settle_s: float | None = None
    horizon_s: float | None = None
    slo: Slo | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A capacity in requests per second; `low` and `high` where trials enough stand behind it.

    `capacity_by_seed` are the values of ln(capacity) by seed, or pseudo-values: their mean is ln(capacity).
    """

    rate_rps: float
    low_rps: float | None
    high_rps: float | None
    capacity_by_seed: dict[int, float]
    binding: ShareKey

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the capacity; infinite without one."""
        if self.low_rps is None or self.high_rps is None:
            return math.inf
        return (self.high_rps - self.low_rps) / (2 * self.rate_rps)


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """One goal of a search, to a tolerance (half of the interval as a share of the capacity).

    `one_traffic`: every seed sends the same, as with a recording; then one trial a rate is all there is.
    `planned` requests has a trial that is `fixed`, simulated or a recording; others have as many as `budget_s` and the
    time of an answer ask for. At `alone_rps` requests do not meet; 0: one is sent after the other.
    A simulated search asks for runs of `horizon_s` (None: it says how long), of `limit` requests at most; `filling` is
    not counted. With `windows` so many of the runs have to meet the goal, each by itself, instead of their mean. With
    `mean_known` runs of T have the rate times T requests on average.
    """

    slo: Slo
    goal: float
    definition: Definition
    planned: int
    first_seed: int = 0
    tolerance: float = 0.03
    at_rps: float | None = None
    from_rps: float | None = None
    own_rps: float = 1.0
    one_traffic: bool = False
    fixed: bool = False
    budget_s: float | None = None
    alone_rps: float = 0.0
    horizon_s: float | None = None
    limit: int = 0
    filling: Filling = field(default_factory=Filling)
    windows: float | None = None
    mean_known: bool = False

    @property
    def wanted(self) -> tuple[Condition, ...]:
        """The conditions that must hold."""
        return conditions(self.slo, self.goal, self.definition)

    @property
    def bounds(self) -> tuple[Condition, ...]:
        """Each bound by itself."""
        return tuple(bounds_of(self.slo, self.goal))


@dataclass(frozen=True, slots=True)
class Side:
    """A rate that was sustained or not, with its trials and requests, of which `met` met the goal's condition (None:
    not counted); `grew`: its queue did, all through the trials. It is not `sure` where they are too few to tell.

    Of `rates`: those of 1 were sent at the rate itself; of more, also at higher ones that met, or lower ones that
    missed."""

    rate_rps: float
    seeds: int
    requests: int
    grew: bool = False
    met: int | None = None
    sure: bool = True
    rates: int = 1


@dataclass(frozen=True, slots=True)
class Bracket:
    """The highest rate that was sustained and the lowest that was not; None where there is none yet.

    `least_rps` is the lowest that was sustained and `most_rps` the highest that was not, in whole trials.
    """

    low: Side | None = None
    high: Side | None = None
    least_rps: float | None = None
    most_rps: float | None = None

    def holds(self, low_rps: float, high_rps: float) -> bool:
        """Whether an interval is inside of the rates tried: whole trials sustained a rate at or below it, and did not
        sustain one at or above it. One that lies beyond both sides of the bracket contradicts them."""
        if self.least_rps is None or self.most_rps is None or self.contradicts(low_rps, high_rps):
            return False
        return self.least_rps <= low_rps and high_rps <= self.most_rps

    def contradicts(self, low_rps: float, high_rps: float) -> bool:
        """Whether an interval has nothing in common with the bracket, as where a queue grows long before requests miss
        the SLO."""
        above = self.high is not None and self.high.sure and low_rps > self.high.rate_rps
        return above or (self.low is not None and self.low.sure and high_rps < self.low.rate_rps)

    def side_of(self, rate_rps: float) -> bool | None:
        """Whether a rate is sustained, where one above it was, or one below it was not; None between."""
        if self.low is not None and self.low.sure and rate_rps <= self.low.rate_rps:
            return True
        return False if self.high is not None and self.high.sure and rate_rps >= self.high.rate_rps else None

    @property
    def ratio(self) -> float:
        """How far its ends are apart; infinite while one is missing."""
        return math.inf if self.low is None or self.high is None else self.high.rate_rps / self.low.rate_rps


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search: an estimate, or why there is none. `unreachable`: the goal is missed without load.

    `bracket` holds the rates that were tried on both sides of the goal. An estimate is an answer only where it lies
    between them. `bounds` are the shares that met each bound in the trials near it.
    """

    estimate: Estimate | None
    resolved: bool
    unreachable: bool = False
    why: str | None = None
    bounds: dict[ShareKey, float] = field(default_factory=dict)
    bracket: Bracket = Bracket()
    ended_early: bool = False
    """By Ctrl-C or an invalid trial."""
    needs: int | None = None
    """Requests that the tolerance takes in all, of a search over a horizon; None before the pilot has ended."""
    horizon: HorizonRuns | None = None
    near: RunsNear | None = None
    stable_rps: float | None = None
    """How many requests per second a simulated system serves where more come: it is stable below; None: not seen."""
    full: str | None = None
    """What is full there, as `saturated` names it."""

    @property
    def answered(self) -> Estimate | None:
        """The estimate, where it is an answer: with an interval (one traffic has none), inside of the rates tried."""
        estimated = self.estimate
        if estimated is None:
            return None
        if estimated.low_rps is None or estimated.high_rps is None:
            return estimated if self.resolved and self.bracket.holds(estimated.rate_rps, estimated.rate_rps) else None
        return estimated if self.bracket.holds(estimated.low_rps, estimated.high_rps) else None


def sustained(rate_rps: float, found: Estimate, bracket: Bracket) -> bool | None:
    """Whether a rate is sustained: one outside of the interval, and not beyond the rates that were tried on that side
    of the goal; None where that is not decided."""
    if found.low_rps is None or found.high_rps is None:
        return None
    side = bracket.side_of(rate_rps)
    outside = rate_rps <= found.low_rps if side else rate_rps >= found.high_rps
    return side if outside else None


def answered(
    steps: Generator[list[TrialRequest], list[Trial], Answer], make: Callable[[list[TrialRequest]], list[Trial]]
) -> Answer:
    """Make the trials that a search asks for until it has its answer."""
    trials: list[Trial] | None = None
    while True:
        try:
            requests = steps.send(trials)  # type: ignore[arg-type]  # the first word to a generator is None
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        trials = make(requests)


def plain(rate_rps: float) -> float:
    """Four digits: enough for any interval, and a name that a person can read."""
    return float(f"{rate_rps:.4g}")
