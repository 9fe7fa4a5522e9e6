"""What a stored run amounts to: its summary, how faithfully it was sent, and whether it may be trusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from harness import slo as slo_module
from harness.api import Caution, Slo
from harness.fidelity import Law, fidelity
from harness.summary import summarize
from harness.validity import judge

if TYPE_CHECKING:
    from harness.drive import Outcome
    from harness.fidelity import Declared
    from harness.folder import Run


def conclude(run: Run, slo: Slo, declared: Declared, outcome: Outcome | None) -> dict[str, Any]:
    """The keys that finish run.json: summary, fidelity, warnings, verdict, and vLLM's keys beside them.

    `outcome` is None for a run that was killed: then it counts as interrupted.
    """
    interrupted = outcome is None or outcome.ended != "finished"
    clock: Literal["wall", "virtual"] = "virtual" if run.info.get("clock") == "virtual" else "wall"
    verdict = judge(run.requests, run.schedule, clock=clock, interrupted=interrupted)
    if outcome is not None and outcome.error is not None:
        reason = f"The backend failed: {outcome.error}"
        verdict = dataclasses.replace(verdict, valid=False, reasons=[reason, *verdict.reasons])
    cautions = [*_cut(outcome, run), *verdict.warnings]
    summary = summarize(run.requests, slo)
    vllm = summary.pop("vllm")
    return {
        **vllm,
        "summary": summary,
        "fidelity": fidelity(run.schedule, run.requests, declared) if run.schedule is not None else {},
        "warnings": [{"code": c.code, "message": c.message, "remedy": c.remedy} for c in cautions],
        "verdict": {"valid": verdict.valid, "reasons": list(verdict.reasons), "text": verdict.text},
        "outcome": None if outcome is None else dataclasses.asdict(outcome),
    }


def completed(run: Run) -> Run:
    """A run with its conclusion: as stored, or made now for one that was killed or still goes on."""
    if "summary" in run.info and "verdict" in run.info:
        return run
    stored = run.info.get("slo") or {}
    slo = dataclasses.replace(slo_module.parse(stored.get("text") or ""), goal=stored.get("goal", Slo().goal))
    rate_rps = (run.info.get("workload") or {}).get("rate_rps") or 0.0
    return dataclasses.replace(run, info={**run.info, **conclude(run, slo, Law(rate_rps), None)})


def _cut(outcome: Outcome | None, run: Run) -> Iterator[Caution]:
    if outcome is not None and outcome.cut and outcome.ended == "finished":
        drain_s = run.info["spec"]["drain"]
        yield Caution(
            "cut",
            f"{outcome.cut:,} requests had no end {drain_s:g} s after the last one had left and were given up; "
            "they miss the SLO, and the latencies leave them out",
            "wait longer with --drain, or lower --rate",
            {"cut": outcome.cut},
        )
