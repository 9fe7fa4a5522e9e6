"""Stored runs scored again: everything that `bench slo` answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.api import Slo
from harness.data.codec import encode
from harness.data.host import versions
from harness.errors import UsageError
from harness.experiments.rescore.curves import curves, overloaded
from harness.experiments.rescore.options import RescoreOptions
from harness.experiments.rescore.scored import groups_part, plane_part, slo_part
from harness.experiments.rescore.side_by_side import side_by_side
from harness.experiments.rescore.slo_json import Latency, ScoredRun, SloAnswer, SloScore, known
from harness.metrics.measure import in_summary, missing
from harness.metrics.objective import meets, restored_slo
from harness.metrics.quantiles import with_failures
from harness.metrics.summary import per_second_of, window_of
from harness.validity.remote import undecided

if TYPE_CHECKING:
    from harness.experiments.rescore.reading import Source

BELOW, INVALID, UNRESOLVED = 1, 4, 5


def answer(sources: Iterable[Source], query: RescoreOptions) -> SloAnswer:
    """The answer (slo.json), run by run, and curves over the rate where the runs have several."""
    runs = [_named(source, query) for source in sources]
    return SloAnswer(
        versions=dict(versions()),
        conditions=query.conditions,
        failed_as_infinite=query.failed_as_infinite,
        fail_under=query.fail_under,
        runs=runs,
        curves=curves(runs),
        exit_code=_exit_code(runs, query),
    )


def _named(source: Source, query: RescoreOptions) -> ScoredRun:
    """One run; raises UsageError, with its path, for what it cannot tell."""
    try:
        return _run(source, query)
    except UsageError as error:
        raise UsageError(f"'{source.path}': {error}") from None


def _run(source: Source, query: RescoreOptions) -> ScoredRun:
    info, stored, own = source.info, encode(source.info), restored_slo(source.info)
    goals, objectives = query.goals or (own.goal,), query.objectives or (own,)
    table, ok = source.table, source.seen.ok
    rate = per_second_of(table)

    def per_second(count: int) -> float | None:
        return known(rate(count))

    slos = [slo_part(source, objective, goals, query, per_second) for objective in objectives]
    compared = next((objective for objective in query.objectives if isinstance(objective, Slo)), own)
    grew = info.verdict.grew
    return ScoredRun(
        name=info.source.name or source.path.name,
        path=str(source.path),
        source=stored.get("source"),
        workload=info.workload.name,
        rate_rps=info.workload.rate_rps,
        spec=info.spec,
        seed=info.seed,
        state=info.state,
        started=info.started,
        gpus=info.backend.get("gpus"),
        valid=info.verdict.valid,
        reasons=info.verdict.reasons,
        warmup=stored.get("warmup"),
        missing=sorted(missing(table)),
        aggregates=stored.get("aggregates"),
        queue_grew=grew,
        overloaded=any(overloaded(grew, slo) for slo in slos),
        goals=list(goals),
        requests=len(table) + source.left_out,
        measured=len(table),
        left_out=source.left_out,
        failed=int((~ok).sum()),
        window_s=known(window_of(table)),
        scheduled_rps=per_second(len(table)),
        throughput_rps=per_second(int(ok.sum())),
        output_tps=per_second(int(table["output_tokens"].to_numpy()[ok].sum())),
        latencies={m.name: _latency(source, m.name, query) for m in in_summary() if not m.pooled},
        slos=slos,
        plane=plane_part(source, query, per_second),
        groups=[groups_part(source, by, objectives, goals[0], per_second) for by in query.by],
        profiles=side_by_side(source, compared, query.profiles) if query.profiles else None,
    )


def _latency(source: Source, metric: str, query: RescoreOptions) -> Latency:
    values = source.seen.values(metric)[source.seen.ok]
    finite = values[np.isfinite(values)]
    failed = int((~source.seen.ok).sum()) if query.failed_as_infinite else 0
    at = (known(with_failures(finite.copy(), failed, p / 100)) for p in (50, 90, 99))
    return Latency(len(finite), float(finite.mean()) if len(finite) else None, *at)


def _exit_code(runs: Sequence[ScoredRun], query: RescoreOptions) -> int:
    """0, 4 where a run is not valid; with `fail_under` 1 where too few meet an objective, 5 where that is open."""
    if any(run.valid is False for run in runs):
        return INVALID
    if query.fail_under is None:
        return 0
    judged = [_judged(slo, query.fail_under) for run in runs for slo in run.slos]
    if BELOW in judged:
        return BELOW
    unsure = any(run.overloaded or run.state != "finished" for run in runs)
    return UNRESOLVED if UNRESOLVED in judged or unsure else 0


def _judged(slo: SloScore, fail_under: float) -> int:
    of_none = slo.met is not None and slo.attainment is None
    if of_none or undecided(slo.resolution, fail_under):
        return UNRESOLVED
    percentiles = [bound.passed for bound in slo.bounds if bound.percentile is not None]
    return 0 if meets(slo.attainment, percentiles, fail_under) else BELOW
