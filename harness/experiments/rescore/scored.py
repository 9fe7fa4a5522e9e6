"""What one run amounts to under an objective, in a plane of bounds and in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from harness.api import Slo
from harness.data.run_json import Resolution
from harness.experiments.rescore.groups import capacities, grouped
from harness.experiments.rescore.objectives import Objective, Outcome, Part, outcome
from harness.experiments.rescore.options import RescoreOptions
from harness.experiments.rescore.scale import curve, plane
from harness.experiments.rescore.slo_json import (
    ConditionScore,
    GoodTokens,
    Groups,
    GroupScore,
    Percentiles,
    PlaneScore,
    ScaleScore,
    SloScore,
    TokenScore,
)
from harness.experiments.rescore.tokens import Tokens, tasks, tokens
from harness.metrics.measure import headline, missing
from harness.metrics.quantiles import quantile
from harness.metrics.summary import known
from harness.validity.remote import resolution

if TYPE_CHECKING:
    from harness.experiments.rescore.reading import Source

PerSecond: TypeAlias = Callable[[int], float | None]
"""The rate of a count in a run, None where the run has no duration."""

WEIGHTS = ((1, 8), (0, 1))
"""Weights of a prompt token and of an output token in service goodput; JITServe has 1 and 8."""


def slo_part(
    source: Source, objective: Objective, goals: Sequence[float], query: RescoreOptions, per_second: PerSecond
) -> SloScore:
    found = outcome(source.seen, objective, goals[0])
    unknown = found.score is not None and found.score.unknown
    met = int(np.count_nonzero(found.met)) if found.by_request and not unknown else None
    gpus = source.info.backend.get("gpus")
    goodput = None if met is None else per_second(met)
    by_class = {} if found.score is None else found.score.by_class
    return SloScore(
        text=found.text,
        goal=goals[0],
        attainment=known(found.attainment),
        met=met,
        goodput_rps=goodput,
        goodput_rps_per_gpu=goodput / gpus if goodput is not None and isinstance(gpus, int) and gpus > 0 else None,
        joint=[found.kept(goal) for goal in goals],
        separate=[found.kept_separately(goal) for goal in goals],
        binding=found.binding,
        bounds=[_condition(part) for part in found.parts],
        classes={name: known(share) for name, share in by_class.items()},
        resolution=_resolution(source, objective, goals[0]),
        capacities=capacities(source, objective, goals),
        tasks=tasks(source.seen, found.met, per_second) if found.by_request else None,
        scale=_scale(source, objective, found, query, goals, per_second),
        tokens=_tokens(source, objective, found, per_second) if query.tokens and found.by_request else None,
    )


def _condition(part: Part) -> ConditionScore:
    share = known(part.attainment)
    if (scored := part.scored) is None:
        return ConditionScore(part.text, None, None, None, None, part.requests, share, None, None)
    bound, passed = scored.bound, None if share is None else scored.passed
    return ConditionScore(
        part.text, bound.metric, known(bound.limit), bound.tag, bound.percentile, part.requests, share,
        known(scored.value_s), passed,
    )  # fmt: skip


def _resolution(source: Source, objective: Objective, goal: float) -> Resolution | None:
    """What the client's own error and answers that were held back leave open; None where that is nothing."""
    if not isinstance(objective, Slo):
        return None
    return resolution(source.seen, replace(objective, goal=goal), source.info.floor)


def _scale(
    source: Source, objective: Objective, scored: Outcome, query: RescoreOptions, goals: Sequence[float],
    per_second: PerSecond,
) -> ScaleScore | None:  # fmt: skip
    if not isinstance(objective, Slo) or not len(source.table):
        return None
    found = curve(source.seen, objective, query.factors, scored.score)
    if not found.bounds:
        return None
    return ScaleScore(
        found.factors.tolist(),
        found.attainment.tolist(),
        {str(bound): [known(share) for share in shares.tolist()] for bound, shares in found.bounds.items()},
        [per_second(round(share * len(source.table))) for share in found.attainment.tolist()],
        [found.crossing(goal) for goal in goals],
        {str(bound): known(factor) for bound, factor in found.holds_from.items()},
    )


def plane_part(source: Source, query: RescoreOptions, per_second: PerSecond) -> PlaneScore | None:
    """Goodput under every pair of two bounds; None where no plane is requested."""
    if not query.limits_s:
        return None
    found = plane(source.seen, dict(query.limits_s))
    shares, (first_s, second_s) = found.met / max(1, found.requests), found.limits_s
    return PlaneScore(
        found.metrics,
        (first_s.tolist(), second_s.tolist()),
        shares[:-1, :-1].tolist(),
        [[per_second(met) for met in row] for row in found.met[:-1, :-1].tolist()],
        (shares[:-1, -1].tolist(), shares[-1, :-1].tolist()),
    )


def groups_part(source: Source, by: str, objectives: Sequence[Objective], goal: float, per_second: PerSecond) -> Groups:
    """Per group how many requests kept each objective; goodput is the group's part of that of the run."""
    code, names = grouped(source, by)
    outcomes = [outcome(source.seen, objective, goal) for objective in objectives]
    count, failed = np.bincount(code, minlength=len(names)), np.bincount(code, ~source.seen.ok, len(names))
    met = [np.bincount(code, found.met, len(names)) if found.by_request else None for found in outcomes]
    groups = [
        GroupScore(
            name=name,
            requests=int(count[i]),
            failed=int(failed[i]),
            attainment=[None if m is None else float(m[i] / count[i]) for m in met],
            goodput_rps=[None if m is None else per_second(int(m[i])) for m in met],
            bounds=[_bounds_in(found, code == i) for found in outcomes],
            latencies={
                metric.name: Percentiles(known(quantile(values_s, 0.5)), known(quantile(values_s, 0.99)))
                for metric in headline()
                for values_s in [source.seen.values(metric.name)[(code == i) & source.seen.ok]]
            },
        )
        for i, name in enumerate(names)
    ]
    return Groups(by, [found.text for found in outcomes], groups)


def _bounds_in(found: Outcome, inside: np.ndarray) -> dict[str, float | None]:
    """Per bound the share that kept it, of the requests inside the group that it binds."""
    scored = [p.scored for p in found.parts if p.scored is not None and not p.is_percentile]
    among = {str(one.bound): one.met[inside & one.applies] for one in scored}
    return {text: float(met.mean()) if len(met) else None for text, met in among.items()}


def _tokens(source: Source, objective: Objective, found: Outcome, per_second: PerSecond) -> TokenScore | None:
    """Goodput in tokens; None where the tokens of an event are not known, or the objective has no such rule."""
    if not isinstance(objective, Slo) or "token_n" in missing(source.table):
        return None
    made = tokens(source.seen, objective, found.score)
    code, names = source.seen.classes() or (np.empty(0), [])
    whole = int(source.table["output_tokens"].to_numpy()[found.met].sum())
    classes = {name: GoodTokens(*_good(made, code == i, per_second)) for i, name in enumerate(names)}
    everything = np.ones(len(made.output), bool)
    return TokenScore(*_good(made, everything, per_second), per_second(whole), dict(sorted(classes.items())))


def _good(
    made: Tokens, inside: np.ndarray, per_second: PerSecond
) -> tuple[int, int, int, float | None, float | None, dict[str, float | None]]:
    """The values of `GoodTokens`."""
    output, prompt, due = (int(part[inside].sum()) for part in (made.output, made.prompt, made.due))
    service = {f"{p}:{d}": per_second(p * prompt + d * output) for p, d in WEIGHTS}
    return output, prompt, due, output / due if due else None, per_second(output), service
