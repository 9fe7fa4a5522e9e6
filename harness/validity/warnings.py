"""Warnings that the table alone does not show: answers cut off, trace rows left out."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Outcome, RunWarning, Slo
from harness.data.codec import inner
from harness.data.folder import Run
from harness.data.run_json import Workload
from harness.errors import UsageError
from harness.metrics.measure import metrics
from harness.metrics.objective import parse_slo
from harness.validity.checks import less_traffic
from harness.validity.rules import Rule, applying

BEFORE = "before the slice"
"""The reason for rows that --start leaves out: the user requested it, so there is no warning."""


LOOSE_S, LOOSE_WHOLE_S, LOOSE_TASK_S = 60.0, 1800.0, 86_400.0
"""A bound above this on the wait for one token, on another time of a request or on a task was probably meant in
milliseconds: no user waits a minute for a token, half an hour for an answer or a day for a task."""

TIGHT_S = 1e-4
"""A bound below this on the wait for one token has a unit too small: no server sends 10,000 tokens per second to one
user."""

LIVELOCK = 5
"""Preemptions of one request from which there is a warning; an admission rule that leaves room to grow needs 1 or 2."""


def run_warnings(run: Run, objective: Slo, outcome: Outcome | None) -> Iterator[RunWarning]:
    """Warnings from how a run ended, from its SLO, and from what `run.json` says of its workload and backend."""
    workload = run.info.workload
    less = less_traffic(bool(workload.recorded), is_closed(workload))
    doubts = workload.provenance.get("doubts")
    yield from doubtful(objective)
    yield from applying((
        _cut(run, outcome, less), *of_trace(workload.provenance),
        *(Rule(True, "trace-unit", str(doubt)) for doubt in (doubts if isinstance(doubts, list | tuple) else ())),
        _cut_tasks(run, objective), _not_shared(run), _preempted_again(run),
    ))  # fmt: skip


def is_closed(workload: Workload) -> bool:
    """Whether the workload of a run.json is a closed loop of users, whose rate cannot be set."""
    return (workload.arrivals or "").partition(":")[0] == "closed"


def doubtful(objective: Slo) -> Iterator[RunWarning]:
    """Bounds that were probably meant in another unit."""
    for bound in objective.bounds:
        metric, name = metrics()[bound.metric], bound.name
        most_s = LOOSE_S if metric.one_token else LOOSE_TASK_S if metric.name == "task" else LOOSE_WHOLE_S
        if bound.limit > most_s:
            remedy = f"write {name}={bound.limit:g}ms if that was meant"
            yield RunWarning("loose-bound", f"the bound {bound!s} is {bound.limit:g} s", remedy)
        elif metric.one_token and bound.limit < TIGHT_S:
            remedy = f"write {name}={1e6 * bound.limit:g}ms if that was meant"
            yield RunWarning("tight-bound", f"the bound {name}={1e6 * bound.limit:g}us is met by no server", remedy)


def doubtful_text(bounds: str) -> list[RunWarning]:
    """The same of an SLO as it is written; none of a text that is refused where it is used."""
    try:
        return list(doubtful(parse_slo(bounds)))
    except UsageError:
        return []


def of_trace(provenance: Mapping[str, Any]) -> Iterator[Rule]:
    """What lengths or arrivals tell about themselves, and rows of a trace that are no requests; those of arrivals stand
    one level deeper."""
    for facts in (provenance, inner(provenance, "arrivals")):
        reasons = {str(why): n for why, n in inner(facts, "dropped").items() if isinstance(n, int) and why != BEFORE}
        left_out, listed = sum(reasons.values()), ", ".join(f"{n:,} because {why}" for why, n in reasons.items())
        yield Rule(
            left_out, "dropped-rows",
            f"{left_out:,} of {facts.get('rows', left_out):,} rows of {facts.get('file', 'the trace')} are not sent: "
            f"{listed}",
            "failures of the recorded system are rightly left out; mend the file where it is something else",
        )  # fmt: skip


def _cut(run: Run, outcome: Outcome | None, less: str) -> Rule:
    waited = not run.info.virtual  # a simulation is never cut: requests without an end have no record
    count = outcome.cut if outcome is not None and outcome.ended == "finished" and waited else 0
    drain_s = run.info.spec["drain"] if count else 0.0
    return Rule(
        count, "cut",
        f"{count:,} requests had no end {drain_s:g} s after the last one had left and were given up; they miss the "
        "SLO, and the latencies leave them out", f"wait longer with --drain, or {less}",
    )  # fmt: skip


def _cut_tasks(run: Run, objective: Slo) -> Rule:
    """Sessions that are bound as a whole and were not sent as a whole."""
    cut, sessions = 0, run.requests["session"].drop_null().unique()
    if run.schedule is not None and any(bound.metric == "task" for bound in objective.bounds):
        missing = np.setdiff1d(run.schedule["id"].to_numpy(), run.requests["request_id"].to_numpy())
        unsent = run.schedule.filter(pc.is_in(run.schedule["id"], pa.array(missing)))["session"].drop_null().unique()
        cut = int(pc.sum(pc.is_in(sessions, unsent)).as_py() or 0)
    return Rule(
        cut, "cut-tasks",
        f"{cut:,} of {len(sessions):,} sessions were cut by the end of the run; the bound on task sees only what was "
        "sent of them, and finds them quicker than they are",
        "give each task a deadline (--sessions ...:deadline=30s), so that every task finishes",
    )  # fmt: skip


def _not_shared(run: Run) -> Rule:
    """Prompts that share their beginnings, on a system that computes each whole."""
    sharing = prompts = 0
    if run.schedule is not None and run.info.backend.get("prefix_cache") is False:
        prompts = len(run.schedule)
        sharing = int(pc.sum(pc.greater(pc.list_value_length(run.schedule["prefix_ids"]), 0)).as_py() or 0)
    return Rule(
        sharing, "no-prefix-cache",
        f"{sharing:,} of {prompts:,} prompts begin with blocks that others may share, and this system computes each "
        "whole",
        "read TTFT as that of a system without a prefix cache",
    )  # fmt: skip


def _preempted_again(run: Run) -> Rule:
    """Requests that were admitted and preempted over and over, so their work was lost each time."""
    preemptions = run.requests["preemptions"].drop_null()
    often = int(pc.sum(pc.greater_equal(preemptions, LIVELOCK)).as_py() or 0)
    return Rule(
        often, "livelock",
        f"{often:,} of {len(run.requests):,} requests were preempted {LIVELOCK} times or more, one of them "
        f"{pc.max(preemptions).as_py() or 0:,} times: they are admitted, preempted and admitted again",
        "admit fewer (admission=past-future of the backend, or a lower overcommit or watermark), or give the system "
        "more memory",
    )  # fmt: skip
