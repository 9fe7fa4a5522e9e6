"""The trials of a search: what each was, how it fared, and the file that keeps them.

Simulated trials are made in memory; those under the wall clock are runs one after another, each with its folder.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness import termination, untrusted
from harness.api import RequestRecord, RunWarning, Slo
from harness.data.held_back import without_held_back
from harness.data.lists import number
from harness.data.records import since, to_table
from harness.data.run_json import RunInfo
from harness.data.storage import write_parquet
from harness.errors import BackendError, NothingDue, NotValid, Unresolved, UsageError
from harness.experiments import trial
from harness.experiments.capacity.conditions import Condition, Share, missed, shares, sure_misses, with_typical
from harness.experiments.trial import at_rate, without_steps
from harness.metrics.measure import succeeded
from harness.metrics.objective import JOINT, ObjectiveCounts, ShareKey, restored_key
from harness.options import RunSpec
from harness.runner.plan import plan
from harness.runner.progress import QUIET, Display
from harness.validity import steady_state
from harness.validity.checks import ANSWERS, LATENESS, decide_alike, failed_checks, from_sent
from harness.validity.client_warnings import HELD_BACK
from harness.validity.remote import of_held_back
from harness.validity.server_metrics import SERVER_LATE
from harness.validity.steady_state import overload, saturated
from harness.validity.work_done import failures

if TYPE_CHECKING:
    from harness.experiments.capacity.search_spec import TrialRequest
    from harness.runner.live import Live
    from harness.runner.plan import Plan
    from harness.runner.run import Result

Counts: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Shown = TypeVar("Shown")

TRIALS = pa.schema(
    [
        pa.field("seed", pa.int64()),
        pa.field("rate_rps", pa.float64()),
        pa.field("planned", pa.int64()),
        pa.field("requests", pa.int64()),
        pa.field("kept", pa.int64()),
        pa.field("cut_at_s", pa.float64()),
        pa.field("passed", pa.bool_()),
        pa.field("goal", pa.float64()),
        pa.field("overloaded", pa.bool_()),
        pa.field("e2e_s", pa.float64()),
        pa.field("system_s", pa.float64()),
        pa.field("wall_s", pa.float64()),
        pa.field("output_tokens", pa.float64()),
        pa.field("answered_rps", pa.float64()),
        pa.field("arrived_rps", pa.float64()),
        pa.field("dispersion", pa.float64()),
        pa.field("shares", pa.list_(pa.struct([("text", pa.string()), ("met", pa.int64()), ("of", pa.int64()),
                                               ("bits", pa.binary())]))),
        pa.field("late", pa.bool_()),
        pa.field("typical_s", pa.list_(pa.float64())),
        pa.field("drawn", pa.list_(pa.float64())),
        pa.field("open", pa.list_(pa.int64())),
        pa.field("blocks", pa.list_(pa.struct([("text", pa.string()), ("met", pa.list_(pa.int64())),
                                               ("of", pa.list_(pa.int64()))]))),
        pa.field("full", pa.string()),
    ]
)  # fmt: skip
"""A row per trial: `goal` is null for a whole run; else it is a probe, which tells `passed` and no attainment.

The columns from `drawn` on are null but in runs over a horizon: what was counted in each quarter of it."""

PART, FAR, CLUMP = 0.3, 0.12, 6.0
"""A block is ended when so much of it is over and attainment is so far below the goal, allowing for such clumps."""
QUARTERS = 4
APART_S = 1e5
"""Seconds between two arrivals of an unloaded system: longer than any request or session takes."""
LOOK = 50
"""Records of a simulated trial that are scored together: each by itself would take longer than simulating it."""
TICK_S = 0.25
OF_A_PART = 10
FEWEST = 12
"""Fewer requests or answers have no rate."""
SETTLE = 1.5
"""Times an answer takes, which are not counted at the start of a block; at its end it is once at most."""
AnyTask = TypeVar("AnyTask", bound="RunTask")
TRIALS_FOLDER = "trials"
AGAIN = 2
"""Times that a trial is made before it counts as not valid: a machine may be disturbed once."""


@dataclass(frozen=True, slots=True)
class Key:
    """What makes a trial: equal keys of one search give equal trials. A probe is ended when it is decided at `goal`."""

    seed: int
    rate_rps: float
    planned: int
    goal: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Quarters:
    """What a run over a horizon counted by quarter of it, in which requests were due: `met` and `of` by share, and the
    requests under way at the end of each; all (4,). `drawn` are the prompt and output tokens of all its requests,
    and `full` names what was full where a queue grew (see `saturated`)."""

    met: dict[ShareKey, Counts]
    of: dict[ShareKey, Counts]
    under_way: Counts
    drawn: tuple[float, float]
    full: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A trial that is over: `requests` were sent in `system_s` of the system's time.

    A probe knows a side and no more: its shares count for nothing. `e2e_s` is the mean time to the last token,
    `output_tokens` what the answers had of the requested tokens, times the mean that was requested of all.
    `answered_rps` is how fast answers ended, `arrived_rps` how fast the requests that count came (None of sessions that
    run to their end: the rate of their traffic is that of the key), and `dispersion` the variance of their number in
    short times over its mean.
    """

    key: Key
    requests: int
    kept: int
    cut_at_s: float
    passed: bool | None
    overloaded: bool
    e2e_s: float | None
    system_s: float
    wall_s: float
    shares: tuple[Share, ...]
    output_tokens: float | None = None
    answered_rps: float | None = None
    arrived_rps: float | None = None
    dispersion: float | None = None
    late: bool | None = None
    """Whether its requests left so late that it has no share, and a side only where it `passed` or not; None where that
    was not judged."""
    quarters: Quarters | None = None

    @property
    def undecided(self) -> bool:
        """Whether its requests left so late that it has no side."""
        return bool(self.late) and self.passed is None

    @property
    def more_s(self) -> float:
        """What it took beyond its traffic: to begin and to conclude a run, which is long on a busy machine."""
        return max(0.0, self.wall_s - self.system_s)

    @property
    def by_request(self) -> bool:
        """Whether single requests are scored: not where every bound is on a percentile."""
        return not self.shares[1:] or not all(share.is_percentile for share in self.shares[1:])

    def share(self, key: ShareKey) -> Share:
        """The share of that name."""
        return next(share for share in self.shares if share.key == key)


@dataclass(frozen=True, slots=True)
class Task:
    """A trial to make: of `spec`, whose own rate is `own_rps`, under `slo`; it is decided by `wanted`.

    `settle_s` is how long a block takes to fill the system, which is not counted, nor at its end the time of an answer.
    A run over a horizon lasts `horizon_s` after that, and all that arrives in it counts.
    `ends_s` is when it is cut at the latest, on the monotonic clock: what is under way then has missed.
    """

    spec: RunSpec
    own_rps: float
    slo: Slo
    key: Key
    wanted: tuple[Condition, ...] = ()
    settle_s: float | None = None
    ends_s: float = math.inf
    horizon_s: float | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"at {self.key.rate_rps:g} req/s (seed {self.key.seed})"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.key)

    def watch(self) -> Watch:
        """What ends it as soon as its side is certain."""
        return Watch(self)

    @property
    def run(self) -> RunSpec:
        """The spec of the one run that it takes."""
        spec = replace(self.spec, seed=self.key.seed, requests=self.key.planned, slo=str(self.slo) or None)
        if spec.calibrate is None:  # measuring the client takes longer than a step of the ramp
            spec = replace(spec, calibrate=0.0)
        if self.horizon_s is not None:
            begun_s = self.settle_s or 0.0
            warmup = f"{begun_s:.6g}s" if begun_s else "none"
            spec = replace(spec, requests=None, duration=begun_s + self.horizon_s, warmup=warmup)
            return at_rate(spec, self.key.rate_rps, self.own_rps)
        if self.key.rate_rps == 0:
            return one_after_the_other(spec)
        if self.settle_s is not None:
            spec = replace(spec, warmup=f"{self.settle_s:.6g}s")
        return at_rate(spec, self.key.rate_rps, self.own_rps)


def task_of(want: TrialRequest, spec: RunSpec, own_rps: float, slo: Slo, ends_s: float = math.inf) -> Task:
    """The task of a trial that a search needs."""
    return Task(
        spec, own_rps, want.slo or slo, want.key, want.conditions, want.settle_s, ends_s, want.horizon_s
    )  # fmt: skip


def one_after_the_other(spec: RunSpec) -> RunSpec:
    """The spec with one user, who waits for each answer."""
    return replace(spec, arrivals="closed:users=1,think_s=0", rate=None, warmup="none")


def simulated(task: Task) -> Trial:
    """Make a trial under a virtual clock, in this process."""
    begun_s = time.monotonic()
    if task.key.rate_rps == 0:
        return concluded(task, _alone(task), None, begun_s)
    watch = None if task.key.goal is None else Watch(task)
    backend: Mapping[str, Any] = {}
    try:
        tried = trial.simulate(task.run, watch)
        table, backend = tried.table, tried.plan.backend.describe()
    except NothingDue:
        if task.horizon_s is None:
            raise
        table = to_table([])  # at a low rate a run may have no request, and says nothing
    passed = None if watch is None else watch.passed
    if task.horizon_s is None:
        return concluded(task, table, passed, begun_s)
    return over_horizon(task, table, passed, begun_s, backend)


def _alone(task: Task) -> pa.Table:
    """Requests (or sessions) one by one, each long after the one before has been answered."""
    planned = plan(without_steps(replace(task.spec, requests=task.key.planned, duration=None)))
    table = planned.schedule.table
    waits = pc.list_value_length(table["after"]).to_numpy(zero_copy_only=False) > 0
    due_s = np.where(waits, number(table, "scheduled_s"), APART_S * np.cumsum(~waits))
    due_s = np.maximum.accumulate(due_s)  # a row stays below the one that it waits for
    place = table.schema.get_field_index("scheduled_s")
    spaced = replace(planned.schedule, table=table.set_column(place, "scheduled_s", pa.array(due_s)))
    return trial.run(replace(planned, schedule=spaced)).table


def over_horizon(
    task: Task, table: pa.Table, passed: bool | None, begun_s: float, backend: Mapping[str, Any] | None = None
) -> Trial:  # fmt: skip
    """The result of a run over a horizon: every request that arrived in it counts, however late its answer came.

    `backend` are the facts of what was simulated, where they are known. A probe that was ended early (`passed` is
    False) counts for a side alone.
    """
    assert task.horizon_s is not None
    key, settled_s = task.key, task.settle_s or 0.0
    quarter_s = task.horizon_s / QUARTERS
    due_s, end_s = number(table, "scheduled_s"), ended_s(table)
    quarter = np.floor((due_s - settled_s) / quarter_s).astype(int)
    quarter = np.minimum(quarter, QUARTERS - 1)  # the stages of a task that is completed after the end
    counts = ObjectiveCounts(task.slo)
    counts.add(table, quarter)
    met, total = ({k: np.pad(n, (0, QUARTERS - len(n))) for k, n in part.items()} for part in (counts.met, counts.of))
    ends = settled_s + quarter_s * np.arange(1, QUARTERS + 1)
    under_way = np.array([int((due_s < end).sum() - (end_s < end).sum()) for end in ends])
    drawn = float(number(table, "prompt_tokens").sum()), float(number(table, "output_tokens_asked").sum())
    e2e_s = (end_s - due_s)[np.isfinite(end_s)]
    full = saturated(table, float(ends[-1]), backend or {}) if under_way[-1] > under_way[1] else None
    sent = len(table)
    if passed is not None:  # those under way when the probe was ended were paid for too
        sent = min(key.planned, max(sent, int((due_s <= np.nanmax(end_s)).sum())))
    return Trial(
        key=key,
        requests=sent,
        kept=int(total[JOINT].sum()),
        cut_at_s=settled_s,
        passed=passed,
        overloaded=passed is None and overload(table) is not None,
        e2e_s=float(e2e_s.mean()) if len(e2e_s) else None,
        system_s=settled_s + task.horizon_s,
        wall_s=time.monotonic() - begun_s,
        shares=tuple(Share(name, int(met[name].sum()), int(total[name].sum())) for name in met),
        quarters=Quarters(met, total, under_way, drawn, full),
    )


def concluded(task: Task, table: pa.Table, passed: bool | None, begun_s: float) -> Trial:
    """The result of a trial; `passed` is what its watch found before the end."""
    table = table.sort_by("request_id")
    probe = task.key.goal is not None or task.key.rate_rps == 0
    cut = steady_state.find(table, "none" if probe else task.run.warmup)
    measured = since(table, cut.since_s)
    end_s = ended_s(table)
    e2e_s = end_s - number(table, "scheduled_s")
    e2e_s = e2e_s[np.isfinite(e2e_s)]
    if task.settle_s is not None and len(measured):
        due_s = number(measured, "scheduled_s")
        tail_s = min(task.settle_s / SETTLE, float(e2e_s.mean())) if len(e2e_s) else 0.0
        measured = measured.filter(pa.array(due_s <= task.key.planned / task.key.rate_rps - tail_s))
    # Note: follow-ups come long after the last session has begun, so more slowly than the traffic of that rate
    trails = task.settle_s is None and measured["session"].null_count < len(measured)
    trial_shares = shares(table if probe else measured, task.slo)
    if task.key.rate_rps == 0:
        trial_shares = with_typical(trial_shares, table, task.slo)
    early = passed is not None
    if not (probe or len(measured)):
        raise UsageError(
            f"--warmup {cut.rule} leaves nothing to measure of {len(table):,} requests at {task.key.rate_rps:g} req/s; "
            "cut less, or send more (--requests)."
        )
    # Note: in longer runs a growing queue grows further, so it counts even where all requests met the SLO
    grown = not early and overload(table) is not None
    if probe and passed is None:
        passed = not grown and not missed(trial_shares, task.wanted)
    sent = len(table)
    if early:  # those under way when the probe was ended were paid for too
        due_s = number(table, "scheduled_s")
        per_s = len(due_s) / max(float(due_s.max()), 1e-9)
        sent = min(task.key.planned, max(len(table), round(per_s * float(np.nanmax(end_s)))))
    ok, requested, generated = (
        succeeded(measured),
        number(measured, "output_tokens_asked"),
        number(measured, "output_tokens"),
    )
    requested_tokens = float(requested[ok].sum())
    return Trial(
        key=task.key,
        requests=sent,
        kept=len(measured),
        cut_at_s=cut.at_s,
        passed=passed,
        overloaded=grown,
        e2e_s=float(e2e_s.mean()) if len(e2e_s) else None,
        system_s=float(np.nanmax(end_s, initial=0.0)),
        wall_s=time.monotonic() - begun_s,
        shares=trial_shares,
        answered_rps=answered_rps(end_s[succeeded(table)]),
        arrived_rps=None if trails else arrived_rps(number(measured, "scheduled_s")),
        dispersion=dispersion(number(measured, "scheduled_s")),
        # requests that fail, more of them at a higher rate, do not change it
        output_tokens=float(generated[ok].sum() / requested_tokens * requested.mean()) if requested_tokens else None,
    )


class Watch:
    """Ends a trial as soon as its side is certain: a probe when so many have missed that it is no chance, a block when
    it is far below the goal. On a wall clock a request misses when its deadline passes, not when it ends. Shares of
    something else than requests are decided by the end of the trial alone. `cut`: the time was over first.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._deadline_s: Floats = np.full(task.key.planned, np.inf)
        self._seen: dict[ShareKey, tuple[int, int]] = {}
        self._late = 0
        self._new: list[RequestRecord] = []
        # before the run begins: scipy takes a second to load, and no tick may wait for it
        self._may_miss = {
            c.key: sure_misses(c.goal, task.key.planned) - 1 for c in task.wanted if task.key.goal is not None
        }
        self._over = Event()
        self.passed: bool | None = None
        self.cut = False

    @property
    def ended_run(self) -> bool:
        """Whether it ended the trial before its end."""
        return self.passed is not None or self.cut

    def begin(self, planned: Plan, live: Live) -> None:
        """See several times a second which requests are too late, and whether the time is over."""
        self._deadline_s = deadlines(planned.schedule.table, self._task.slo)

        def look() -> None:
            while not self._over.wait(TICK_S):
                if time.monotonic() > self._task.ends_s:
                    self.cut = True
                    live.stop(at_once=True)
                elif live.epoch_s is not None and self.tick(live.elapsed_s()):
                    live.stop()

        Thread(target=look, daemon=True).start()

    def end(self) -> None:
        """The run is over."""
        self._over.set()

    def __call__(self, record: RequestRecord) -> bool:
        """Take a record; True when the rest would change nothing."""
        self._new.append(record)
        if len(self._new) < LOOK:
            return self.passed is not None
        new, self._new = self._new, []
        return self.take(new)

    def take(self, records: Sequence[RequestRecord]) -> bool:
        """Take records; True when the rest would change nothing."""
        for record in records:
            if record.request_id < len(self._deadline_s):
                self._deadline_s[record.request_id] = np.inf
        for share in shares(to_table(records), self._task.slo):
            met, total = self._seen.get(share.key, (0, 0))
            if share.mask is not None:
                self._seen[share.key] = met + share.met, total + share.of
        return self._decided()

    def tick(self, now_s: float) -> bool:
        """See which requests under way are too late by now; True when the rest would change nothing."""
        self._late = int((self._deadline_s < now_s).sum())
        return self._decided()

    def _decided(self) -> bool:
        planned = self._task.key.planned
        for condition in self._task.wanted if self.passed is None else ():
            met, total = self._seen.get(condition.key, (0, 0))
            late = self._late if condition.key == JOINT else 0
            ended, may_miss = total + late, float(self._may_miss.get(condition.key, 0))
            if self._task.key.goal is None:  # a block has to be far below the goal, and a good part of it over
                if ended < PART * planned:
                    continue
                spread = math.sqrt(CLUMP * condition.goal * (1 - condition.goal) * ended)
                may_miss = (1 - condition.goal + FAR) * ended + 4 * spread
            if total - met + late > may_miss:
                self.passed = False
        return self.passed is not None


def answered_rps(end_s: Floats) -> float | None:
    """Answers per second, from when a quarter of them were over until three quarters were: neither while the server
    fills, nor while the last ones are awaited."""
    if len(end_s) < FEWEST:
        return None
    first_s, last_s = np.quantile(end_s, (0.25, 0.75))
    return float(len(end_s) / 2 / (last_s - first_s)) if last_s > first_s else None


def arrived_rps(due_s: Floats) -> float | None:
    """Requests per second, from the first to the last."""
    span_s = float(np.ptp(due_s)) if len(due_s) >= FEWEST else 0.0
    return (len(due_s) - 1) / span_s if span_s > 0 else None


def dispersion(due_s: Floats) -> float | None:
    """The variance of how many requests come over its mean, in parts of the time of so many requests each."""
    parts = len(due_s) // OF_A_PART
    if parts < FEWEST:
        return None
    counts = np.histogram(due_s, parts)[0]
    return float(counts.var(ddof=1) / counts.mean())


def deadlines(schedule: pa.Table, slo: Slo) -> Floats:
    """(requests,) when each request has missed a bound, however it ends, in seconds of the run; infinite where only its
    end tells: under a bound on TTFT alone, and of follow-ups, which come when an answer brings them about."""
    latest_s = np.full(len(schedule), np.inf)
    limits = {bound.metric: bound.limit for bound in slo.bounds if bound.percentile is None and bound.tag is None}
    due_s = number(schedule, "scheduled_s")
    if "e2e" in limits:
        latest_s = due_s + limits["e2e"]
    if "ttft" in limits and "tpot" in limits:
        tokens = np.maximum(1, number(schedule, "output_tokens"))
        latest_s = np.minimum(latest_s, due_s + limits["ttft"] + limits["tpot"] * (tokens - 1))
    latest_s[pc.list_value_length(schedule["after"]).to_numpy(zero_copy_only=False) > 0] = np.inf
    return latest_s


def ended_s(table: pa.Table) -> np.ndarray:
    """(requests,) when each request ended: its last token, else when it failed, in seconds of the run."""
    from harness.metrics.measure import first_last

    last_s = first_last(table)[1]
    return np.where(np.isnan(last_s), number(table, "ended_s"), last_s)


class Ledger:
    """Every trial of a search, on disk where there is a folder: what is in it is never made again."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tried: dict[Key, Trial] = {}
        if path is not None and path.exists():
            self._keep(_read(path))

    def __repr__(self) -> str:
        return f"<Ledger {len(self)} trials, {self.requests:,} requests>"

    def __iter__(self) -> Iterator[Trial]:
        yield from self._tried.values()

    def __len__(self) -> int:
        return len(self._tried)

    def get(self, key: Key) -> Trial | None:
        """The trial of that key, where it was made."""
        return self._tried.get(key)

    def add(self, *tried: Trial) -> None:
        """Take trials; they are on disk when this returns."""
        self._keep(tried)
        if self._path is not None:
            write_parquet(self._path, TRIALS, self.table().to_batches())

    def _keep(self, tried: Iterable[Trial]) -> None:
        self._tried.update((trial.key, trial) for trial in tried)

    @property
    def whole(self) -> list[Trial]:
        """The trials that ran to their end, by rate and seed."""
        complete = [tried for tried in self if tried.key.goal is None and not tried.late]
        return sorted(complete, key=lambda tried: (tried.key.rate_rps, tried.key.seed))

    @property
    def probes(self) -> list[Trial]:
        """The probes, in the order in which they were made."""
        return [tried for tried in self if tried.key.goal is not None]

    @property
    def requests(self) -> int:
        """Requests sent in all."""
        return sum(tried.requests for tried in self)

    def table(self) -> pa.Table:
        """The rows of trials.parquet."""
        return pa.Table.from_pylist([_row(tried) for tried in self], TRIALS)


def _row(tried: Trial) -> dict[str, object]:
    key, quarters = tried.key, tried.quarters
    packed = [
        {
            "text": str(s.key),
            "met": s.met,
            "of": s.of,
            "bits": None if s.mask is None else np.packbits(s.mask).tobytes(),
        }
        for s in tried.shares
    ]
    names = ("requests", "kept", "cut_at_s", "passed", "overloaded", "e2e_s", "system_s", "wall_s", "output_tokens",
             "answered_rps", "arrived_rps", "dispersion", "late")  # fmt: skip
    key_fields = {"seed": key.seed, "rate_rps": key.rate_rps, "planned": key.planned, "goal": key.goal}
    row: dict[str, object] = {
        **key_fields,
        **{name: getattr(tried, name) for name in names},
        "shares": packed,
        "typical_s": [s.typical_s for s in tried.shares],
    }
    if quarters is not None:
        met, total = quarters.met, quarters.of
        row |= {"drawn": list(quarters.drawn), "open": quarters.under_way.tolist(), "full": quarters.full}
        row |= {"blocks": [{"text": str(k), "met": met[k].tolist(), "of": total[k].tolist()} for k in met]}
    return row


def _read(path: Path) -> Iterable[Trial]:
    with untrusted.readable(f"'{path}'"):
        rows = untrusted.read_parquet(path).select(TRIALS.names).cast(TRIALS).to_pylist()
    for row in rows:
        key = Key(*(row.pop(name) for name in ("seed", "rate_rps", "planned", "goal")))
        trial_shares = []
        packed, typical_s = row.pop("shares"), row.pop("typical_s")
        for share, value_s in zip(packed, typical_s or [None] * len(packed), strict=True):
            bits, total = share["bits"], int(share["of"])
            mask = None if bits is None else np.unpackbits(np.frombuffer(bits, np.uint8), count=total).astype(bool)
            trial_shares.append(Share(restored_key(share["text"]), int(share["met"]), total, mask, value_s))
        drawn, under_way, blocks, full = (row.pop(name) for name in ("drawn", "open", "blocks", "full"))
        quarters = None
        if drawn is not None:
            met_of = [{restored_key(b["text"]): np.array(b[part]) for b in blocks} for part in ("met", "of")]
            quarters = Quarters(met_of[0], met_of[1], np.array(under_way), tuple(drawn), full)
        yield Trial(key=key, shares=tuple(trial_shares), quarters=quarters, **row)


class RunTask(Protocol):
    """A trial that is a run: its spec, what messages call it, and the name of its folder."""

    @property
    def run(self) -> RunSpec: ...

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> str: ...

    def watch(self) -> Watch | None:
        """What ends it as soon as its side is certain."""
        ...


class Runs:
    """Makes trials as runs below `path`; notes of a run go to `say`; `shared` and `display` are as of `execute`."""

    def __init__(
        self, path: Path, say: Callable[[str], None], shared: Path | None = None, display: Display = QUIET
    ) -> None:
        self._path = path
        self._shared = shared
        self._display = display
        self._say = say
        self.invalid: list[str] = []
        """Why each trial that was thrown away is not valid: such a trial decides nothing."""
        self.server_late: dict[float, RunWarning] = {}
        """By rate, that the server's own process was late."""

    def __repr__(self) -> str:
        return f"<Runs in {self._path}>"

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Trial]:
        """Each when it is over; one whose requests left too late to tell a side is marked as `late`. Raises as `each`,
        and Unresolved where the stream is held back."""
        return (tried for _, tried in self.each(tasks, self._trial))

    def each(
        self, tasks: Iterable[AnyTask], shown: Callable[[AnyTask, Result, Watch | None, float], Shown | None]
    ) -> Iterator[tuple[AnyTask, Shown]]:
        """Each task with what is `shown` by its run, its watch and when it began; None: it is not valid, and made once
        more. Raises BackendError, and NotValid for a trial that proves nothing."""
        for task in tasks:
            yield task, self._valid(task, shown)
            if termination.received():
                raise KeyboardInterrupt

    def _valid(self, task: AnyTask, shown: Callable[[AnyTask, Result, Watch | None, float], Shown | None]) -> Shown:
        for attempt in range(AGAIN):
            begun_s, watch = time.monotonic(), task.watch()
            try:
                result = self._run(task, watch)
            finally:
                if watch is not None:
                    watch.end()
            result.outcome.check()
            if result.outcome.error is not None:
                raise BackendError(result.outcome.error)
            if result.outcome.ended != "finished" and (watch is None or not watch.ended_run):
                raise KeyboardInterrupt
            if (tried := shown(task, result, watch, begun_s)) is not None:
                return tried
            reasons = " ".join(result.run.info.verdict.reasons)
            self.invalid.append(f"{task.name}: {reasons}")
            if attempt == 0:
                self._say(f"the trial {task.name} is not valid, repeated: {reasons}")
                if termination.received():
                    raise KeyboardInterrupt
        raise NotValid(f"The trial {task.name} is not valid, twice: {reasons} See '{result.run.path}'.")

    def _trial(self, task: Task, result: Result, watch: Watch | None, begun_s: float) -> Trial | None:
        """What a run shows of a rate; None where it is not valid."""
        assert watch is not None
        info = result.run.info
        if (fault := _fault(task, result)) is not None:
            raise BackendError(f"The trial {task.name}: {fault}")
        if (held := info.warning(HELD_BACK)) is not None and info.resolution.unresolved:
            answers = of_held_back(result.run)
            if answers is None or answers.all():  # single ones are held back by a busy machine too
                raise Unresolved(f"No rate can be judged: {held.message}. Remedy: {held.remedy}.")
        if (late := info.warning(SERVER_LATE)) is not None:
            self.server_late[task.key.rate_rps] = RunWarning(SERVER_LATE, str(late.message), str(late.remedy))
        failed = _failed(info, ended_early=watch.ended_run)
        if not failed <= {LATENESS}:
            return None
        return _scored(task, result.run.requests, watch.passed, begun_s, late=LATENESS in failed)

    def _run(self, task: RunTask, watch: Watch | None) -> Result:
        from harness.runner.run import execute

        return execute(
            task.run,
            out=self._path / TRIALS_FOLDER / task.folder,
            force=True,
            say=self._say,
            watch=watch,
            shared=self._shared,
            display=self._display,
        )


def _failed(info: RunInfo, *, ended_early: bool) -> set[str]:
    """What a run that is not valid failed. Of a trial that was ended early the answers may all be outstanding."""
    if info.verdict.valid:
        return set()
    return (failed_checks(info) or {"verdict"}) - ({ANSWERS} if ended_early else set())


def _scored(task: Task, requests: pa.Table, early: bool | None, begun_s: float, *, late: bool) -> Trial:
    """The result of a run. Of requests that left `late`, or were held back, it is what both ways of counting say."""
    tried = replace(concluded(task, requests, early, begun_s), late=False)
    unheld = without_held_back(requests)
    if not late and unheld is requests:
        return tried
    best = from_sent(unheld) if late else unheld  # the system was no better than this, and no worse than `requests`
    scores = _sides(task, early, requests), _sides(task, early, best)
    if decide_alike(*scores):
        return tried
    sides = {all(side for side, _ in score) for score in scores}
    side = sides.pop() if len(sides) == 1 else None
    if side is False:  # the fewest misses that it may have
        tried = concluded(task, best, early, begun_s)
    return replace(tried, late=True, passed=side)


def _sides(task: Task, early: bool | None, table: pa.Table) -> Sequence[tuple[bool, float]]:
    """The side of each condition, and its share where that counts: a probe tells a side alone."""
    probe = task.key.goal is not None or task.key.rate_rps == 0
    tried = concluded(task, table, None if probe else early, 0.0)
    by_condition = [(condition, tried.share(condition.key)) for condition in task.wanted]
    if probe:
        return [(bool(tried.passed) and not missed([share], [c]), 0.0) for c, share in by_condition]
    return [(share.met >= c.goal * share.of, share.met / max(1, share.of)) for c, share in by_condition]


def _fault(task: Task, result: Result) -> str | None:
    """The error of a backend that failed, None for one that is overloaded: then a search would find no capacity.

    A probe may lie far above the capacity, where load alone makes requests wait too long.
    """
    probe = task.key.goal is not None
    overloaded = probe or bool(result.run.info.verdict.queue_grew)
    failed = failures(result.run.requests, task.spec.backend, overloaded=overloaded, at_most=task.spec.max_failed)
    few = failed.requests <= failed.at_most * task.key.planned  # of a probe that was ended only some are there
    return None if few else str(failed.text)


def folder_name(key: Key) -> str:
    """A name that a person can read: `4.2rps-seed3-660`, `4.2rps-seed3-12-probe90`."""
    probe = "" if key.goal is None else f"-probe{100 * key.goal:g}"
    return f"{key.rate_rps:g}rps-seed{key.seed}-{key.planned}{probe}"
