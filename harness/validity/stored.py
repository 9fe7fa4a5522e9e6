"""Stored runs are judged again when they are read: tables that were changed or damaged since prove nothing."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, structs

from harness.api import RunWarning
from harness.data.folder import Run
from harness.data.lists import number
from harness.data.run_json import Ending
from harness.data.schedule import digest
from harness.data.warmup_cut import kept
from harness.validity.checks import due_times_s, impossible, rows_of, sentences
from harness.validity.physics import CLOCK_S, RECORDS, which

_MEMO = "what cannot be true of the stored tables"

_REMEDY = "the files are not as the run wrote them: restore them, or run it again"


def rechecked(run: Run) -> Run:
    """The run, not valid where its tables cannot be true, or are not of the schedule that its run.json names.

    They are read once for a run, with all tokens; what was found at the end of the run is not repeated.
    """
    if _MEMO not in run.memo:
        run.memo[_MEMO] = _found(run)
    info, found = run.info, run.memo[_MEMO]
    new = [each for each in found if not any(text.startswith(each.message) for text in info.verdict.reasons)]
    if not new:
        return run
    reasons = [*info.verdict.reasons, *sentences(new)]
    verdict = structs.replace(info.verdict, valid=False, reasons=reasons, text=f"not valid: {' '.join(reasons)}")
    checks = info.checks if info.checks is UNSET else [
        structs.replace(check, state="failed", text=each.message, remedy=_REMEDY)
        if (each := next((each for each in new if each.code == check.check), None)) is not None
        else check
        for check in info.checks
    ]  # fmt: skip
    made = replace(run, info=info.change(verdict=verdict, checks=checks))
    made.memo[_MEMO] = found
    return made


def _found(run: Run) -> list[RunWarning]:
    """What is impossible, with the remedy for files that were sound when they were written."""
    info, schedule = run.info, run.schedule
    found: list[RunWarning] = []
    if schedule is not None and info.schedule.sha256 not in (None, sha256 := digest(schedule)):
        text = f"its hash is {sha256[:12]}, and {info.schedule.sha256[:12]} in run.json"
        found.append(RunWarning(RECORDS, f"schedule.parquet is not what the run was to send: {text}."))
        schedule = None
    ended = info.outcome.ended if isinstance(info.outcome, Ending) else None
    window_s = info.spec.get("duration")
    found += impossible(
        run.requests,
        schedule,
        interrupted=not run.complete or ended not in (None, "finished"),
        window_s=window_s if isinstance(window_s, int | float) else None,
        as_requested=run.http is None,
        whole=run.pieces(),
    )
    if schedule is not None:
        found += _not_as_scheduled(run.requests, schedule)
    return [replace(each, remedy=_REMEDY) for each in [*found, *_not_as_counted(run)]]


def _not_as_scheduled(requests: pa.Table, schedule: pa.Table) -> Iterator[RunWarning]:
    row, known = rows_of(requests, schedule)
    scheduled_s, planned_s = number(requests, "scheduled_s"), number(schedule, "scheduled_s")[row]
    waits = pc.list_value_length(schedule["after"]).to_numpy()[row] > 0  # for an answer, which may come later
    sent = ~np.isnan(number(requests, "sent_s"))
    early = scheduled_s < np.where(waits & sent, due_times_s(requests, schedule)[row] - CLOCK_S, planned_s)
    bad = ~known | early | (~waits & (scheduled_s > planned_s))
    for ours, theirs in (("prompt_tokens", "prompt_tokens"), ("output_tokens_asked", "output_tokens")):
        bad |= number(requests, ours) != number(schedule, theirs)[row]
    if bad.any():
        text = "Each record is that of a scheduled request (id, time, tokens of prompt and output)"
        yield RunWarning(RECORDS, f"{text}: not so for {which(requests, bad)}.")


def _not_as_counted(run: Run) -> Iterator[RunWarning]:
    counted = {status: count for status, count in run.info.summary.status.items() if count}
    ends = kept(run.requests.select(["scheduled_s", "status"]), run.info.warmup)["status"].value_counts().to_pylist()
    there = {row["values"]: row["counts"] for row in ends}
    if counted and counted != there:
        text, other = (
            ", ".join(f"{count:,} {status}" for status, count in sorted(each.items())) for each in (counted, there)
        )
        yield RunWarning(RECORDS, f"run.json counts {text}, and requests.parquet has {other or 'no request'}.")
