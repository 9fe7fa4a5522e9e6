"""What a placement asks of one deployment, each question a call that runs in a worker.

Over a horizon (`harness.experiments.capacity`): whether it meets the goals at a rate, the fewest replicas of one kind
that may, roughly what it sustains, and its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace

from harness import registry
from harness.api import Slo
from harness.experiments import trial
from harness.experiments.capacity.at_rate import LIMIT, AtRate, Attained
from harness.experiments.capacity.conditions import Settings, shares
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.search_spec import Answer, SearchSpec, TrialRequest, answered
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Trial, simulated, task_of
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Deployment
from harness.stats.seeds import spread

TOLERANCE = 0.05
"""Half of the interval of a capacity, as a share of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question about a deployment; `key` names it in the folder of a search. `most` replicas are of interest."""

    key: str
    options: PlaceOptions
    deployment: Deployment
    most: int = 1

    @property
    def slo(self) -> Slo:
        """The bounds that it has to keep."""
        return self.options.bounds(self.deployment.kind)

    def spec(self, limit: int) -> SearchSpec:
        """The search of its capacity, of so many requests at most; one horizon for all deployments."""
        options = self.options
        return SearchSpec(
            slo=self.slo, goal=options.slo.goal, definition=options.definition, planned=options.recorded_requests or 0,
            first_seed=options.seeds[0], tolerance=TOLERANCE, at_rps=options.rate_rps,
            one_traffic=options.recorded_requests is not None, horizon_s=options.horizon_s, limit=limit,
            filling=options.filling,
        )  # fmt: skip

    def answer(self, steps: Generator[list[TrialRequest], list[Trial], Answer]) -> Answer:
        """Make the runs that a search asks for, in this process, until it has its answer."""
        own_rps, spec = self.options.own_rps, replace(self.options.of(self.deployment), requests=None)
        return answered(steps, lambda wanted: [simulated(task_of(want, spec, own_rps, self.slo)) for want in wanted])


@dataclass(frozen=True, slots=True)
class Fewest:
    """The fewest replicas that may meet the goals at the rate; None: more than are of interest."""

    count: int | None
    requests: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """A rate with its 95% interval (both None: no interval). `by_seed` is ln(rate) by seed; `binding` fails above it;
    `at_least`: no rate was shown to be too high."""

    rate_rps: float
    low_rps: float | None
    high_rps: float | None
    binding: str | None
    requests: int
    at_least: bool = False
    by_seed: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timed:
    """Mean TPOT of all requests at the requested rate, with its 95% interval (None: no interval) and by seed.

    `share` of the requests meet the SLO; `meets` is whether that is the goal.
    """

    tpot_s: float
    low_s: float | None
    high_s: float | None
    meets: bool
    share: float
    requests: int
    by_seed: dict[int, float] = field(default_factory=dict)


def timed(question: Question) -> Timed:
    """The mean TPOT of a deployment in runs that start and end, one a seed; a recording has one traffic."""
    options = question.options
    assert options.rate_rps is not None
    spec, tpot = options.of(question.deployment), registry.make("metrics", "tpot")
    by_seed, met, requests = {}, [], 0
    for seed in options.seeds[:1] if spec.trace is not None else options.seeds:
        table = trial.simulate(trial.at_rate(replace(spec, seed=seed), options.rate_rps, options.own_rps)).table
        values = [value for value in tpot.of(table).tolist() if not math.isnan(value)]
        by_seed[seed] = math.fsum(values) / len(values) if values else math.inf
        joint = shares(table, question.slo)[0]
        met.append(joint.met / max(1, joint.of))
        requests += len(table)
    mean, share = math.fsum(by_seed.values()) / len(by_seed), math.fsum(met) / len(met)
    interval = spread([*by_seed.values()]) if len(by_seed) > 1 and math.isfinite(mean) else None
    low_s, high_s = (None, None) if interval is None else (interval.low, interval.high)
    meets = share >= options.slo.goal and math.isfinite(mean)
    return Timed(mean, low_s, high_s, meets, share, requests, by_seed)


def judged(question: Question) -> Attained:
    """Whether a deployment meets the goals at the requested rate."""
    return _attained(question, rough=False)


def fewest(question: Question) -> Fewest:
    """The fewest replicas of a side that may do, up to `most`."""
    spent, low, high = 0, 0, question.most + 1
    while high - low > 1:
        count = question.most if high > question.most else (low + high) // 2
        more = replace(question, deployment=question.deployment.counted(count))
        found = _attained(more, rough=True)
        spent += found.requests
        if found.meets is not False:
            high = count
        elif count == question.most:
            return Fewest(None, spent)
        else:
            low = count
    return Fewest(high, spent)


def _attained(question: Question, *, rough: bool) -> Attained:
    search = AtRate(question.spec(question.options.max_requests or LIMIT))
    return question.answer(search.attained(question.options.seeds, rough=rough))


def rough(question: Question) -> Capacity:
    """About what a deployment sustains: between single short runs."""
    rate_rps, requests = question.answer(AtRate(question.spec(LIMIT)).rough())
    return Capacity(rate_rps, None, None, None if rate_rps else "without load", requests)


def capacity(question: Question) -> Capacity:
    """The capacity of a deployment, as `bench capacity` finds it."""
    options = question.options
    limit = options.max_requests or LIMIT
    settings = Settings(
        (options.slo.goal,), options.definition, TOLERANCE, max_requests=limit, horizon_s=options.horizon_s
    )
    setup = set_up(replace(options.of(question.deployment), requests=None), settings)
    info = run_search(setup, Store(None), workers=1)
    one, requests = info.answers[0], info.cost.requests if info.cost else 0
    low, high = one.bracket_rps
    if one.capacity_rps is None:
        return Capacity(low or 0.0, None, None, one.binding, requests, at_least=high is None and low is not None)
    by_seed = {int(seed): rate for seed, rate in one.knees.items()}
    return Capacity(one.capacity_rps, one.low_rps, one.high_rps, one.binding, requests, by_seed=by_seed)
