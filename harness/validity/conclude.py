"""What a stored run amounts to: its summary, how faithfully it was sent, and whether it may be trusted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from harness.api import Caution, Slo
from harness.data.warmup_cut import Cut, kept
from harness.metrics import slo
from harness.metrics.summary import summarize
from harness.stats.arrivals import Law
from harness.stats.within_run import within
from harness.validity import client_warnings, fidelity, server_metrics, warmup, work_done
from harness.validity.checks import Verdict, checks, judge, sentences
from harness.validity.remote import is_remote, part, resolution
from harness.validity.warnings import cautions, is_closed
from harness.validity.work_done import OutputLengths, failures

if TYPE_CHECKING:
    from harness.api import Outcome
    from harness.data.folder import Run


def conclude(run: Run, objective: Slo, declared: Law | None, outcome: Outcome | None) -> dict[str, Any]:
    """The keys that finish run.json: summary, fidelity, warnings, verdict, and vLLM's keys beside them.

    The summary is of the requests after the warm-up, the verdict of all. `declared` is what the arrivals promised, None
    where the workload is gone. `outcome` is None for a run that was killed: then it counts as interrupted.
    """
    cut = warmup.find(run.requests, part(run.info, "spec").get("warmup"))
    measured, began = kept(run.requests, cut), {"warmup": dataclasses.asdict(cut)}
    run = dataclasses.replace(run, info={**run.info, **began})
    remote = _remote(run, measured, objective)
    run = dataclasses.replace(run, info={**run.info, **remote})
    workload = part(run.info, "workload")
    law = declared or Law(workload.get("arrivals_rps") or workload.get("rate_rps"), known=False)
    sent = {} if run.schedule is None else fidelity.fidelity(run.schedule, run.requests, law)
    lengths = work_done.measured(run)
    summary = summarize(measured, objective, start_s=cut.at_s)
    verdict, failed = _judged(run, objective, outcome, sent, cut, lengths, met=summary["passed"])
    vllm = summary.pop("vllm")
    ended = {} if outcome is None else dataclasses.asdict(outcome)
    ended.pop("crash", None)  # its traceback has a file of its own
    return {
        **vllm,
        **remote,
        **began,
        "summary": summary,
        "within": within(measured, objective, overloaded=verdict.queue_grew, valid=verdict.valid),
        "failures": failed,
        "output_lengths": lengths.as_json(),
        "checks": checks(run, verdict, sent, lengths),
        "fidelity": sent,
        "warnings": [{"code": c.code, "message": c.message, "remedy": c.remedy} for c in verdict.warnings],
        "verdict": {
            "valid": verdict.valid,
            "overloaded": verdict.overloaded,
            "queue_grew": verdict.queue_grew,
            "unresolved": bool(part(run.info, "resolution").get("undecided")),
            "reasons": sentences(verdict.reasons),
            "text": _text(verdict, outcome),
        },
        "outcome": ended or None,
    }


def _judged(
    run: Run,
    objective: Slo,
    outcome: Outcome | None,
    sent: dict[str, Any],
    cut: Cut,
    lengths: OutputLengths,
    *,
    met: bool | None,
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict with all that speaks against the run, and the requests that failed by the fault of the backend."""
    spec, workload, remote = part(run.info, "spec"), part(run.info, "workload"), is_remote(run)
    found = judge(
        run.requests,
        run.schedule,
        clock="virtual" if run.info.get("clock") == "virtual" else "wall",
        interrupted=outcome is None or outcome.ended != "finished",
        recorded=bool(workload.get("recorded")),
        closed=is_closed(workload),
        window_s=spec.get("duration"),
        as_asked=run.http is None,
        cut=cut,
        met=met,
    )
    failed = failures(run.requests, overloaded=found.queue_grew, at_most=spec.get("max-failed"))
    gone = (
        [] if outcome is None or outcome.error is None else [Caution("backend", f"The backend failed: {outcome.error}")]
    )
    reasons = [
        *gone,
        *found.reasons,
        *work_done.reasons(lengths, remote=run.http is not None),
        *(client_warnings.reasons(run, objective) if remote else []),
        *fidelity.reasons(sent),
    ]
    warnings = [
        *cautions(run, objective, outcome),
        *(client_warnings.cautions(run, objective, sent) if remote else []),
        *fidelity.cautions(sent),
        *work_done.cautions(lengths),
        *([Caution("max-failed", str(failed["said"]))] if failed["exceeded"] else []),
        *found.warnings,
    ]
    return Verdict(not reasons, reasons, warnings), failed


def _remote(run: Run, measured: pa.Table, objective: Slo) -> dict[str, Any]:
    """What only a run against a remote server has: the server's own view, and what the client's error leaves open."""
    found: dict[str, Any] = {}
    if is_remote(run):
        found["server"] = {**part(run.info, "server"), "compared": server_metrics.compared(run)}
    floor = run.info.get("floor")
    if floor is not None and (told := resolution(measured, objective, floor)) is not None:
        found["resolution"] = told
    return found


def completed(run: Run) -> Run:
    """A run with its conclusion: as stored, or made now for one that was killed or still goes on."""
    if "summary" in run.info and "verdict" in run.info:
        return run
    return dataclasses.replace(run, info={**run.info, **conclude(run, slo.restored(run.info), None, None)})


def _text(verdict: Verdict, outcome: Outcome | None) -> str:
    """The verdict as it is printed: of a run that was not let finish, that it was not."""
    if not verdict.valid or (outcome is not None and outcome.ended == "finished"):
        return verdict.text
    if outcome is None:
        return "not finished: the run was killed, or still goes on"
    how = "ended at once" if outcome.ended == "stopped" else "the sending was stopped"
    return f"interrupted: {how}, {outcome.not_sent:,} requests were not sent and {outcome.cut:,} were given up"
