"""What a placement asks of one deployment, each question a call that runs in a worker.

Over a horizon (`harness.experiments.capacity`): whether it meets the goals at a rate, roughly what it sustains, and its
capacity.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

import numpy as np

from harness.api import Slo
from harness.data.records import to_table
from harness.errors import NothingDue
from harness.experiments import trial
from harness.experiments.capacity.conditions import Condition, Settings, conditions
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.horizon import HorizonSearch, SearchEnded
from harness.experiments.capacity.search_spec import SearchSpec, TrialRequest, answered
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Key, Task, Trial, concluded, over_horizon, simulated, task_of
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Deployment
from harness.stats.tails import student

TOLERANCE = 0.05
"""Half of the interval of a capacity, as a share of it."""
WITHOUT_LOAD = "without load"
"""What binds a deployment whose requests miss the goals one by one."""
LIMIT = 150_000
"""Requests that may be spent on one deployment."""
FEW, FEW_RUNS, FEW_SEEDS = 10_000, (6.5, 2.5), 4
"""Requests of the first runs of a deployment, or so many runs if these are more (the second number where one run alone
has more): one tells a clear miss, three (one and half of the third number) or two that it clearly meets."""

CLUMP, SURE = 6.0, 4.0
"""One run tells a miss by so many standard errors, where so many requests miss together."""
INTERIM = 1.3
"""Wider than an interval must be what decides, because it is looked at more than once."""

Steps: TypeAlias = "Generator[list[TrialRequest], list[Trial], Attained]"


@dataclass(frozen=True, slots=True)
class Attained:
    """The share of the condition that is the farthest below its goal, with its 95% interval (None: no interval).

    `meets` is False where the goal is surely missed, None where the seeds do not tell. `by_seed` are the shares by
    seed: on equal seeds two systems have the same traffic.
    """

    meets: bool | None
    share: float
    low: float | None
    high: float | None
    binding: str
    requests: int
    by_seed: dict[int, float] = field(default_factory=dict)


class AtRate(HorizonSearch):
    """The question for one rate."""

    def attained(self, seeds: Sequence[int]) -> Steps:
        """Runs of these seeds, and of as many again until the side of the goals is known or the limit is spent; one
        alone decides where it can. A recording is one run."""
        spec, rate_rps = self.spec, self.spec.at_rps
        assert rate_rps is not None
        if not spec.one_traffic and (yield from self._alone()) is not None:
            return Attained(False, 0.0, None, None, WITHOUT_LOAD, self._spent)
        self.horizon_s = self._horizon_at(rate_rps)
        goals, slo = self._objective(self.horizon_s)
        runs: list[Trial] = []
        new = list(seeds[:1])
        if self._spent > spec.limit:
            return Attained(None, 0.0, None, None, "not run: --max-requests is too low", self._spent)
        while True:
            runs += yield from self._made(
                [TrialRequest(Key(seed, rate_rps, spec.planned), goals, slo=slo) for seed in new]
                if spec.one_traffic
                else [self._request(seed, rate_rps, self.horizon_s, goals, slo, None) for seed in new]
            )
            outcome = self._judged(runs, goals)
            if spec.one_traffic or outcome.meets is not None:
                return outcome
            affordable = int((spec.limit - self._spent) / (rate_rps * (self.horizon_s + self.settle_s)))
            more = min(max(len(seeds) // 2, 2, len(runs)), affordable)  # 1, 5, 10, 20, ... seeds
            if more < 1:
                return outcome
            new = list(range(seeds[0] + len(runs), seeds[0] + len(runs) + more))

    def rough(self) -> Generator[list[TrialRequest], list[Trial], tuple[float, int]]:
        """About the highest rate that meets the goals, between two short runs, and the requests that it took."""
        if (yield from self._alone()) is not None:
            return 0.0, self._spent
        try:
            low, high = yield from self._bracket()
        except SearchEnded:
            low, high = max((rate for rate, good in self._sides.items() if good), default=None), None
        return math.sqrt(low * high) if low and high else low or 0.0, self._spent

    def _judged(self, runs: Sequence[Trial], wanted: Sequence[Condition]) -> Attained:
        """What the runs say of the condition that is the farthest below its goal."""
        shares = {c: {t.key.seed: t.share(c.key).met / max(1, t.share(c.key).of) for t in runs} for c in wanted}
        condition = min(wanted, key=lambda c: math.fsum(shares[c].values()) / len(runs) - c.goal)
        by_seed, goal = shares[condition], condition.goal
        n, total = len(runs), max(1, sum(trial.share(condition.key).of for trial in runs))
        mean = math.fsum(by_seed.values()) / n
        error = math.sqrt(goal * (1 - goal) / total)  # of independent requests
        if self.spec.one_traffic:
            return Attained(mean >= goal, mean, None, None, str(condition.key), self._spent, by_seed)
        if n == 1:
            meets = False if mean < goal - SURE * math.sqrt(CLUMP) * error else None
            return Attained(meets, mean, None, None, str(condition.key), self._spent, by_seed)
        half = student(n) * max(error, float(np.std([*by_seed.values()], ddof=1)) / math.sqrt(n))
        meets = True if mean - INTERIM * half >= goal else False if mean + INTERIM * half < goal else None
        low, high = max(0.0, mean - half), min(1.0, mean + half)
        return Attained(meets, mean, low, high, str(condition.key), self._spent, by_seed)


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
        trials = []
        for want in wanted:
            task, begun_s = question.task(want), time.monotonic()
            if task.key.rate_rps == 0:
                trials.append(simulated(task))
                continue
            try:
                table = trial.simulate(task.run).table
            except NothingDue:
                table = to_table([])
            conclude = concluded if task.horizon_s is None else over_horizon
            trials.append(conclude(task, table, None, begun_s))
            if (slower := options.slower(task.slo, question.deployment)) is not None:
                scored.append(slower)
                delayed.append(conclude(replace(task, slo=slower), table, None, begun_s))
        return trials

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
    answer, requests = info.answers[0], info.cost.requests if info.cost else 0
    low, high = answer.bracket_rps
    if answer.capacity_rps is None:
        return Capacity(low or 0.0, None, None, answer.binding, requests, at_least=high is None and low is not None)
    by_seed = {int(seed): rate for seed, rate in answer.knees.items()}
    return Capacity(answer.capacity_rps, answer.low_rps, answer.high_rps, answer.binding, requests, by_seed=by_seed)
