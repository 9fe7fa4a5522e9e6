"""How far a run of another tool can be trusted: the checks that its file allows, and its numbers by our definitions."""

from collections.abc import Iterator
from typing import Any

from harness.api import Caution, Slo
from harness.cautions import is_closed
from harness.folder import Run
from harness.missing import missing
from harness.summary import summarize
from harness.validity import OVERLOAD, QUEUE_GREW, Verdict, judge, sentences
from harness.within import within

_REMEDIES = {
    "few-requests": "give the tool more requests",
    "failed": "see the errors in the file",
    "late-client": "lower the rate that the tool was given, or use more workers",
    OVERLOAD: "lower the rate that the tool was given until the queue stops growing",
    QUEUE_GREW: "give the tool more requests, to see whether it does",
}
"""What to do about a caution, in words that suit a run that bench did not make."""

DETAILS = {
    "vllm": "run 'vllm bench serve' again with --save-result --save-detailed",
    "sglang": "run it again with --output-details",
    "aiperf": "name the folder that holds profile_export.jsonl too, or that file",
    "inference-perf": "let it write per_request_lifecycle_metrics.json (report.request_lifecycle.per_request: true)",
}
"""What makes a tool write a row per request."""


def judged(run: Run, objective: Slo) -> dict[str, Any]:
    """Summary, warnings and verdict as run.json holds them."""
    source = run.info["source"]
    summary = summarize(run.requests, objective)
    if source["per_request"]:
        verdict = _checked(run, summary["passed"])
    else:
        tool = source["tool"]
        message = f"The file holds what {tool} computed and no request of its own, so nothing can be checked or scored."
        verdict = Verdict(False, [Caution("aggregates", message, DETAILS.get(tool, ""))])
    vllm = summary.pop("vllm")
    if not source["per_request"]:
        summary |= _aggregated(run.info["aggregates"], summary)
    intervals = {}
    if len(run.requests) and "sent_s" not in missing(run.requests):  # else the order of its requests is not known
        found = within(run.requests, objective, overloaded=verdict.queue_grew, valid=verdict.valid)
        intervals = {"within": found}
    return {
        **(vllm if source["per_request"] else {}),
        "summary": summary,
        **intervals,
        "fidelity": {},
        "warnings": [{"code": c.code, "message": c.message, "remedy": c.remedy} for c in verdict.warnings],
        "verdict": {
            "valid": verdict.valid,
            "overloaded": verdict.overloaded,
            "queue_grew": verdict.queue_grew,
            "unresolved": False,
            "reasons": sentences(verdict.reasons),
            "text": verdict.text,
        },
        "outcome": None,
    }


def _checked(run: Run, met: bool | None) -> Verdict:
    lost = missing(run.requests)
    known = "scheduled_s" not in lost
    closed = is_closed(run.info["workload"])
    found = judge(run.requests, None, clock="wall" if known else "virtual", closed=closed, as_asked=False, met=met)
    kept = [
        Caution(c.code, c.message, _REMEDIES.get(c.code, c.remedy), c.facts)
        for c in found.warnings
        if "sent_s" not in lost or c.code not in (OVERLOAD, QUEUE_GREW)
    ]
    return Verdict(found.valid, found.reasons, [*_of_source(run), *kept])


def _of_source(run: Run) -> Iterator[Caution]:
    """What the file cannot tell, as a reader of the numbers must know it."""
    source = run.info["source"]
    lost = missing(run.requests)
    if "scheduled_s" in lost:
        yield Caution(
            "from-sending",
            f"the file of {source['tool']} does not tell when requests were due, so TTFT and E2E count from sending, "
            "and whatever a request waited for inside the client is not in them",
            "compare it only with files of the same tool",
        )
    for note in source["notes"]:
        yield Caution("imported", note)


def _aggregated(aggregates: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """The parts of a summary that the tool's own numbers can stand for."""
    completed, failed = aggregates.get("completed") or 0, aggregates.get("failed") or 0
    all_of = completed + failed
    return {
        "requests": all_of,
        "status": {**summary["status"], "ok": completed, "error": failed},
        "failed": failed / all_of if all_of else None,
        **{name: aggregates.get(name) for name in ("throughput_rps", "output_tps", "goodput_rps")},
        "metrics": {name: {"unit": "s", "n": completed, **values}
                    for name, values in aggregates.items() if isinstance(values, dict)},
    }  # fmt: skip
