"""What a reader must know that the table alone does not tell: cut answers, rows left out, requests too long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from harness.api import Caution
from harness.measure import succeeded
from harness.metrics._lists import number
from harness.slo_text import bound_text
from harness.validity import less_traffic

if TYPE_CHECKING:
    from harness.api import Slo
    from harness.drive import Outcome
    from harness.folder import Run

BEFORE = "before the slice"
"""The reason for rows that --start leaves out: the user asked for it, so nobody is warned."""


LOOSE_S = 60.0
"""A bound above this on the wait for one token was probably meant in milliseconds: nobody waits a minute."""

ONE_TOKEN = ("ttft", "ttft_sent", "tpot", "itl", "itl_p99")
"""Metrics that are the wait for one token."""


def cautions(run: Run, objective: Slo, outcome: Outcome | None) -> Iterator[Caution]:
    """Warnings from how a run ended, from its SLO, and from what `run.json` says of its workload and backend."""
    yield from loose(objective)
    recorded = bool(_part(run.info, "workload").get("recorded"))
    yield from _cut(run, outcome, recorded=recorded)
    yield from _left_out(_part(_part(run.info, "workload"), "provenance"))
    yield from _too_long(run, recorded=recorded)


def loose(objective: Slo) -> Iterator[Caution]:
    """Bounds that were probably meant in milliseconds."""
    for bound in objective.bounds:
        if bound.metric in ONE_TOKEN and bound.limit > LOOSE_S:
            name = bound_text(bound).rpartition("=")[0]
            yield Caution(
                "loose-bound",
                f"the bound {bound_text(bound)} is {bound.limit:g} s",
                f"write {name}={bound.limit:g}ms for milliseconds",
                {"limit_s": bound.limit},
            )


def _part(info: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = info.get(name)
    return found if isinstance(found, Mapping) else {}


def _cut(run: Run, outcome: Outcome | None, *, recorded: bool) -> Iterator[Caution]:
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


def _left_out(provenance: Mapping[str, Any]) -> Iterator[Caution]:
    """Rows of a trace that are no requests; those of a trace of arrivals stand one level deeper."""
    for facts in (provenance, _part(provenance, "arrivals")):
        reasons = {str(why): n for why, n in _part(facts, "dropped").items() if isinstance(n, int) and why != BEFORE}
        left_out = sum(reasons.values())
        if left_out:
            told = ", ".join(f"{n:,} because {why}" for why, n in reasons.items())
            of = f"{facts.get('rows', left_out):,} rows of {facts.get('file', 'the trace')}"
            yield Caution(
                "dropped-rows",
                f"{left_out:,} of {of} are not sent: {told}",
                "failures of the recorded system are rightly left out; mend the file where it is something else",
                {"dropped": left_out},
            )


def _too_long(run: Run, *, recorded: bool) -> Iterator[Caution]:
    """Requests that a simulated model served although they are longer than the context it was made for."""
    backend = _part(run.info, "backend")
    limit = backend.get("max_tokens")
    if not isinstance(limit, int):
        return
    total = (number(run.requests, "prompt_tokens") + number(run.requests, "output_tokens"))[succeeded(run.requests)]
    over = int((total > limit).sum())
    if over:
        shorter = "take a part of the trace without them" if recorded else "limit the lengths (--lengths)"
        yield Caution(
            "context",
            f"{over:,} of {len(run.requests):,} requests are longer than the context of {backend.get('model')} "
            f"({limit:,} tokens; the longest has {int(total.max()):,}) and were served all the same, which the real "
            "model cannot do",
            f"take a --model with a longer context, or {shorter}",
            {"requests": over, "limit": limit},
        )
