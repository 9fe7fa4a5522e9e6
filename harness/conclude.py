"""What a stored run amounts to: its summary, how faithfully it was sent, and whether it may be trusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from harness import slo
from harness.api import Caution, Slo
from harness.fidelity import GapCdf, Law, fidelity
from harness.summary import summarize
from harness.validity import judge, less_traffic

if TYPE_CHECKING:
    from harness.drive import Outcome
    from harness.folder import Run


def conclude(run: Run, objective: Slo, gap_cdf: GapCdf | None, outcome: Outcome | None) -> dict[str, Any]:
    """The keys that finish run.json: summary, fidelity, warnings, verdict, and vLLM's keys beside them.

    `gap_cdf` is the law of the gaps, where the workload has one that is known. `outcome` is None for a run that was
    killed: then it counts as interrupted.
    """
    workload = run.info.get("workload") or {}
    recorded = bool(workload.get("recorded"))
    law = Law(workload.get("rate_rps"), gap_cdf)
    interrupted = outcome is None or outcome.ended != "finished"
    clock: Literal["wall", "virtual"] = "virtual" if run.info.get("clock") == "virtual" else "wall"
    verdict = judge(run.requests, run.schedule, clock=clock, interrupted=interrupted, recorded=recorded)
    if outcome is not None and outcome.error is not None:
        reason = f"The backend failed: {outcome.error}"
        verdict = dataclasses.replace(verdict, valid=False, reasons=[reason, *verdict.reasons])
    cautions = [*_cut(outcome, run, recorded=recorded), *verdict.warnings]
    summary = summarize(run.requests, objective)
    vllm = summary.pop("vllm")
    return {
        **vllm,
        "summary": summary,
        "fidelity": fidelity(run.schedule, run.requests, law) if run.schedule is not None else {},
        "warnings": [{"code": c.code, "message": c.message, "remedy": c.remedy} for c in cautions],
        "verdict": {
            "valid": verdict.valid,
            "overloaded": verdict.overloaded,
            "reasons": list(verdict.reasons),
            "text": verdict.text,
        },
        "outcome": None if outcome is None else dataclasses.asdict(outcome),
    }


def completed(run: Run) -> Run:
    """A run with its conclusion: as stored, or made now for one that was killed or still goes on."""
    if "summary" in run.info and "verdict" in run.info:
        return run
    return dataclasses.replace(run, info={**run.info, **conclude(run, slo.restored(run.info), None, None)})


def _cut(outcome: Outcome | None, run: Run, *, recorded: bool) -> Iterator[Caution]:
    waited = run.info.get("clock") != "virtual"  # a simulation is never cut: requests without an end have no record
    if outcome is not None and outcome.cut and outcome.ended == "finished" and waited:
        drain_s = run.info["spec"]["drain"]
        yield Caution(
            "cut",
            f"{outcome.cut:,} requests had no end {drain_s:g} s after the last one had left and were given up; "
            "they miss the SLO, and the latencies leave them out",
            f"wait longer with --drain, or {less_traffic(recorded)}",
            {"cut": outcome.cut},
        )
