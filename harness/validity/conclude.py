"""The conclusion of a stored run: its summary, how faithfully it was sent, and its verdict."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Outcome, RunTables, RunWarning, SentPrompt, Slo
from harness.data import large, run_json
from harness.data.codec import from_facts
from harness.data.folder import Run
from harness.data.lists import number
from harness.data.run_json import Ending, Failures, Fidelity, OutputLengths, RunInfo, Warned
from harness.metrics import stages
from harness.metrics.objective import Pooled, Seen, restored_slo, score
from harness.metrics.resources import limits_w, sides_of
from harness.metrics.summary import of_run, percentiles_of, served, summarize
from harness.stats.arrivals import Law
from harness.stats.within_run import within
from harness.validity import client_warnings, fidelity, scenario, server_metrics, steady_state, step_times, work_done
from harness.validity.checks import FAILED, checks, judge, late_steps
from harness.validity.physics import Laws, rechecked
from harness.validity.remote import is_remote, resolution
from harness.validity.rules import Verdict, sentences
from harness.validity.warnings import is_closed, run_warnings
from harness.validity.work_done import failures


def conclude(run: Run, objective: Slo, declared: Law | None, outcome: Outcome | None) -> RunInfo:
    """The finished run.json: summary, fidelity, warnings, verdict, and the keys of vLLM's result file.

    The summary is of the requests after the warm-up, the verdict of all. `declared` is what the arrivals promised, None
    where the workload is gone. `outcome` is None for a run that was killed: then it counts as interrupted.
    """
    rule = run.info.spec.get("warmup")
    cut = steady_state.find(run.requests, None if rule is None else str(rule))
    run = dataclasses.replace(run, info=run.info.change(warmup=cut))
    part = large.measured(run)
    measured = part.requests
    seen = Seen(measured) if part.whole is None else Seen(measured, part.pieces, part.aggregate(Pooled).counted)
    scored = score(measured, objective, seen)
    percentiles = percentiles_of(run.info.spec)
    summary = summarize(measured, objective, seen=seen, scored=scored, percentiles=percentiles)
    summary = msgspec.structs.replace(summary, run_metrics=of_run(_tables(part, run)))
    by_stage = stages.summed(part, seen, scored, server_metrics.queue_shares)
    compared = step_times.of_backend(run.info.backend)
    info = run.info.change(summary=summary, stages=by_stage, step_times=compared)
    if is_remote(run):
        info = info.change(server=msgspec.structs.replace(info.server, compared=server_metrics.compared(run)))
    if (resolved := resolution(seen, objective, info.floor)) is not None:
        info = info.change(resolution=resolved)
    run = dataclasses.replace(run, info=info)
    law = declared or Law(info.workload.arrivals_rps or info.workload.rate_rps, known=False)
    recorded = bool(info.workload.recorded)
    sent = Fidelity()
    if run.schedule is not None:
        sent = fidelity.fidelity(run.schedule, run.requests, law, recorded=recorded)
    lengths = work_done.measured(run)
    # the traceback of a crash has its own file
    ending = None if outcome is None else from_facts(Ending, dataclasses.asdict(outcome))
    verdict, failed = _judged(run, objective, outcome, sent, lengths, met=summary.passed)
    return info.change(
        **served(measured, cut.at_s, seen=seen),
        within=within(
            measured,
            objective,
            overloaded=verdict.queue_grew,
            valid=verdict.valid,
            bursts=law.has_bursts or sent.follow_ups is not None,
            scored=scored,
        ),
        failures=failed,
        output_lengths=lengths,
        checks=checks(run, verdict, sent, lengths),
        fidelity=sent,
        warnings=warned(verdict.warnings),
        verdict=stored(verdict, _text(verdict, outcome), unresolved=info.resolution.undecided),
        outcome=ending,
    )


def _tables(measured: Run, run: Run) -> RunTables:
    """What its own metrics see of a run without the requests of its warm-up, of which they see the prompts too."""
    since_s, backend = measured.info.warmup.since_s or 0.0, measured.info.backend

    def steps(*columns: str) -> Iterator[pa.Table]:
        pieces = measured.step_pieces(tuple(dict.fromkeys((*columns, "start_s"))) if columns else None)
        return (piece.filter(pc.greater_equal(piece["start_s"], since_s)) for piece in pieces)

    def prompts() -> Iterator[SentPrompt]:
        if run.schedule is None or not len((prefix_ids := run.schedule["prefix_ids"].combine_chunks()).values):
            return
        sent_s, numbers = number(run.requests, "sent_s"), run.requests["request_id"].to_numpy()
        tokens, answers = (run.requests[name].to_numpy() for name in ("prompt_tokens", "output_tokens"))
        counted = np.isin(numbers, measured.requests["request_id"].to_numpy())
        sizes = run.schedule["prefix_block_tokens"].to_numpy()
        starts, ids = prefix_ids.offsets.to_numpy(), prefix_ids.values.to_numpy()
        for row in np.argsort(sent_s, kind="stable").tolist():
            if np.isfinite(sent_s[row]):
                index = numbers[row]
                blocks = ids[starts[index] : starts[index + 1]]
                lengths = int(sizes[index]), int(tokens[row]), int(answers[row])
                yield SentPrompt(float(sent_s[row]), blocks, *lengths, bool(counted[row]))

    tiers: Any = backend.get("tiers", ())
    return RunTables(measured.requests, steps, measured.http, since_s, _step_w(backend), prompts, tiers)


def _step_w(backend: Mapping[str, Any]) -> list[float]:
    """Limits of the power of the GPUs that a step keeps busy, by replica: one stage of a pipeline at a time."""
    step_w: list[float] = []
    for side in sides_of(backend):
        limits, replicas, stages = limits_w(side), side.get("replicas"), side.get("pp")
        if limits is None or not isinstance(replicas, int) or not isinstance(stages, int) or min(replicas, stages) < 1:
            return []
        step_w += [(limits.own / stages + limits.experts) / replicas] * replicas
    return step_w


def warned(warnings: Iterable[RunWarning]) -> list[Warned]:
    """Warnings as run.json lists them."""
    return [Warned(code=c.code, message=c.message, remedy=c.remedy) for c in warnings]


def stored(verdict: Verdict, text: str, *, unresolved: bool = False) -> run_json.Verdict:
    """The verdict as run.json holds it, in words."""
    return run_json.Verdict(
        valid=verdict.valid,
        overloaded=verdict.overloaded,
        queue_grew=verdict.queue_grew,
        unresolved=unresolved,
        reasons=sentences(verdict.reasons),
        text=text,
    )


def _judged(
    run: Run,
    objective: Slo,
    outcome: Outcome | None,
    sent: Fidelity,
    lengths: OutputLengths,
    *,
    met: bool | None,
) -> tuple[Verdict, Failures]:
    """The verdict with all reasons and warnings, and the requests that failed because of the backend."""
    spec: dict[str, Any] = run.info.spec  # as RunSpec has checked it
    workload, remote = run.info.workload, is_remote(run)
    judged = judge(
        run.requests,
        run.schedule,
        clock="virtual" if run.info.virtual else "wall",
        interrupted=outcome is None or outcome.ended != "finished",
        recorded=bool(workload.recorded),
        closed=is_closed(workload),
        window_s=spec.get("duration"),
        as_requested=run.http is None,
        cut=run.info.warmup,
        met=met,
        laws=run.aggregate(Laws),
    )
    backend, at_most = spec.get("backend", "sim"), spec.get("max-failed")
    failed = failures(run.requests, backend, overloaded=judged.queue_grew, at_most=at_most)
    error = None if outcome is None else outcome.error
    internal = outcome is not None and (outcome.crash is not None or outcome.ended == "stopped")
    reasons = [
        *([] if error is None else [RunWarning("backend", error if internal else f"The backend failed: {error}")]),
        *judged.reasons,
        *work_done.too_long(
            run.requests,
            "output_tokens_asked",
            run.info.backend,
            recorded=bool(workload.recorded),
            virtual=run.info.virtual,
        ),
        *work_done.reasons(lengths, remote=run.http is not None),
        *work_done.refused(run),
        *(client_warnings.reasons(run, objective) if remote else []),
        *fidelity.reasons(sent),
        *late_steps(run.info.backend),
    ]
    warnings = [
        *run_warnings(run, objective, outcome),
        *(client_warnings.warnings(run, objective, sent) if remote else []),
        *scenario.warnings(run.info.spec, run.info.backend),
        *fidelity.warnings(sent),
        *fidelity.short_of(sent, None if workload.recorded else workload.rate_rps),
        *work_done.warnings(lengths),
        *([RunWarning("max-failed", failed.text)] if failed.text is not None else []),
        *(warning for warning in judged.warnings if failed.text is None or warning.code != FAILED),
    ]
    return Verdict(not reasons, reasons, warnings), failed


def completed(run: Run) -> Run:
    """A run with its conclusion, as stored or, for one that was killed, made now; its tables are judged again."""
    if not run.info.concluded:
        run = dataclasses.replace(run, info=conclude(run, restored_slo(run.info), None, None))
    return run if run.info.source else rechecked(run)


def _text(verdict: Verdict, outcome: Outcome | None) -> str:
    """The verdict as printed; a run that was interrupted says so."""
    if not verdict.valid or (outcome is not None and outcome.ended == "finished"):
        return verdict.text
    if outcome is None:
        return "not finished: the run was killed, or still goes on"
    how = "ended at once" if outcome.ended == "stopped" else "the sending was stopped"
    return f"interrupted: {how}, {outcome.not_sent:,} requests were not sent and {outcome.cut:,} were given up"
