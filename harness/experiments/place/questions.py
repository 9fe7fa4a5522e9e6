"""What a placement asks of one deployment, each question a call that runs in a worker.

In the steady state (`harness.experiments.capacity`): whether it meets the goals at a rate, the fewest replicas of one
kind that may, roughly what it sustains, and its capacity. Traffic that has no steady state is sent as runs that start
and end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache

from harness import registry
from harness.api import Slo
from harness.experiments import trial
from harness.experiments.capacity.at_rate import LIMIT, Attained, attained
from harness.experiments.capacity.chain import Unloaded, unloaded
from harness.experiments.capacity.chains import SETTLES, Here, patience_s, unloaded_side
from harness.experiments.capacity.conditions import Settings, shares
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.steady import OutOfRequests, SteadySearch, SteadySpec
from harness.experiments.capacity.store import Store
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Deployment
from harness.options import RunSpec
from harness.stats.seeds import spread

ALONE = 300
"""Requests one by one that tell how long requests take without load."""
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

    @property
    def unloaded(self) -> Unloaded:
        """Its requests one by one; the same for any number of replicas."""
        single = self.deployment.counted(*(1 for _ in self.deployment.groups))
        return _unloaded(replace(self.options.of(single), requests=None), self.slo)

    def search(self, limit: int) -> SteadySearch:
        """A search of its steady state that sends so many requests at most."""
        options, wanted = self.options, self.options.wanted(self.deployment.kind)
        spec = SteadySpec(
            wanted=wanted, goal=max(one.goal for one in wanted), tolerance=TOLERANCE,
            limit=limit, first_seed=options.seeds[0], memory_s=options.settles_s / SETTLES,
            patience_s=patience_s(self.slo), at_rps=options.rate_rps,
        )  # fmt: skip
        return SteadySearch(spec, self.unloaded)

    @property
    def observe(self) -> Here:
        """Observes its chains."""
        return Here(replace(self.options.of(self.deployment), requests=None), self.options.own_rps, self.slo)


@cache
def _unloaded(spec: RunSpec, slo: Slo) -> Unloaded:
    return unloaded(spec, slo, ALONE)


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
    if question.options.unchained is not None:
        return _in_runs(question, rough=rough)
    search = question.search(question.options.max_requests or LIMIT)
    if unloaded_side(search.alone, search.spec.wanted) is False:
        joint = search.alone.shares[0]
        return Attained(False, joint.met / max(1, joint.of), None, None, "without load", ALONE)
    return attained(question.observe, search, len(question.options.seeds), rough=rough)


def _in_runs(question: Question, *, rough: bool) -> Attained:
    """The same of runs that start and end, one a seed; a recording has one traffic and no interval."""
    options, wanted = question.options, question.options.wanted(question.deployment.kind)
    assert options.rate_rps is not None
    spec = options.of(question.deployment)
    by_seed: dict[int, list[float]] = {}  # the shares of the conditions
    requests = 0
    for seed in options.seeds[:1] if rough or spec.trace is not None else options.seeds:
        table = trial.simulate(trial.at_rate(replace(spec, seed=seed), options.rate_rps, options.own_rps)).table
        found = {share.key: share.met / max(1, share.of) for share in shares(table, question.slo)}
        by_seed[seed] = [found[condition.key] for condition in wanted]
        requests += len(table)
    means = [math.fsum(values) / len(values) for values in zip(*by_seed.values(), strict=True)]
    worst = min(range(len(wanted)), key=lambda each: means[each] - wanted[each].goal)
    goal, met = wanted[worst].goal, {seed: found[worst] for seed, found in by_seed.items()}
    low = high = None
    if len(met) > 1 and (mean := spread([*met.values()], most=1.0)) is not None:
        low, high = mean.low, mean.high
    side = means[worst] >= goal
    sure = low is None or high is None or low >= goal or high < goal
    return Attained(side if sure else None, means[worst], low, high, str(wanted[worst].key), requests, met)


def rough(question: Question) -> Capacity:
    """About what a deployment sustains: between single chains."""
    search, observe = question.search(LIMIT), question.observe
    if unloaded_side(search.alone, search.spec.wanted) is False:
        return Capacity(0.0, None, None, "without load", ALONE)
    steps, made, rate_rps = search.near(), None, None
    try:
        while True:
            made = [*observe(steps.send(made), lambda _: None)]  # type: ignore[arg-type]  # the first word is None
    except StopIteration as end:
        rate_rps = end.value
    except OutOfRequests:
        pass
    return Capacity(rate_rps or search.found.bracket[0] or 0.0, None, None, None, search.spent)


def capacity(question: Question) -> Capacity:
    """The capacity of a deployment, as `bench capacity` finds it."""
    options = question.options
    limit = options.max_requests or LIMIT
    settings = Settings((options.slo.goal,), options.definition, TOLERANCE, max_requests=limit)
    setup = set_up(replace(options.of(question.deployment), requests=None), settings)
    info = run_search(setup, Store(None), workers=1)
    one, requests = info.answers[0], info.cost.requests if info.cost else 0
    low, high = one.bracket_rps
    if one.capacity_rps is None:
        return Capacity(low or 0.0, None, None, one.binding, requests, at_least=high is None and low is not None)
    by_seed = {int(seed): rate for seed, rate in one.knees.items()}
    return Capacity(one.capacity_rps, one.low_rps, one.high_rps, one.binding, requests, by_seed=by_seed)
