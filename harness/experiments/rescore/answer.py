"""Stored runs scored again: everything that `bench slo` answers, as plain data fit for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.api import Slo
from harness.data.codec import Part, encode
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.rescore.curves import curves, overloaded
from harness.experiments.rescore.options import RescoreOptions
from harness.experiments.rescore.scored import groups_part, plane_part, slo_part
from harness.experiments.rescore.side_by_side import side_by_side
from harness.metrics.measure import in_summary, missing
from harness.metrics.quantiles import with_failures
from harness.metrics.slo import meets, restored
from harness.metrics.summary import per_second_of, window_of
from harness.validity.remote import undecided

if TYPE_CHECKING:
    from harness.experiments.rescore.reading import Source

SCHEMA = 1
BELOW, INVALID, UNRESOLVED = 1, 4, 5


def answer(sources: Iterable[Source], query: RescoreOptions) -> dict[str, Any]:
    """The answer (slo.json), run by run, and curves over the rate where the runs have several."""
    runs = [_named(source, query) for source in sources]
    info = {
        "schema": SCHEMA,
        "kind": "slo",
        "versions": versions(),
        "conditions": query.conditions,
        "failed_as_infinite": query.failed_as_infinite,
        "fail_under": query.fail_under,
        "runs": runs,
        "curves": curves(runs),
    }
    cleaned: dict[str, Any] = clean({**info, "exit_code": _exit_code(runs, query)})
    return cleaned


def clean(value: Any) -> Any:
    """Plain Python values, and None for what JSON does not know."""
    if isinstance(value, Part):
        return clean(encode(value))
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [clean(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _named(source: Source, query: RescoreOptions) -> dict[str, Any]:
    """One run; raises UsageError, with its path, for what it cannot tell."""
    try:
        return _run(source, query)
    except UsageError as error:
        raise UsageError(f"'{source.path}': {error}") from None


def _run(source: Source, query: RescoreOptions) -> dict[str, Any]:
    own = restored(source.info)
    goals = query.goals or (own.goal,)
    table, ok = source.table, source.seen.ok
    per_second = per_second_of(table)
    latencies = {m.name: _latency(source, m.name, query) for m in in_summary() if not m.pooled}
    slos = [slo_part(source, objective, goals, query, per_second) for objective in query.objectives or (own,)]
    grew = source.info.verdict.grew
    return {
        **_identity(source),
        "queue_grew": grew,
        "overloaded": any(overloaded(grew, slo) for slo in slos),
        "goals": list(goals),
        "requests": len(table) + source.left_out,
        "measured": len(table),
        "left_out": source.left_out,
        "failed": int((~ok).sum()),
        "window_s": window_of(table),
        "scheduled_rps": per_second(len(table)),
        "throughput_rps": per_second(int(ok.sum())),
        "output_tps": per_second(int(table["output_tokens"].to_numpy()[ok].sum())),
        "latencies": latencies,
        "slos": slos,
        "plane": plane_part(source, query, per_second),
        "groups": [groups_part(source, by, query.objectives or (own,), goals[0], per_second) for by in query.by],
        "profiles": _profiles(source, query, own),
    }


def _identity(source: Source) -> dict[str, Any]:
    info, stored = source.info, encode(source.info)
    return {
        "name": info.source.name or source.path.name,
        "path": str(source.path),
        "source": stored.get("source"),
        "workload": info.workload.name,
        "rate_rps": info.workload.rate_rps,
        "spec": info.spec,
        "seed": info.seed,
        "state": info.state,
        "started": info.started,
        "gpus": info.backend.get("gpus"),
        "valid": info.verdict.valid,
        "reasons": info.verdict.reasons,
        "warmup": stored.get("warmup"),
        "missing": sorted(missing(source.table)),
        "aggregates": stored.get("aggregates"),
    }


def _latency(source: Source, metric: str, query: RescoreOptions) -> dict[str, float | int]:
    values = source.seen.values(metric)[source.seen.ok]
    known = values[np.isfinite(values)]
    failed = int((~source.seen.ok).sum()) if query.failed_as_infinite else 0
    at = {f"p{p}": with_failures(known.copy(), failed, p / 100) for p in (50, 90, 99)}
    return {"n": len(known), "mean": float(known.mean()) if len(known) else math.nan, **at}


def _profiles(source: Source, query: RescoreOptions, own: Slo) -> dict[str, Any] | None:
    if not query.profiles:
        return None
    given = next((objective for objective in query.objectives if isinstance(objective, Slo)), own)
    return side_by_side(source, given, query.profiles)


def _exit_code(runs: Sequence[dict[str, Any]], query: RescoreOptions) -> int:
    """0, 4 where a run is not valid; with `fail_under` 1 where too few meet an objective, 5 where that is open."""
    if any(run["valid"] is False for run in runs):
        return INVALID
    if query.fail_under is None:
        return 0
    judged = [_judged(slo, query.fail_under) for run in runs for slo in run["slos"]]
    if BELOW in judged:
        return BELOW
    unsure = any(run["overloaded"] or run["state"] != "finished" for run in runs)
    return UNRESOLVED if UNRESOLVED in judged or unsure else 0


def _judged(slo: dict[str, Any], fail_under: float) -> int:
    attainment = slo["attainment"]
    if (attainment is not None and math.isnan(attainment)) or undecided(slo["resolution"], fail_under):
        return UNRESOLVED  # NaN: of no request
    percentiles = [bound["passed"] for bound in slo["bounds"] if bound["percentile"] is not None]
    return 0 if meets(attainment, percentiles, fail_under) else BELOW
