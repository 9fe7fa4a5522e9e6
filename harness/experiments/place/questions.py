"""What a placement asks of one deployment, each question a call that runs in a worker.

Over a horizon (`harness.experiments.capacity`): whether it meets the goals at a rate, roughly what it sustains, and its
capacity.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace

from harness import registry
from harness.api import Slo
from harness.data.records import to_table
from harness.errors import NothingDue
from harness.experiments import trial
from harness.experiments.capacity.at_rate import AtRate, Attained
from harness.experiments.capacity.conditions import Settings, conditions, shares
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.search_spec import SearchSpec, TrialRequest, answered
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Task, Trial, concluded, over_horizon, simulated, task_of
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Deployment
from harness.stats.seeds import spread

TOLERANCE = 0.05
"""Half of the interval of a capacity, as a share of it."""
WITHOUT_LOAD = "without load"
"""What binds a deployment whose requests miss the goals one by one."""
LIMIT = 150_000
"""Requests that may be spent on one deployment."""
FEW, FEW_RUNS, FEW_SEEDS = 10_000, (6.5, 2.5), 4
"""Requests of the first runs of a deployment, or so many runs if these are more (the second number where one run alone
has more): one tells a clear miss, three (one and half of the third number) or two that it clearly meets."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question about a deployment; `key` names it in the folder of a search. With `again` it takes as many runs as
    decide."""

    key: str
    options: PlaceOptions
    deployment: Deployment
    again: bool = False

    def spec(self, limit: int) -> SearchSpec:
        """The search of its capacity, of so many requests at most; one horizon for all deployments."""
        options = self.options
        return SearchSpec(
            slo=options.slo, goal=options.slo.goal, definition=options.definition,
            planned=options.recorded_requests or 0, first_seed=options.seeds[0], tolerance=TOLERANCE,
            at_rps=options.rate_rps, one_traffic=options.recorded_requests is not None, horizon_s=options.horizon_s,
            limit=limit, filling=options.filling,
        )  # fmt: skip

    def task(self, want: TrialRequest) -> Task:
        """A run that the search asks for."""
        spec = replace(self.options.of(self.deployment), requests=None)
        return task_of(want, spec, self.options.own_rps, self.options.slo)


@dataclass(frozen=True, slots=True)
class Judged(Attained):
    """Whether a deployment meets the goals at the requested rate; the same (`holds`, with the share of what is then the
    farthest below its goal) were its latencies longer by the known error of the step times (None: not known)."""

    holds: bool | None = None
    with_error: float | None = None

    @property
    def unloaded(self) -> bool:
        """Whether it misses without load."""
        return self.binding == WITHOUT_LOAD


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
        joint = shares(table, options.slo)[0]
        met.append(joint.met / max(1, joint.of))
        requests += len(table)
    mean, share = math.fsum(by_seed.values()) / len(by_seed), math.fsum(met) / len(met)
    interval = spread([*by_seed.values()]) if len(by_seed) > 1 and math.isfinite(mean) else None
    low_s, high_s = (None, None) if interval is None else (interval.low, interval.high)
    meets = share >= options.slo.goal and math.isfinite(mean)
    return Timed(mean, low_s, high_s, meets, share, requests, by_seed)


def judged(question: Question) -> Judged:
    """Whether a deployment meets the goals at the requested rate: a few runs, or with `again` as many as decide."""
    options = question.options
    assert options.rate_rps is not None
    a_run = options.rate_rps * options.horizon_s
    few = max(FEW, round(a_run * FEW_RUNS[a_run > FEW]))
    search = AtRate(question.spec((options.max_requests or LIMIT) if question.again else few))
    delayed: list[Trial] = []
    scored: list[Slo] = []

    def make(wanted: list[TrialRequest]) -> list[Trial]:
        made = []
        for want in wanted:
            task, begun_s = question.task(want), time.monotonic()
            if task.key.rate_rps == 0:
                made.append(simulated(task))
                continue
            try:
                table = trial.simulate(task.run).table
            except NothingDue:
                table = to_table([])
            conclude = concluded if task.horizon_s is None else over_horizon
            made.append(conclude(task, table, None, begun_s))
            if (slower := options.slower(task.slo, question.deployment)) is not None:
                scored.append(slower)
                delayed.append(conclude(replace(task, slo=slower), table, None, begun_s))
        return made

    attained = answered(search.attained(options.seeds[:FEW_SEEDS]), make)
    if not delayed:
        return Judged(**asdict(attained))
    wanted = conditions(scored[-1], options.slo.goal, options.definition)
    met = {c: math.fsum(run.share(c.key).met / max(1, run.share(c.key).of) for run in delayed) for c in wanted}
    worst = min(wanted, key=lambda condition: met[condition] / len(delayed) - condition.goal)
    share = met[worst] / len(delayed)
    return Judged(**asdict(attained), holds=share >= worst.goal, with_error=share)


def rough(question: Question) -> Capacity:
    """About what a deployment sustains: between single short runs."""
    steps = AtRate(question.spec(LIMIT)).rough()
    rate_rps, requests = answered(steps, lambda wanted: [simulated(question.task(want)) for want in wanted])
    return Capacity(rate_rps, None, None, None if rate_rps else WITHOUT_LOAD, requests)


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
