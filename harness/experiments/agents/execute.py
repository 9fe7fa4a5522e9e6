"""Runs a search for agents: simulated trials several at a time, real ones one after the other within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from harness import termination
from harness.api import WARM_UP, Slo
from harness.data import codec
from harness.data.codec import encode
from harness.data.folder import cleaned
from harness.data.host import versions
from harness.data.lists import number
from harness.errors import BackendError, Interrupted, NotValid, UsageError
from harness.experiments import pool, trial
from harness.experiments.agents.agents_json import AgentsAnswer, AgentTrial, TierAgents, TrialShare
from harness.experiments.agents.search import (
    WALL_TRIALS,
    Key,
    SearchOptions,
    Tier,
    conditions_of,
    estimate,
    next_keys,
)  # fmt: skip
from harness.experiments.folder import ExperimentFolder
from harness.metrics.measure import cached_share, first_last, metrics, succeeded
from harness.metrics.objective import JOINT, parse_slo, score
from harness.metrics.resources import Resources, resources
from harness.options import RunSpec
from harness.runner.plan import Plan, plan
from harness.runner.progress import QUIET, Display
from harness.spec import parse
from harness.validity.work_done import exceeded

TIERS = ("p95:ttft=5,p90:tpot=50ms", "p95:ttft=2,p90:tpot=20ms")
"""Of a first token within 5 s for 95% of requests and 20 tokens/s for nine tenths of them; 2 s and 50 tokens/s."""
WORKLOAD = "coding-agent"
HORIZON_S, BUDGET_S = 3600.0, 600.0
CUT, RAMP = 0.25, 0.1
"""Of the horizon, what is added before it and not counted; of both together, in which part the agents start."""
LATEST = 0.6
"""A trial counts from when all caches are warm, but at the latest from this part of it on."""
KIND = "agents"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all trials of one search share."""

    spec: RunSpec
    tiers: tuple[Tier, ...]
    slos: tuple[Slo, ...]
    options: SearchOptions
    horizon_s: float
    budget_s: float | None
    first: Plan
    takes: Resources
    max_requests: int | None = None


def set_up(
    spec: RunSpec, tiers: Sequence[str], options: SearchOptions, horizon_s: float | None, budget_s: float | None,
    max_requests: int | None = None,
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
    found = []
    for text, one in zip(tiers, slos, strict=True):
        if not one.bounds:
            raise UsageError(f"--slo '{text}' has no bound.")
        pooled = [bound for bound in one.bounds if metrics()[bound.metric].pooled]
        if pooled:
            raise UsageError(f"--slo '{pooled[0]!s}' is not of single requests; bound tpot instead.")
        found.append(Tier(text, conditions_of(text, spec.goal)))
    if spec.trace is not None:
        spec = replace(spec, turns=spec.turns or "think-only")
    first = plan(_of(spec, 1, options.first_seed, horizon_s or HORIZON_S))
    if not first.schedule.has_follow_ups:
        raise UsageError(f"'{spec.trace or spec.workload}' has no sessions of several requests, so no agents to count.")
    if budget_s is None and not first.virtual:
        budget_s = BUDGET_S
    if horizon_s is None:
        horizon_s = HORIZON_S if first.virtual else (budget_s or BUDGET_S) / (1 + CUT) / WALL_TRIALS
    options = replace(options, virtual=first.virtual)
    takes = resources(first.backend.describe())
    return Setup(spec, tuple(found), slos, options, horizon_s, budget_s, first, takes, max_requests)


def _of(spec: RunSpec, users: int, seed: int, horizon_s: float) -> RunSpec:
    whole_s = horizon_s * (1 + CUT)
    arrivals = parse(spec.arrivals or "closed")
    args = {"think": "0", "ramp": f"{RAMP * whole_s:.6g}s", **arrivals.args, "users": str(users), "steady": "on"}
    warmup = f"{CUT * horizon_s:.6g}s"
    return replace(
        spec, seed=seed, duration=whole_s, warmup=warmup, requests=None, arrivals=str(replace(arrivals, args=args))
    )


@dataclass(frozen=True, slots=True)
class Task:
    """One trial, to be simulated in any process."""

    setup_spec: RunSpec
    slos: tuple[Slo, ...]
    key: Key
    horizon_s: float

    @property
    def run(self) -> RunSpec:
        return _of(self.setup_spec, *self.key, self.horizon_s)


def simulated(task: Task) -> AgentTrial:
    """Make a trial under a virtual clock, in this process."""
    begun_s = time.monotonic()
    table = trial.simulate(task.run).table
    return measured(task, table, time.monotonic() - begun_s)


def measured(task: Task, table: pa.Table, wall_s: float) -> AgentTrial:
    """What a trial shows of every tier."""
    warm = table.filter(pc.fill_null(pc.equal(table["tag"], WARM_UP), False))
    warmed_s = np.nan_to_num(first_last(warm)[1], nan=np.inf)  # when each cache was warm
    cut_s = min(max(CUT * task.horizon_s, warmed_s.max(initial=0.0)), LATEST * (1 + CUT) * task.horizon_s)
    cut = table.filter(pa.array(number(table, "scheduled_s") >= cut_s))
    ok = cut.filter(pa.array(succeeded(cut)))
    ttft_s, tpot_s = metrics()["ttft"].of(ok), metrics()["tpot"].of(ok)
    tpot_s = tpot_s[np.isfinite(tpot_s) & (tpot_s > 0)]
    seconds = (1 + CUT) * task.horizon_s - cut_s
    shares = {share.text: share for one in task.slos for share in _shares(cut, one)}
    return AgentTrial(
        users=task.key.users,
        seed=task.key.seed,
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


def _shares(table: pa.Table, objective: Slo) -> Iterator[TrialShare]:
    """The share of each condition of a tier, with its standard deviation over sessions."""
    session = np.unique(table["session"].to_numpy(), return_inverse=True)[1]
    scored = score(table, objective)
    yield _share(JOINT, scored.met, session)
    for bound in scored.bounds:
        yield _share(str(bound.bound), bound.met[bound.applies], session[bound.applies])


def _share(text: str, met: npt.NDArray[np.bool_], session: npt.NDArray[np.int64]) -> TrialShare:
    of = len(met)
    sd = None
    if of:
        residual = np.bincount(session, met - met.mean())
        sessions = len(np.unique(session))
        sd = float(np.sqrt((residual**2).sum() * sessions / max(1, sessions - 1)) / of) if sessions > 1 else None
    return TrialShare(text=text, met=int(met.sum()), of=of, sd=sd)


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
    with pool.of(workers, pool_name, virtual=setup.first.virtual) as processes:
        if out is None:
            return _run(setup, None, [], processes, tell, display)
        folder = _folder(out)
        with folder.opened() as before:
            return _run(setup, out, _stored(folder, before, setup), processes, tell, display)


def _run(
    setup: Setup,
    out: Path | None,
    trials: list[AgentTrial],
    processes: pool.Pool,
    tell: Callable[[str], None],
    display: Display,
) -> AgentsAnswer:
    begun_s, interrupted = time.monotonic(), False
    options, invalid, doubtful = search_options(setup), list[str](), list[Key]()
    failed: BackendError | NotValid | None = None

    def save(state: str) -> AgentsAnswer:
        info = _answer(setup, options, trials, state, time.monotonic() - begun_s, invalid, failed)
        if out is not None:
            _folder(out).write(encode(info))
        return info

    save("running")
    try:
        while failed is None and (keys := next_keys(setup.tiers, trials, setup.options)):
            next_s = 0.0 if setup.first.virtual else setup.horizon_s * (1 + CUT)
            if setup.budget_s is not None and time.monotonic() - begun_s + next_s > setup.budget_s * 1.05:
                break
            if setup.max_requests is not None and (sent := _sent(setup, trials, keys)) > setup.max_requests:
                tell(f"The next trials would make it {sent:,.0f} requests; --max-requests is {setup.max_requests:,}.")
                break
            tasks = [Task(setup.spec, setup.slos, key, setup.horizon_s) for key in keys]
            try:
                for one in _made(setup, tasks, processes, out, tell, display):
                    trials.append(one)
                    tell(_line(one))
                    save("running")
            except NotValid as error:  # of a wall clock, where there is one trial at a time
                invalid.append(str(error))
                tell(f"{error} It is {'not repeated again' if keys == doubtful else 'repeated'}.")
                failed, doubtful = error if keys == doubtful else None, keys
    except KeyboardInterrupt:
        interrupted = True
    except BackendError as error:
        failed = error
        invalid.append(str(error))
    if failed is not None and not trials:
        raise failed
    if interrupted and not trials:
        raise Interrupted("interrupted before the first trial ended; rerun the command to start again.")
    return save("interrupted" if interrupted else "finished")


def _sent(setup: Setup, trials: Sequence[AgentTrial], keys: Sequence[Key]) -> float:
    """About how many requests these trials have sent, with those that were not observed, and the next ones will."""
    rates = [one.requests / one.seconds for one in trials]
    of_agent = max((rate / one.users for rate, one in zip(rates, trials, strict=True)), default=0.0)
    return (1 + CUT) * setup.horizon_s * (sum(rates) + of_agent * sum(key.users for key in keys))


def _made(
    setup: Setup,
    tasks: Sequence[Task],
    processes: pool.Pool,
    out: Path | None,
    tell: Callable[[str], None],
    display: Display,
) -> Iterator[AgentTrial]:
    if setup.first.virtual:
        return (one for _, one in processes.map(simulated, tasks))
    return (_real(task, out, tell, display) for task in tasks)


def _real(task: Task, out: Path | None, tell: Callable[[str], None], display: Display) -> AgentTrial:
    """One trial on a wall clock, a run like any other."""
    from harness.runner.run import execute

    begun_s = time.monotonic()
    name = f"{task.key.users}-agents-seed{task.key.seed}"
    path = None if out is None else out / "trials" / name
    shared = None if out is None else out / "probe.json"
    result = execute(task.run, out=path, force=True, say=tell, shared=shared, display=display)
    result.outcome.check()
    if result.outcome.error is not None:
        raise BackendError(result.outcome.error)
    if termination.received() or result.outcome.ended != "finished":
        raise KeyboardInterrupt
    of = f"The trial of {task.key.users} agents (seed {task.key.seed})"
    if (fault := exceeded(result.run.info)) is not None:
        raise BackendError(f"{of}: {fault}")
    verdict = result.run.info.verdict
    if not verdict.valid:
        raise NotValid(f"{of} is not valid: {' '.join(verdict.reasons)}")
    return measured(task, result.run.requests, time.monotonic() - begun_s)


def _line(one: AgentTrial) -> str:
    speed = "-" if one.speed_p10 is None else f"{one.speed_p10:.3g} tokens/s"
    ttft = "-" if one.ttft_p95_s is None else f"{one.ttft_p95_s:.3g} s"
    return f"{one.users} agents, seed {one.seed}: {one.requests:,} requests, TTFT p95 {ttft}, slowest tenth {speed}"


def _answer(
    setup: Setup, options: Mapping[str, Any], trials: Sequence[AgentTrial], state: str, wall_s: float,
    invalid: Sequence[str], failed: BackendError | NotValid | None,
) -> AgentsAnswer:  # fmt: skip
    over = state != "running"
    found = [_per(setup.takes, estimate(tier, trials, setup.options)) for tier in setup.tiers] if over else []
    if failed is not None:
        found = [structs.replace(one, why=str(failed)) if one.state == "unresolved" else one for one in found]
    states = {one.state for one in found}
    wide = any(one.state == "resolved" and not one.narrower_than(setup.options.tolerance) for one in found)
    return AgentsAnswer(
        **options,
        state=state,
        exit_code=(
            failed.exit_code
            if failed is not None
            else 1
            if states == {"unreachable"}
            else 5
            if "unresolved" in states or wide
            else 0
        ),
        answers=found,
        invalid=[*invalid],
        trials=sorted(trials, key=lambda one: (one.users, one.seed)),
        requests=sum(one.requests for one in trials),
        wall_s=wall_s,
    )


def _per(takes: Resources, one: TierAgents) -> TierAgents:
    """Agents over what serves them."""
    if not one.agents:
        return one
    return structs.replace(
        one,
        per_gpu=one.agents / takes.gpus if takes.gpus else None,
        per_kw=one.agents / takes.kw if takes.kw else None,
        usd_per_agent_hour=takes.usd_per_hour / one.agents if takes.usd_per_hour else None,
    )


def search_options(setup: Setup) -> dict[str, Any]:
    """The part of agents.json that is known before the first trial, without secrets of a server."""
    planned = setup.first
    clean = {
        "versions": versions(),
        "spec": setup.spec.options(),
        "workload": planned.loaded.name,
        "backend": dict(planned.backend.describe()),
    }
    return {
        **{name: cleaned(value, planned.redact) for name, value in clean.items()},
        "traffic": planned.traffic,
        "tiers": [tier.text for tier in setup.tiers],
        "goal": setup.spec.goal,
        "clock": "virtual" if planned.virtual else "wall",
        "horizon_s": setup.horizon_s,
        "tolerance": setup.options.tolerance,
        "gpus": setup.takes.gpus,
        "kw": setup.takes.kw,
        "usd_per_hour": setup.takes.usd_per_hour,
    }


def _folder(out: Path) -> ExperimentFolder:
    return ExperimentFolder(out, KIND, "search")


def _stored(folder: ExperimentFolder, before: Mapping[str, Any] | None, setup: Setup) -> list[AgentTrial]:
    """The trials of the folder. Raises UsageError where they are those of another search."""
    if before is None:
        return []
    folder.check_same(before, search_options(setup), "tiers", "horizon_s")
    try:
        return list(codec.decode(AgentsAnswer, before).trials)
    except codec.Damaged as error:
        raise UsageError(f"'{folder.file}' is damaged ({error}); name another --out.") from None
