"""The numbers of the two runs of a pair: of the same requests, under the same SLO."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from harness import slo, warmup
from harness.api import Slo
from harness.compare.gates import compared
from harness.compare.pairing import Numbers, Pair, Source
from harness.cut import Cut, kept
from harness.folder import Run
from harness.metrics._lists import number
from harness.summary import summarize

Values = dict[str, float | None]


def cut_s(pair: Pair, rule: str | None) -> float:
    """Where the measured part of both runs begins: the later of the two cuts, as stored or by another rule."""
    return max((_cut_s(run, rule) for run in (pair.base, pair.head) if not isinstance(run, Numbers)), default=0.0)


def of(source: Source, objective: Slo | None, from_s: float) -> Values:
    """Name -> value of a run from a time on, under its own SLO or another; None where nothing was measured."""
    if isinstance(source, Numbers):
        return {**source.values}
    if "aggregates" in source.info and not len(source.requests):
        return dict(_summary(source.info["summary"]))  # what the other tool computed is all there is
    table = measured(source.requests, from_s)
    return dict(_summary(summarize(table, objective or slo.restored(source.info))))


def measured(table: pa.Table, from_s: float) -> pa.Table:
    """The requests due at `from_s` or after it."""
    early = int((number(table, "scheduled_s") < from_s).sum()) if from_s else 0
    return kept(table, Cut("pair", from_s, early))


def cached_share(source: Source, from_s: float) -> float | None:
    """Share of the prompt tokens that a prefix cache had; None where nobody tells."""
    if isinstance(source, Numbers):
        return None
    table = measured(source.requests, from_s)
    cached, prompts = number(table, "cached_tokens"), number(table, "prompt_tokens")
    known = ~np.isnan(cached)
    total = float(prompts[known].sum())
    return float(cached[known].sum()) / total if total else None


def _cut_s(run: Run, rule: str | None) -> float:
    if rule is not None:
        return warmup.find(run.requests, rule).at_s
    stored = run.info.get("warmup") or {}
    return float(stored["at_s"]) if stored.get("requests") else 0.0


def _summary(summary: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name in ("goodput_rps", "throughput_rps", "output_tps", "token_goodput_tps", "failed"):
        yield name, summary[name]
    if summary["bounds"]:
        yield "attainment", summary["attainment"]
        yield from ((f"attainment of {bound['text']}", bound["attainment"]) for bound in summary["bounds"])
    for name in compared():
        described = summary["metrics"].get(name) or {}
        yield name, described.get("mean")
        yield from ((f"{p}:{name}", described.get(p)) for p in ("p50", "p90", "p99"))
