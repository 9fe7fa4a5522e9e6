"""Runs a search for agents: simulated trials several at a time, real ones one after the other within a budget."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from harness.api import WARM_UP, Slo
from harness.data import codec
from harness.data.codec import encode
from harness.data.folder import cleaned
from harness.data.host import versions
from harness.data.lists import number
from harness.data.run_json import Warned
from harness.errors import BackendError, UsageError
from harness.experiments import pool, trial
from harness.experiments.agents.agents_json import AgentsAnswer, AgentTrial, TierAgents, TrialShare
from harness.experiments.capacity.answer import INTERRUPTED, binding_of
from harness.experiments.capacity.blocks import SPENT, Blocks
from harness.experiments.capacity.conditions import Mask, Share, kept_all
from harness.experiments.capacity.execute import Budget, simulated_warnings
from harness.experiments.capacity.horizon import HorizonSearch, SearchEnded, Steps
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, SearchSteps, TrialRequest, answered
from harness.experiments.capacity.trials import QUARTERS, Quarters, Runs, Trial, Watch
from harness.experiments.folder import ExperimentFolder
from harness.metrics.measure import cached_share, first_last, metrics, succeeded
from harness.metrics.objective import JOINT, ShareKey, parse_slo, score
from harness.metrics.resources import Resources, resources
from harness.options import RunSpec
from harness.runner.plan import Plan, plan
from harness.runner.progress import QUIET, Display
from harness.spec import parse
from harness.stats.crossing import FEWEST_SEEDS
from harness.validity.work_done import exceeded

if TYPE_CHECKING:
    from harness.runner.run import Result

TIERS = ("p95:ttft=5,p90:tpot=50ms", "p95:ttft=2,p90:tpot=20ms")
"""Of a first token within 5 s for 95% of requests and 20 tokens/s for nine tenths of them; 2 s and 50 tokens/s."""
WORKLOAD = "coding-agent"
HORIZON_S, BUDGET_S = 3600.0, 600.0
WALL_TRIALS = 8
"""Trials on a wall clock share the budget: the bracket takes some, those around the crossing the others."""
MAX_REQUESTS = 300_000
"""Requests that a simulated search may take: prompts of agents are long, so each costs more than one of a chat."""
RAMP = 0.1
"""Of a trial, in which part the agents start."""
LATEST = 0.6
"""A trial counts from when all caches are warm, but at the latest from this part of it on."""
KIND = "agents"
CUT = 0.25
"""Of the horizon, what comes before it and is not counted: in it agents start, and their caches become warm."""
MOST_AGENTS = 4096
"""No more are tried."""
WALL_STEP = 4
"""Times as many agents in the next trial of a bracket on a wall clock, where there is time for about eight."""
GOLDEN = (math.sqrt(5) - 1) / 2
ONE_MISSES = SearchResult(None, resolved=True, unreachable=True, why="even one agent alone misses it.")


class Key(NamedTuple):
    """What makes a trial: equal keys of one search give equal trials. It counts for `span_s`."""

    users: int
    seed: int
    span_s: float


@dataclass(frozen=True, slots=True)
class Tier:
    """An SLO as it was written and as it is judged: with the implied bound on waiting, where it has none."""

    text: str
    spec: SearchSpec
    slo: Slo

    def texts(self) -> Iterator[tuple[ShareKey, str]]:
        """Each share that is counted, and its name in agents.json."""
        yield JOINT, f"{JOINT}: {self.text}"
        yield from ((bound, str(bound)) for bound in self.slo.bounds)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all trials of one search share."""

    spec: RunSpec
    tiers: tuple[Tier, ...]
    tolerance: float
    horizon_s: float
    budget_s: float | None
    first: Plan
    takes: Resources
    max_requests: int | None = None

    @property
    def virtual(self) -> bool:
        """Whether trials are simulated."""
        return self.first.virtual


def set_up(
    spec: RunSpec, tiers: Sequence[str], horizon_s: float | None = None, budget_s: float | None = None,
    *, tolerance: float = 0.1, agents_from: int = 1, max_requests: int | None = None,
) -> Setup:  # fmt: skip
    """Check everything before a trial is made. Raises UsageError for traffic without sessions, or a tier that no single
    request can be judged by."""
    arrivals = parse(spec.arrivals or "closed")
    if arrivals.name != "closed" or {"users", "steady"} & {*arrivals.args} or arrivals.first is not None:
        raise UsageError(f"--arrivals must be closed without users, got '{spec.arrivals}': the search varies them.")
    chosen = {*parse(spec.sessions).args} if spec.trace is not None and spec.sessions is not None else set()
    if {"begin_most", "begin_least", "count", "passes"} & chosen:
        raise UsageError("--sessions: the search decides how many there are and where they start; give only common.")
    slos = tuple(parse_slo(text) for text in tiers)
    for text, slo in zip(tiers, slos, strict=True):
        if not slo.bounds:
            raise UsageError(f"--slo '{text}' has no bound.")
        pooled = [bound for bound in slo.bounds if metrics()[bound.metric].pooled]
        if pooled:
            raise UsageError(f"--slo '{pooled[0]!s}' is not of single requests; bound tpot instead.")
    if spec.trace is not None:
        spec = replace(spec, turns=spec.turns or "think-only")
    first = plan(_run(spec, Key(1, spec.seed, horizon_s or HORIZON_S), 0.0))
    if not first.schedule.has_follow_ups:
        raise UsageError(f"'{spec.trace or spec.workload}' has no sessions of several requests, so no agents to count.")
    if budget_s is None and not first.virtual:
        budget_s = BUDGET_S
    if horizon_s is None:
        horizon_s = HORIZON_S if first.virtual else (budget_s or BUDGET_S) / (1 + CUT) / WALL_TRIALS
    searches = [
        SearchSpec(
            slo=slo, goal=spec.goal, definition="joint", planned=0, first_seed=spec.seed, tolerance=tolerance,
            from_rps=float(agents_from), horizon_s=horizon_s, limit=max_requests or MAX_REQUESTS,
        )
        for slo in slos
    ]  # fmt: skip
    judged = (Tier(text, search, AgentSearch(search).objective()) for text, search in zip(tiers, searches, strict=True))
    takes = resources(first.backend.describe())
    return Setup(spec, tuple(judged), tolerance, horizon_s, budget_s, first, takes, max_requests)


def _run(spec: RunSpec, key: Key, settle_s: float) -> RunSpec:
    whole_s = settle_s + key.span_s
    arrivals = parse(spec.arrivals or "closed")
    args = {"think": "0", "ramp": f"{RAMP * whole_s:.6g}s", **arrivals.args, "users": str(key.users), "steady": "on"}
    closed = str(replace(arrivals, args=args))
    warmup = f"{settle_s:.6g}s"
    return replace(spec, seed=key.seed, duration=whole_s, warmup=warmup, requests=None, arrivals=closed)


@dataclass(frozen=True, slots=True)
class Task:
    """One trial, to be simulated in any process."""

    setup_spec: RunSpec
    tiers: tuple[Tier, ...]
    key: Key
    settle_s: float

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"of {self.key.users} agents (seed {self.key.seed})"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.key.users}-agents-seed{self.key.seed}"

    def watch(self) -> None:
        """Nothing ends it early: all tiers are judged by it."""

    @property
    def run(self) -> RunSpec:
        return _run(self.setup_spec, self.key, self.settle_s)


def simulated(task: Task) -> AgentTrial:
    """Make a trial under a virtual clock, in this process."""
    begun_s = time.monotonic()
    table = trial.simulate(task.run).table
    return measured(task, table, time.monotonic() - begun_s)


def measured(task: Task, table: pa.Table, wall_s: float) -> AgentTrial:
    """Return what a trial shows of every tier."""
    whole_s = task.settle_s + task.key.span_s
    warm = table.filter(pc.fill_null(pc.equal(table["tag"], WARM_UP), False))
    warmed_s = np.nan_to_num(first_last(warm)[1], nan=np.inf)  # when each cache was warm
    cut_s = min(max(task.settle_s, warmed_s.max(initial=0.0)), LATEST * whole_s)
    cut = table.filter(pa.array(number(table, "scheduled_s") >= cut_s))
    ok = cut.filter(pa.array(succeeded(cut)))
    ttft_s, tpot_s = metrics()["ttft"].of(ok), metrics()["tpot"].of(ok)
    tpot_s = tpot_s[np.isfinite(tpot_s) & (tpot_s > 0)]
    seconds = whole_s - cut_s
    quarter = np.minimum((QUARTERS * (number(cut, "scheduled_s") - cut_s) / seconds).astype(int), QUARTERS - 1)
    shares = {share.text: share for tier in task.tiers for share in _shares(cut, tier, quarter)}
    return AgentTrial(
        users=task.key.users,
        seed=task.key.seed,
        span_s=task.key.span_s,
        seconds=seconds,
        requests=len(cut),
        sessions=len(np.unique(cut["session"].to_numpy())),
        wall_s=wall_s,
        settled=float((warmed_s <= cut_s).mean()) if len(warmed_s) else 1.0,
        shares=list(shares.values()),
        ttft_p95_s=float(np.quantile(ttft_s, 0.95)) if len(ttft_s) else None,
        speed_p10=float(1 / np.quantile(tpot_s, 0.9)) if len(tpot_s) else None,
        requests_rps=len(cut) / seconds,
        output_tps=float(number(cut, "output_tokens").sum()) / seconds,
        cache_found=cached_share(cut),
    )


def _shares(table: pa.Table, tier: Tier, quarter: npt.NDArray[np.int64]) -> Iterator[TrialShare]:
    """Count each condition of a tier, with the standard deviation of its share over sessions."""
    session = np.unique(table["session"].to_numpy(), return_inverse=True)[1]
    scored = score(table, tier.slo)
    masks: dict[ShareKey, tuple[Mask, Mask]] = {JOINT: (scored.met, np.ones(len(table), bool))}
    masks |= {bound.bound: (bound.met, bound.applies) for bound in scored.bounds}
    for key, text in tier.texts():
        met, judged = masks[key]
        met_by, of_by = (np.bincount(quarter[mask], minlength=QUARTERS).tolist() for mask in (met & judged, judged))
        yield TrialShare(
            text=text, met=sum(met_by), of=sum(of_by), sd=_sd(met[judged], session[judged]), met_by=met_by, of_by=of_by
        )


def _sd(met: npt.NDArray[np.bool_], session: npt.NDArray[np.int64]) -> float | None:
    sessions = len(np.unique(session))
    if sessions < 2:
        return None
    residual = np.bincount(session, met - met.mean())
    return float(np.sqrt((residual**2).sum() * sessions / (sessions - 1)) / len(met))


def trial_of(stored: AgentTrial, tier: Tier, want: TrialRequest, *, independent: bool) -> Trial:
    """Return a trial as a search takes it.

    With `independent` it counts as many requests as the scatter of its sessions leaves independent.
    """
    shares, met, total = [], {}, {}
    for key, text in tier.texts():
        share = stored.share(text)
        part = share.independent if independent else 1.0
        shares.append(Share(key, round(part * share.met), round(part * share.of)))
        met[key], total[key] = np.array(share.met_by), np.array(share.of_by)
    nothing = np.zeros(QUARTERS, np.int64)
    return Trial(
        key=want.key, requests=stored.requests, kept=stored.requests, cut_at_s=0.0, passed=None, overloaded=False,
        e2e_s=None, system_s=stored.seconds, wall_s=stored.wall_s, shares=tuple(shares),
        quarters=Quarters(met, total, nothing, (0.0, 0.0)),
    )  # fmt: skip


def run_search(
    setup: Setup,
    out: Path | None,
    *,
    workers: int | None = None,
    pool_name: str = pool.PROCESSES,
    tell: Callable[[str], None] = lambda _: None,
    display: Display = QUIET,
) -> AgentsAnswer:
    """Search every tier. Ctrl-C, a backend that fails and a trial that is not valid twice end it with the results so
    far; where no trial had ended they raise Interrupted, BackendError or NotValid."""
    with pool.of(workers, pool_name, virtual=setup.virtual) as processes, tempfile.TemporaryDirectory() as temporary:
        shared = Path(temporary, "probe.json")
        if out is None:
            runs = Runs(Path(temporary), tell, shared, display)
            return _Search(setup, None, processes, runs, tell).answer()
        folder, runs = ExperimentFolder(out, KIND, "search"), Runs(out, tell, shared, display)
        with folder.opened() as before:
            return _Search(setup, folder, processes, runs, tell, _stored(folder, before, setup)).answer()


@dataclass(slots=True)
class _Search:
    """Makes the trials that the searches of the tiers ask for, each once."""

    setup: Setup
    folder: ExperimentFolder | None
    processes: pool.Pool
    runs: Runs
    tell: Callable[[str], None]
    trials: dict[Key, AgentTrial] = field(default_factory=dict)
    budget: Budget = field(init=False)
    limit: str | None = None
    """The limit of requests, or of time, where it ended the search."""

    def __post_init__(self) -> None:
        self.budget = Budget(self.setup.budget_s, time.monotonic())

    def answer(self) -> AgentsAnswer:
        """Search every tier, and return what is known in the end."""
        self._save("running", [])
        answers = []
        for tier in self.setup.tiers:
            search = AgentSearch(tier.spec) if self.setup.virtual else AgentBlocks(tier.spec, lambda: math.inf, ())
            steps, make = search.steps(), lambda wanted, tier=tier: self._make(tier, wanted)
            answers.append(self._tier(tier, answered(steps, make)))
        self.budget.check(self.trials)
        return self._save("interrupted" if self.budget.interrupted else "finished", answers)

    def _make(self, tier: Tier, wanted: Sequence[TrialRequest]) -> list[Trial]:
        """Return the trials, in the order requested; fewer where the search ends."""
        setup = self.setup
        keys = [self._key(want) for want in wanted]
        missing = [key for key in dict.fromkeys(keys) if key not in self.trials]
        if missing and self._allows(missing):
            with self.budget.ends():
                for key, tried in self._made(missing):
                    self.trials[key] = tried
                    self.tell(_line(tried))
                    self._save("running", [])
        return [
            trial_of(self.trials[key], tier, want, independent=not setup.virtual)
            for key, want in zip(keys, wanted, strict=True)
            if key in self.trials
        ]

    def _key(self, want: TrialRequest) -> Key:
        key = want.key
        return Key(agents_at(key.rate_rps, key.seed), key.seed, want.horizon_s or self.setup.horizon_s)

    def _allows(self, missing: Sequence[Key]) -> bool:
        """Whether these trials may begin, by the budget of time and that of requests."""
        setup, budget = self.setup, self.budget
        if budget.interrupted or budget.failed is not None:
            return False
        next_s = 0.0 if setup.virtual else setup.horizon_s * (1 + CUT)
        if next_s > budget.left_s(1.05):
            self.limit = f"the budget of {setup.budget_s:g} s ended (--budget)." if setup.virtual else None
            return False
        sent = self._sent(missing)
        if setup.max_requests is not None and sent > setup.max_requests:
            self.tell(f"The next trials would make it {sent:,.0f} requests; --max-requests is {setup.max_requests:,}.")
            self.limit = f"the limit of {setup.max_requests:,} requests was reached (--max-requests)."
            return False
        return True

    def _sent(self, missing: Sequence[Key]) -> float:
        """About how many requests the trials have sent, with those that were not observed, and the next ones will."""
        settle_s, measured = CUT * self.setup.horizon_s, self.trials.items()
        of_agent = max((tried.requests_rps / key.users for key, tried in measured), default=0.0)
        sent = sum(tried.requests_rps * (settle_s + key.span_s) for key, tried in measured)
        return sent + of_agent * sum(key.users * (settle_s + key.span_s) for key in missing)

    def _made(self, missing: Sequence[Key]) -> Iterator[tuple[Key, AgentTrial]]:
        setup = self.setup
        tasks = [Task(setup.spec, setup.tiers, key, CUT * setup.horizon_s) for key in missing]
        if setup.virtual:
            return ((task.key, tried) for task, tried in self.processes.map(simulated, tasks))
        return ((task.key, tried) for task, tried in self.runs.each(tasks, _real))

    def _save(self, state: str, found: Sequence[TierAgents]) -> AgentsAnswer:
        setup, trials, failed = self.setup, self.trials.values(), self.budget.failed
        states = {tier.state for tier in found}
        code = 1 if states == {"unreachable"} else 5 if "unresolved" in states else 0
        info = AgentsAnswer(
            **search_options(setup),
            state=state,
            exit_code=code if failed is None else failed.exit_code,
            answers=list(found),
            invalid=[*self.runs.invalid],
            trials=sorted(trials, key=lambda made: (made.users, made.seed, made.span_s)),
            requests=sum(tried.requests for tried in trials),
            wall_s=self.budget.spent_s,
        )
        if self.folder is not None:
            self.folder.write(encode(info))
        return info

    def _tier(self, tier: Tier, found: SearchResult) -> TierAgents:
        """Return the answer for a tier, with what the agents take of what serves them."""
        takes, why = self.setup.takes, found.why if found.resolved else self.limit or found.why
        failed = self.budget.failed
        if not found.resolved and (self.budget.interrupted or failed is not None):
            why = INTERRUPTED if failed is None else str(failed)
        met, missed = found.bracket.low, found.bracket.high
        outcome = TierAgents(
            tier=tier.text,
            state="unreachable" if found.unreachable else "unresolved",
            met=None if met is None else math.floor(met.rate_rps),
            missed=None if missed is None else math.ceil(missed.rate_rps),
            why=why,
        )
        estimate = found.answered
        if estimate is None:
            return outcome
        agents = estimate.rate_rps
        whole_agents = math.floor(agents)
        near_users = min(self.trials.values(), key=lambda made: abs(made.users - agents)).users
        rates = [tried.requests_rps for tried in self.trials.values() if tried.users == near_users]
        return structs.replace(
            outcome,
            state="resolved" if found.resolved else "unresolved",
            agents=agents,
            low=estimate.low_rps,
            high=estimate.high_rps,
            binding=str(binding_of(estimate, found) or JOINT),
            requests_rps=math.fsum(rates) / len(rates),
            per_gpu=whole_agents / takes.gpus if takes.gpus else None,
            per_kw=whole_agents / takes.kw if takes.kw else None,
            usd_per_agent_hour=takes.usd_per_hour / whole_agents if takes.usd_per_hour and whole_agents else None,
            horizon=found.horizon,
            near=found.near,
        )


def _real(task: Task, result: Result, _: Watch | None, begun_s: float) -> AgentTrial | None:
    """What a run on a wall clock shows of the tiers; None where it is not valid."""
    if (fault := exceeded(result.run.info)) is not None:
        raise BackendError(f"The trial {task.name}: {fault}")
    if not result.run.info.verdict.valid:
        return None
    return measured(task, result.run.requests, time.monotonic() - begun_s)


def _line(one: AgentTrial) -> str:
    speed = "-" if one.speed_p10 is None else f"{one.speed_p10:.3g} tokens/s"
    ttft = "-" if one.ttft_p95_s is None else f"{one.ttft_p95_s:.3g} s"
    agents = f"{one.users} agent{'' if one.users == 1 else 's'}"
    return f"{agents}, seed {one.seed}: {one.requests:,} requests, TTFT p95 {ttft}, slowest tenth {speed}"


def search_options(setup: Setup) -> dict[str, Any]:
    """The part of agents.json that is known before the first trial, without secrets of a server."""
    planned, recorded = setup.first, setup.spec.trace is not None
    clean = {
        "versions": versions(),
        "spec": setup.spec.options(),
        "workload": planned.loaded.name,
        "backend": dict(planned.backend.describe()),
    }
    return {
        **{name: cleaned(value, planned.redact) for name, value in clean.items()},
        "traffic": planned.traffic,
        "warnings": [Warned(**asdict(warning)) for warning in simulated_warnings(planned, recorded=recorded)],
        "tiers": [tier.text for tier in setup.tiers],
        "goal": setup.spec.goal,
        "clock": "virtual" if planned.virtual else "wall",
        "horizon_s": setup.horizon_s,
        "tolerance": setup.tolerance,
        "gpus": setup.takes.gpus,
        "kw": setup.takes.kw,
        "usd_per_hour": setup.takes.usd_per_hour,
    }


def _stored(folder: ExperimentFolder, before: Mapping[str, Any] | None, setup: Setup) -> dict[Key, AgentTrial]:
    """The trials of the folder. Raises UsageError where they are those of another search."""
    if before is None:
        return {}
    folder.check_same(before, search_options(setup), "tiers", "horizon_s")
    try:
        trials = codec.decode(AgentsAnswer, before).trials
    except codec.Damaged as error:
        raise UsageError(f"'{folder.file}' is damaged ({error}); name another --out.") from None
    return {Key(tried.users, tried.seed, tried.span_s): tried for tried in trials}


def agents_at(load: float, seed: int) -> int:
    """Return how many agents a run has: of many seeds their mean is the load."""
    return max(1, math.floor(load + seed * GOLDEN % 1.0))


class AgentSearch(HorizonSearch):
    """A search under a virtual clock."""

    def objective(self) -> Slo:
        """Return the SLO by which trials are judged: with the implied bound on waiting, where it has none."""
        assert self.spec.horizon_s is not None
        self.alone_s = 1.0
        return self._objective(self.spec.horizon_s)[1]

    def _alone(self) -> Generator[list[TrialRequest], list[Trial], SearchResult | None]:
        """Run one agent: how many requests it sends, and whether the tier is met at all."""
        assert self.spec.horizon_s is not None
        self.horizon_s, self.settle_s, self.alone_s = self.spec.horizon_s, CUT * self.spec.horizon_s, 1.0
        goals, slo = self._objective(self.horizon_s)
        trials = yield from self._made(
            [self._request(seed, 1.0, self.horizon_s, goals, slo, None) for seed in self._fresh(FEWEST_SEEDS)]
        )
        self.pace_rps = sum(trial.requests for trial in trials) / sum(trial.system_s for trial in trials)
        return None if any(kept_all(trial.shares, goals) for trial in trials) else ONE_MISSES

    def _probe(self, rate_rps: float) -> Generator[list[TrialRequest], list[Trial], bool]:
        if rate_rps > MOST_AGENTS:
            raise SearchEnded(f"{max(self._sides):,.0f} agents still met it, and no more were tried.")
        return (yield from super()._probe(rate_rps))

    @property
    def _hardly(self) -> float:
        return 1.0

    def _below_all(self, rate_rps: float) -> SearchResult | str:  # noqa: ARG002  # it is less than one
        return ONE_MISSES

    def _overload(self) -> Steps:
        yield from ()

    @property
    def _stable(self) -> tuple[float | None, str | None]:
        """Nothing: in a closed loop no queue grows without end."""
        return None, None

    def _drawn(self, trials: Sequence[Trial]) -> np.ndarray:
        return np.zeros((len(trials), 0))

    @property
    def _enough(self) -> bool:
        best = self._best
        return super()._enough or (best is not None and math.exp(best.high) - math.exp(best.low) <= 1)


class AgentBlocks(Blocks):
    """A search on a wall clock: every trial has new prompts, because a server remembers those that it was sent."""

    def steps(self) -> SearchSteps:
        """Yield the trials to run, one by one: more and more agents until some miss the tier, then around there."""
        users, sides = int(self._spec.from_rps or 1), dict[bool, int]()
        while len(sides) < 2:
            trials = yield [self._block(users, 0.0)]
            if not trials:
                return self._found(SPENT)
            self._made += trials
            good = self._good(trials[0])
            sides[good] = users
            users = users * WALL_STEP if good else users // WALL_STEP
            if users < 1:
                return ONE_MISSES
            if users > MOST_AGENTS:
                return self._found(f"{sides[True]:,} agents still met it, and no more were tried.")
        return (yield from self._narrow())

    def _block(self, rate_rps: float, sd: float) -> TrialRequest:  # noqa: ARG002  # all last equally long
        return TrialRequest(self._key(max(1.0, round(rate_rps)), 0), self._spec.wanted)
