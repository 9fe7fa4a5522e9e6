"""Runs a search: the trials that it requests, a ledger of their results, and a budget."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from harness.api import Elastic, RunWarning, Slo
from harness.data.folder import new_folder
from harness.data.host import busy, host
from harness.errors import BackendError, Interrupted, NotValid, UsageError
from harness.experiments import pool, trial
from harness.experiments.capacity.answer import answer
from harness.experiments.capacity.blocks import search
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.conditions import BUDGET_S, MAX_REQUESTS, Settings, requests_of
from harness.experiments.capacity.horizon import HorizonSearch
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, SearchSteps, TrialRequest, answered
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import (
    Key,
    Ledger,
    Runs,
    Task,
    Trial,
    one_after_the_other,
    simulated,
    task_of,
)
from harness.experiments.trial import Filling, filling
from harness.metrics.objective import JOINT
from harness.options import RunSpec
from harness.runner.plan import Plan, plan
from harness.runner.progress import QUIET, Display
from harness.runner.run import RUNS, default_folder
from harness.validity.rules import sentences
from harness.validity.steady_state import check_leaves
from harness.validity.work_done import too_long

BELOW_OWN = 4
"""Traffic that cannot be sent one after the other begins this much below its own rate."""
CONCLUDE_S = 2.0
"""The last trial is cut so long before the end of the budget, to be concluded in it."""


TrialFactory: TypeAlias = Callable[[Iterable[Task]], Iterator[Trial]]
"""Runs trials: gives each as soon as it ends."""


@dataclass(slots=True)
class Budget:
    """How long a search may take, in seconds of the wall; None: as long as it takes."""

    limit_s: float | None
    begun_s: float
    interrupted: bool = False
    failed: BackendError | NotValid | None = None
    """What ended the search: an invalid trial."""

    @property
    def spent_s(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.begun_s

    def left_s(self, share: float = 1.0) -> float:
        """Seconds that are left, of the first `share` of the limit."""
        return math.inf if self.limit_s is None else share * self.limit_s - self.spent_s

    @property
    def allows(self) -> bool:
        """Whether another trial may begin."""
        return not self.interrupted and self.failed is None and self.left_s() > 0

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Note what ends the body before its time: Ctrl-C, a backend that fails, a trial that is not valid."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
        except (BackendError, NotValid) as error:
            self.failed = error

    def check(self, trials: Sized) -> None:
        """Raise what ended the search where there are no `trials` to answer from."""
        if self.failed is not None and not len(trials):
            raise self.failed
        if self.interrupted and not len(trials):
            raise Interrupted("interrupted before the first trial ended; rerun the command to start again.")


@dataclass(frozen=True, slots=True)
class Setup:
    """What all searches of one command share."""

    spec: RunSpec
    settings: Settings
    planned: Plan
    own_rps: float
    requests: int
    recorded: bool
    slo: Slo
    fixed: bool
    """Whether the user named the requests of a trial."""
    alone_rps: float = 0.0
    filling: Filling = field(default_factory=Filling)
    host: Mapping[str, object] = field(default_factory=host)
    """This machine, with its load before the first trial."""

    @property
    def over_horizon(self) -> bool:
        """Whether trials are runs over a horizon, which have no set number of requests."""
        return self.planned.virtual and not self.recorded

    @property
    def budget_s(self) -> float | None:
        """How long the search may take, in seconds of the wall; None: as long as it takes."""
        if self.settings.budget_s is not None or self.planned.virtual or self.recorded:
            return self.settings.budget_s
        return BUDGET_S

    @property
    def clock(self) -> str:
        """`virtual` or `wall`."""
        return "virtual" if self.planned.virtual else "wall"

    def search_spec(self, goal: float) -> SearchSpec:
        """The search for one goal."""
        return SearchSpec(
            slo=self.slo,
            goal=goal,
            definition=self.settings.definition,
            planned=self.requests,
            first_seed=self.spec.seed,
            tolerance=self.settings.tolerance_of(self.clock),
            from_rps=self.settings.from_rps,
            at_rps=self.settings.at_rps,
            own_rps=self.own_rps,
            one_traffic=self.recorded,
            fixed=self.fixed,
            budget_s=self.budget_s,
            alone_rps=self.alone_rps,
            horizon_s=self.settings.horizon_s,
            windows=self.settings.windows,
            mean_known=self.filling.sessions is None and self.planned.loaded.arrivals_text == "poisson",
            limit=self.settings.max_requests or MAX_REQUESTS,
            filling=self.filling,
        )


def simulated_warnings(planned: Plan, *, recorded: bool) -> list[RunWarning]:
    """Return what makes simulated runs of a plan not valid as runs of their own."""
    if not planned.virtual:
        return []
    table, facts = planned.schedule.table, planned.backend.describe()
    return [*too_long(table, "output_tokens", facts, recorded=recorded, virtual=True)]


def set_up(spec: RunSpec, settings: Settings, *, of_run: bool = False) -> Setup:
    """Check everything before a trial is made; with `of_run` the requests in the spec are those of some run, and no
    run over a horizon has so many. Raises UsageError for what has no capacity to search."""
    spec = replace(spec, goal=settings.goals[0])
    own_rps = trial.own_rate(spec)
    recorded = spec.trace is not None
    first = plan(spec if recorded else replace(spec, requests=spec.requests or 100))
    objective = first.slo
    if not objective.bounds:
        raise UsageError("A capacity needs an SLO to meet; give one, such as --slo ttft=0.25,tpot=0.1.")
    fixed = spec.requests is not None
    if first.virtual:
        recorded = first.recorded
    if first.virtual and not recorded:
        if fixed and not of_run:
            raise UsageError(
                f"--requests {spec.requests} is that of a run, and this search has runs as long as its horizon; "
                "say how long with --horizon, and limit the whole search with --max-requests."
            )
        spec = replace(spec, requests=None, duration=None)
        least_s = first.backend.settles_s if isinstance(first.backend, Elastic) else 0.0
        return Setup(
            spec, settings, first, own_rps, 0, recorded, objective, fixed=False, filling=filling(spec, least_s)
        )
    for option, value in (("--horizon", settings.horizon_s), ("--windows", settings.windows)):
        if value is not None:
            raise UsageError(f"{option} is for drawn traffic on a simulator; leave it out.")
    spec = replace(spec, warmup=spec.warmup or "mser5")
    requests = len(first.schedule) if recorded else requests_of(spec)
    if (spec.warmup or "").isdecimal() and not recorded:
        check_leaves(spec.warmup, plan(replace(spec, requests=requests)).schedule)
    spec = replace(spec, requests=None if recorded else requests)
    alone_rps = 0.0 if recorded or _one_after_the_other(spec) else own_rps / BELOW_OWN
    return Setup(spec, settings, first, own_rps, requests, recorded, objective, fixed, alone_rps)


def _one_after_the_other(spec: RunSpec) -> bool:
    """Whether its requests can be sent one after the other: not those of sessions, or of several kinds of traffic."""
    try:
        plan(one_after_the_other(replace(spec, requests=2)))
    except UsageError:
        return False
    return True


def tell_load(setup: Setup, tell: Callable[[str], None]) -> None:
    """Say that the machine was busy before the search."""
    if (load := busy(setup.host)) is not None:
        tell(f"warning: {load}: requests leave late, and answers come late")


def run_search(
    setup: Setup,
    store: Store,
    make: TrialFactory | None = None,
    *,
    workers: int | None = None,
    pool_name: str = pool.PROCESSES,
    tell: Callable[[str], None] = lambda _: None,
    display: Display = QUIET,
) -> CapacityAnswer:
    """Search every goal and return the content of capacity.json. Ctrl-C ends it with the results so far.

    An invalid trial decides nothing: it ends the search with the results so far, or raises BackendError
    or NotValid where there are none, or where no simulated run of the traffic can be valid. Raises Interrupted where no
    trial had ended.
    """
    for wrong in sentences(simulated_warnings(setup.planned, recorded=setup.recorded)):
        raise NotValid(wrong)
    budget = Budget(setup.budget_s, time.monotonic())
    if make is None and not setup.planned.virtual:
        tell_load(setup, tell)
    with (
        pool.of(workers, pool_name, virtual=setup.planned.virtual) as processes,
        store.opened(setup),
        tempfile.TemporaryDirectory() as folder,
    ):
        if make is None and setup.planned.virtual:
            make = partial(_simulated, processes)
        elif make is None:
            assert store.path is not None  # folder_of gives one to every search under the wall clock
            make = Runs(store.path, tell, Path(folder, "probe.json"), display)
        runner = TrialRunner(setup, store.ledger, make, budget, tell)
        searches = [(goal, _search_goal(setup, place, runner)) for place, goal in enumerate(setup.settings.goals, 1)]
        budget.check(store.ledger)
        invalid, late = (make.invalid, make.server_late) if isinstance(make, Runs) else ([], {})
        info = answer(
            setup, searches, store.ledger, budget.spent_s, interrupted=budget.interrupted, failed=budget.failed,
            invalid=invalid, warnings=[*_first(late)],
        )  # fmt: skip
        store.finish(info)
    return info


def _first(late: Mapping[float, RunWarning]) -> Iterator[RunWarning]:
    """That the server's own process was late, from the lowest rate on at which it was."""
    for rate_rps in [*sorted(late)][:1]:
        yield replace(late[rate_rps], message=f"at {rate_rps:g} req/s {late[rate_rps].message}")


def _simulated(processes: pool.Pool, tasks: Iterable[Task]) -> Iterator[Trial]:
    """Make trials of a simulator, several at a time; they come as they end."""
    return (tried for _, tried in processes.map(simulated, tasks))


def _search_goal(setup: Setup, place: int, runner: TrialRunner) -> SearchResult:
    """The search for the goal at that place, counted from 1; each may use its part of the budget."""
    goals, before = setup.settings.goals, list(runner.trials.values())

    def left_s() -> float:
        return runner.budget.left_s(place / len(goals))

    def new_search() -> SearchSteps:
        if setup.over_horizon:
            return HorizonSearch(setup.search_spec(goals[place - 1])).steps()
        # On a wall clock the length of a block depends on the time that was left, so stored ones count as they are.
        trials = before if setup.planned.virtual else runner.ledger
        blocks = [t for t in trials if t.key.goal is None and t.key.rate_rps != setup.alone_rps and not t.undecided]
        return search(setup.search_spec(goals[place - 1]), left_s, blocks)

    try:
        outcome = answered(new_search(), runner.run)
    except KeyboardInterrupt:  # between two trials: search again with those that are done
        runner.budget.interrupted = True
        outcome = answered(new_search(), runner.run)
    return outcome if outcome.resolved or runner.limit is None else replace(outcome, why=runner.limit)


@dataclass(slots=True)
class TrialRunner:
    """Runs requested trials, except those already in the ledger. `trials` are the results requested so far.

    Note: other trials in the ledger do not count, or a resumed search would end differently from an uninterrupted one.
    """

    setup: Setup
    ledger: Ledger
    make: TrialFactory
    budget: Budget
    tell: Callable[[str], None]
    trials: dict[Key, Trial] = field(default_factory=dict)
    limit: str | None = None
    """The limit of requests, or of time, where it ended the search."""

    def _allows(self, task: Task) -> bool:
        """Whether the trial may begin, by the budget of time and that of requests."""
        most = self.setup.settings.max_requests
        if most is not None and self.ledger.requests + task.key.planned > most:
            self.limit = f"the limit of {most:,} requests was reached (--max-requests)."
            return False
        if self.setup.over_horizon and self.budget.left_s() <= 0:
            self.limit = f"the budget of {self.budget.limit_s:g} s ended (--budget)."
        return self.budget.allows

    def run(self, wanted: Sequence[TrialRequest]) -> list[Trial]:
        """The trials, in the order requested; fewer where the budget ends, none when it is spent."""
        setup, ends_s = self.setup, math.inf
        if self.budget.limit_s is not None and not setup.planned.virtual:
            conclude_s = max((t.more_s for t in self.ledger if t.key.rate_rps == 0), default=0.0) / 2
            ends_s = self.budget.begun_s + self.budget.limit_s - max(CONCLUDE_S, conclude_s)
        missing = [
            task_of(want, setup.spec, setup.own_rps, setup.slo, ends_s)
            for want in wanted
            if (stored := self.ledger.get(want.key)) is None or stored.undecided
        ]
        with self.budget.ends():
            for tried in self.make(t for t in missing if self._allows(t)):
                self.ledger.add(tried)
                if tried.quarters is None:
                    self.tell(format_trial(tried))
        ordered = [stored for want in wanted if (stored := self.ledger.get(want.key)) is not None]
        self.trials.update((stored.key, stored) for stored in ordered)
        if missing and ordered and ordered[0].quarters is not None:
            self.tell(self._format_runs(ordered))
        return ordered

    def _format_runs(self, runs: Sequence[Trial]) -> str:
        """One line of progress about runs over a horizon."""
        rates = " and ".join(f"{rate:g}" for rate in sorted({run.key.rate_rps for run in runs}))
        met = []
        for key in (share.key for share in runs[0].shares):
            what = "met the SLO" if key == JOINT else f"within {key}" if key.percentile is not None else None
            shares = [share.met / share.of for run in runs if (share := run.share(key)).of]
            if what is not None:
                met.append(f"{math.fsum(shares) / max(1, len(shares)):.2%} {what}")
        some = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        return (
            f"{rates} req/s, {some} of {runs[0].system_s:,.0f} s: {', '.join(met)} "
            f"({self.ledger.requests:,} requests so far)"
        )


def format_trial(tried: Trial) -> str:
    """One line of progress about a trial."""
    key, joint = tried.key, tried.shares[0]
    if tried.undecided:
        return f"seed {key.seed}, {key.rate_rps:g} req/s: requests that were late or held back decide, drawn again"
    if tried.late:
        side = "met" if tried.passed else "missed"
        return f"seed {key.seed}, {key.rate_rps:g} req/s: goal {side} however late or held-back requests are counted"
    if key.goal is not None:
        side = "missed" if not tried.passed else "met" if joint.met >= key.goal * joint.of else "not surely missed"
        met = f"{joint.met} of {joint.of} met every bound; " if tried.by_request else ""
        return f"seed {key.seed}, {key.rate_rps:g} req/s: goal {side} ({met}{tried.requests:,} requests)"
    if not tried.by_request:
        within = ", ".join(f"{s.met / max(1, s.of):.1%} of {s.of:,} within {s.key}" for s in tried.shares[1:])
        return f"seed {key.seed}, {key.rate_rps:g} req/s: {within}"
    at = f"seed {key.seed}, {key.rate_rps:g} req/s" if key.rate_rps else "alone, without load"
    return (
        f"{at}: {joint.met / max(1, joint.of):.1%} of {joint.of:,} requests "
        f"{'met every bound' if len(tried.shares) > 2 else 'met the bound'}"
    )


def folder_of(out: str | None, setup: Setup) -> Path | None:
    """The folder of a search: that of --out, a new one under the wall clock, none for a simulator."""
    if out is not None:
        return Path(out)
    if setup.planned.virtual:
        return None
    name = default_folder(setup.planned).name
    return new_folder(Path(RUNS) / f"capacity-{name}")
