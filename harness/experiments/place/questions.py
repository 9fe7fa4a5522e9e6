"""What a placement asks of one deployment, each question a call that runs in a worker.

Over a horizon (`harness.experiments.capacity`): whether it meets the goals at a rate, roughly what it sustains, and its
capacity.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace

from harness.api import Slo
from harness.data.records import to_table
from harness.errors import NothingDue
from harness.experiments import trial
from harness.experiments.capacity.at_rate import AtRate, Attained
from harness.experiments.capacity.conditions import Settings, conditions
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.search_spec import SearchSpec, TrialRequest, answered
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Task, Trial, concluded, over_horizon, simulated, task_of
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Deployment

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
            planned=options.recorded_requests or 0, first_seed=options.spec.seed, tolerance=TOLERANCE,
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

    first = options.spec.seed
    attained = answered(search.attained(range(first, first + FEW_SEEDS)), make)
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
