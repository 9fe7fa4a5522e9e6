"""Stored runs scored again: everything that `bench slo` answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from msgspec import structs

from harness.api import Slo
from harness.data.codec import Facts, encode
from harness.data.host import versions
from harness.data.run_json import Described, RunInfo
from harness.errors import UsageError
from harness.experiments.rescore.objectives import Objective, Outcome, Tokens, curve, outcome, tasks, tokens
from harness.experiments.rescore.reading import grouped
from harness.experiments.rescore.side_by_side import side_by_side
from harness.experiments.rescore.slo_json import (
    GoodTokens,
    Groups,
    GroupScore,
    ScaleScore,
    ScoredRun,
    SloAnswer,
    SloScore,
    TokenScore,
)
from harness.experiments.sweep.answer import options_of, together
from harness.experiments.sweep.axes import SCALE, SLO, values
from harness.experiments.sweep.runs import PARTS
from harness.experiments.sweep.sweep_json import SweptRun
from harness.metrics.measure import headline, in_summary, missing
from harness.metrics.objective import meets, restored_slo
from harness.metrics.summary import describe, known, per_second_of, window_of
from harness.validity.remote import resolution, undecided

if TYPE_CHECKING:
    from harness.experiments.rescore.objectives import Objective
    from harness.experiments.rescore.reading import Source
    from harness.metrics.profiles._base import Profile


BELOW, INVALID, UNRESOLVED = 1, 4, 5


PerSecond: TypeAlias = Callable[[int], float | None]
"""The rate of a count in a run, None where the run has no duration."""

WEIGHTS = ((1, 8), (0, 1))
"""Weights of a prompt token and of an output token in service goodput; JITServe has 1 and 8."""
POINTS = 17
"""Numbers in a range without a step: with 0.25:4 every fourth root of two, to three digits."""


def answer(sources: Iterable[Source], query: RescoreOptions) -> SloAnswer:
    """The answer (slo.json), run by run, and several runs together."""
    runs: list[ScoredRun] = []
    rows: list[tuple[RunInfo, Facts, SweptRun]] = []
    scaled: list[tuple[RunInfo, Facts, SweptRun]] = []
    for source in sources:
        run = _named(source, query)
        runs.append(run)
        for slo in run.slos if run.measured else ():
            options, swept = {**options_of(source.info), SLO: slo.text}, _swept(run, slo)
            rows.append((source.info, options, swept))
            scaled += [(source.info, {**options, SCALE: at}, of_scale) for at, of_scale in _at_factors(swept, slo)]
    several, goals = len({run.folder for *_, run in rows}) > 1, runs[0].goals if runs else ()
    return SloAnswer(
        versions=dict(versions()),
        conditions=query.conditions,
        fail_under=query.fail_under,
        runs=runs,
        curve=together(rows, goals=goals) if several else None,
        scaled=together(scaled, goals=goals) if several and scaled else None,
        exit_code=_exit_code(runs, query),
    )


def _named(source: Source, query: RescoreOptions) -> ScoredRun:
    """One run; raises UsageError, with its path, for what it cannot tell."""
    try:
        return _run(source, query)
    except UsageError as error:
        raise UsageError(f"'{source.path}': {error}") from None


def _run(source: Source, query: RescoreOptions) -> ScoredRun:
    info, stored, run_slo = source.info, encode(source.info), restored_slo(source.info)
    goals, objectives = query.goals or (run_slo.goal,), query.objectives or (run_slo,)
    table, ok = source.table, source.seen.ok
    rate = per_second_of(table)

    def per_second(count: int) -> float | None:
        return known(rate(count))

    slos = [slo_part(source, objective, goals, query, per_second) for objective in objectives]
    compared = next((objective for objective in query.objectives if isinstance(objective, Slo)), run_slo)
    grew = bool(info.verdict.queue_grew)
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
        latencies={m.name: _described(source, m.name, ok) for m in in_summary() if not m.pooled},
        slos=slos,
        groups=[groups_part(source, by, objectives, goals[0], per_second) for by in query.by],
        profiles=side_by_side(source, compared, query.profiles) if query.profiles else None,
    )


def _described(source: Source, metric: str, among: np.ndarray) -> Described:
    """A metric of the requests that the mask shows."""
    values = source.seen.values(metric)[among]
    return describe(values[np.isfinite(values)])


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


def _swept(run: ScoredRun, slo: SloScore) -> SweptRun:
    """The run under an SLO, as the point of a curve has it."""
    return SweptRun(
        seed=run.seed,
        valid=run.valid is not False,
        overloaded=overloaded(run.queue_grew, slo),
        reasons=run.reasons,
        gpus=run.gpus,
        requests=run.measured,
        slo=slo.text,
        attainment=slo.attainment,
        bounds=slo.bounds,
        resolution=slo.resolution,
        goodput_rps=slo.goodput_rps,
        throughput_rps=run.throughput_rps,
        output_tps=run.output_tps,
        failed=run.failed / run.measured,
        metrics={name: {part: getattr(of, part) for part in PARTS} for name, of in run.latencies.items()},
        folder=run.path,
    )


def _at_factors(run: SweptRun, slo: SloScore) -> Iterator[tuple[float, SweptRun]]:
    """The same with every bound times each factor."""
    scale = slo.scale
    for i, factor in enumerate(() if scale is None else scale.factors):
        assert scale is not None
        bounds = []
        for bound in slo.bounds:
            moved = structs.replace(bound, limit_s=None if bound.limit_s is None else bound.limit_s * factor)
            if bound.percentile is None:
                moved = structs.replace(moved, attainment=scale.bounds[str(bound.text)][i])
            elif moved.value_s is not None and moved.limit_s is not None:
                moved = structs.replace(moved, passed=moved.value_s <= moved.limit_s)
            bounds.append(moved)
        yield factor, structs.replace(
            run, attainment=scale.attainment[i], goodput_rps=scale.goodput_rps[i], bounds=bounds, resolution=None,
            metrics={},
        )  # fmt: skip


def overloaded(grew: bool, slo: SloScore) -> bool:
    """Whether a queue that grew is overload: not where the first goal is reached; without a bound it always is."""
    return grew and not (slo.bounds and slo.joint[0])


def slo_part(
    source: Source, objective: Objective, goals: Sequence[float], query: RescoreOptions, per_second: PerSecond
) -> SloScore:
    scored = outcome(source.seen, objective, goals[0])
    unknown = scored.score is not None and scored.score.unknown
    met = int(np.count_nonzero(scored.met)) if scored.by_request and not unknown else None
    gpus = source.info.backend.get("gpus")
    goodput = None if met is None else per_second(met)
    by_class = {} if scored.score is None else scored.score.by_class
    return SloScore(
        text=scored.text,
        goal=goals[0],
        attainment=known(scored.attainment),
        met=met,
        goodput_rps=goodput,
        goodput_rps_per_gpu=goodput / gpus if goodput is not None and isinstance(gpus, int) and gpus > 0 else None,
        joint=[scored.kept(goal) for goal in goals],
        separate=[scored.kept_separately(goal) for goal in goals],
        binding=scored.binding,
        bounds=list(scored.parts),
        classes={name: known(share) for name, share in by_class.items()},
        # what the client's own error and answers that were held back leave open
        resolution=resolution(source.seen, replace(objective, goal=goals[0]), source.info.floor)
        if isinstance(objective, Slo)
        else None,
        tasks=tasks(source.seen, scored.met, per_second) if scored.by_request else None,
        scale=_scale(source, objective, scored, query, goals, per_second),
        tokens=_tokens(source, objective, scored, per_second) if query.tokens and scored.by_request else None,
    )


def _scale(
    source: Source, objective: Objective, scored: Outcome, query: RescoreOptions, goals: Sequence[float],
    per_second: PerSecond,
) -> ScaleScore | None:  # fmt: skip
    if not isinstance(objective, Slo) or not len(source.table):
        return None
    scaled = curve(source.seen, objective, query.factors, scored.score)
    if not scaled.bounds:
        return None
    return ScaleScore(
        scaled.factors.tolist(),
        scaled.attainment.tolist(),
        {str(bound): [known(share) for share in shares.tolist()] for bound, shares in scaled.bounds.items()},
        [per_second(round(share * len(source.table))) for share in scaled.attainment.tolist()],
        [scaled.crossing(goal) for goal in goals],
        {str(bound): known(factor) for bound, factor in scaled.holds_from.items()},
    )


def groups_part(source: Source, by: str, objectives: Sequence[Objective], goal: float, per_second: PerSecond) -> Groups:
    """Per group how many requests kept each objective; goodput is the group's part of that of the run."""
    code, names = grouped(source, by)
    outcomes = [outcome(source.seen, objective, goal) for objective in objectives]
    count, failed = np.bincount(code, minlength=len(names)), np.bincount(code, ~source.seen.ok, len(names))
    met = [np.bincount(code, scored.met, len(names)) if scored.by_request else None for scored in outcomes]
    groups = [
        GroupScore(
            name=name,
            requests=int(count[i]),
            failed=int(failed[i]),
            attainment=[None if m is None else float(m[i] / count[i]) for m in met],
            goodput_rps=[None if m is None else per_second(int(m[i])) for m in met],
            bounds=[_bounds_in(scored, code == i) for scored in outcomes],
            latencies={m.name: _described(source, m.name, (code == i) & source.seen.ok) for m in headline()},
        )
        for i, name in enumerate(names)
    ]
    return Groups(by, [scored.text for scored in outcomes], groups)


def _bounds_in(found: Outcome, inside: np.ndarray) -> dict[str, float | None]:
    """Per bound the share that kept it, of the requests inside the group that it binds."""
    bounds = () if found.score is None else found.score.bounds
    among = {str(b.bound): b.met[inside & b.applies] for b in bounds if b.bound.percentile is None}
    return {text: float(met.mean()) if len(met) else None for text, met in among.items()}


def _tokens(source: Source, objective: Objective, found: Outcome, per_second: PerSecond) -> TokenScore | None:
    """Goodput in tokens; None where the tokens of an event are not known, or the objective has no such rule."""
    if not isinstance(objective, Slo) or "token_n" in missing(source.table):
        return None
    good = tokens(source.seen, objective, found.score)
    code, names = source.seen.classes() or (np.empty(0), [])
    met_tokens = int(source.table["output_tokens"].to_numpy()[found.met].sum())
    classes = {name: _good(good, code == i, per_second) for i, name in enumerate(names)}
    everything = structs.asdict(_good(good, np.ones(len(good.output), bool), per_second))
    return TokenScore(**everything, whole_answers_tps=per_second(met_tokens), classes=dict(sorted(classes.items())))


def _good(made: Tokens, inside: np.ndarray, per_second: PerSecond) -> GoodTokens:
    output, prompt, due = (int(part[inside].sum()) for part in (made.output, made.prompt, made.due))
    service = {f"{p}:{d}": per_second(p * prompt + d * output) for p, d in WEIGHTS}
    return GoodTokens(output, prompt, due, output / due if due else None, per_second(output), service)


@dataclass(frozen=True, slots=True)
class RescoreOptions:
    """How to score the runs. Without `objectives` each run is scored under the SLO it was run with.

    `goals` are shares; the first decides which bound binds, and `fail_under` whether the answer is good. `factors` of
    the SLO scale may be none.
    """

    objectives: tuple[Objective, ...] = ()
    goals: tuple[float, ...] = ()
    conditions: Literal["joint", "separate"] = "joint"
    factors: tuple[float, ...] = ()
    by: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    tokens: bool = False
    fail_under: float | None = None


def _plain(text: str, what: str) -> float:
    """A number above 0, called `what` in the message."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise UsageError(f"{what} must be a number above 0, got '{text.strip()}'.")
    return value


def numbers(text: str, what: str) -> list[float]:
    """The numbers of a range or a list, rising.

    `low:high` has 17 of equal ratio, `low:high:step` steps, `low:high:x2` doublings. Raises UsageError, calling the
    range `what`.
    """
    values = [number for part in text.split(",") for number in _part(part.strip(), what)]
    return sorted(set(values))


def _part(part: str, what: str) -> list[float]:
    ends = part.split(":")
    if len(ends) > 3:
        raise UsageError(f"{what} is low:high, low:high:step, low:high:x2 or 1,2,3, got '{part}'.")
    read_ends = [end if end.lower().startswith("x") else f"{_plain(end, what):.12g}" for end in ends]
    if len(ends) != 2:
        return [float(value) for value in values(":".join(read_ends), what)]
    low, high = (_plain(end, what) for end in ends)
    if high <= low:
        raise UsageError(f"{what}: a range rises, got '{part}'.")
    inner = np.geomspace(low, high, POINTS)[1:-1]
    short = [float(f"{value:.3g}") for value in inner]  # the values shown are the values used
    narrow = len({low, *short, high}) < POINTS
    return [low, *(inner.tolist() if narrow else short), high]
