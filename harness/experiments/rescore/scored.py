"""What one run amounts to under an objective, in a plane of bounds and in groups, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from harness.api import Slo
from harness.data.run_json import Resolution
from harness.experiments.rescore.groups import capacities, grouped
from harness.experiments.rescore.objectives import Objective, Outcome, Part, outcome
from harness.experiments.rescore.options import RescoreOptions
from harness.experiments.rescore.scale import curve, plane
from harness.experiments.rescore.tokens import Tokens, tasks, tokens
from harness.metrics.measure import headline, metrics, missing
from harness.metrics.quantiles import quantile
from harness.validity.remote import resolution

if TYPE_CHECKING:
    from harness.experiments.rescore.reading import Source

WEIGHTS = ((1, 8), (0, 1))
"""Weights of a prompt token and of an output token in service goodput; JITServe has 1 and 8."""


def slo_part(
    source: Source,
    objective: Objective,
    goals: Sequence[float],
    query: RescoreOptions,
    per_second: Callable[[int], float],
) -> dict[str, Any]:
    """A run under one objective; `per_second` makes a rate of a count."""
    found = outcome(source.seen, objective, goals[0])
    met = int(np.count_nonzero(found.met)) if found.by_request else None
    gpus = source.info.backend.get("gpus")
    goodput = None if met is None else per_second(met)
    return {
        "text": found.text,
        "goal": goals[0],
        "attainment": found.attainment if found.by_request else None,
        "met": met,
        "goodput_rps": goodput,
        "goodput_rps_per_gpu": goodput / gpus if goodput is not None and isinstance(gpus, int) and gpus > 0 else None,
        "joint": [found.kept(goal) for goal in goals],
        "separate": [found.kept_separately(goal) for goal in goals],
        "binding": found.binding,
        "bounds": [_part(part) for part in found.parts],
        "classes": {} if found.score is None else found.score.by_class,
        "resolution": _resolution(source, objective, goals[0]),
        "capacities": capacities(source, objective, goals),
        "tasks": tasks(source.seen, found.met, per_second) if found.by_request else None,
        "scale": _scale(source, objective, found, query, goals, per_second),
        "tokens": _tokens(source, objective, found, per_second) if query.tokens and found.by_request else None,
    }


def _part(part: Part) -> dict[str, Any]:
    scored = part.scored
    limit = None if scored is None else scored.bound.limit
    return {
        "text": part.text,
        "metric": None if scored is None else scored.bound.metric,
        "limit_s": limit,
        "tag": None if scored is None else scored.bound.tag,
        "percentile": None if scored is None else scored.bound.percentile,
        "requests": part.requests,
        "attainment": part.attainment,
        "value_s": None if scored is None else scored.value_s,
        "passed": None if scored is None or not part.requests else scored.passed,
    }


def _resolution(source: Source, objective: Objective, goal: float) -> Resolution | None:
    """What the client's own error leaves open; None where it was not measured."""
    floor = source.info.floor
    if not isinstance(objective, Slo) or not floor:
        return None
    deep = any(metrics()[b.metric].gaps for b in objective.bounds)
    table = pa.concat_tables(source.seen.pieces()) if deep and len(source.table) else source.table
    return resolution(table, replace(objective, goal=goal), floor)


def _scale(
    source: Source,
    objective: Objective,
    scored: Outcome,
    query: RescoreOptions,
    goals: Sequence[float],
    per_second: Callable[[int], float],
) -> dict[str, Any] | None:
    if not isinstance(objective, Slo) or not len(source.table):
        return None
    found = curve(source.seen, objective, query.factors, scored.score)
    if not found.bounds:
        return None
    crossings = [found.crossing(goal) for goal in goals]
    return {
        "factors": found.factors,
        "attainment": found.attainment,
        "bounds": found.bounds,
        "goodput_rps": [per_second(round(share * len(source.table))) for share in found.attainment.tolist()],
        "crossings": crossings,
        "holds_from": found.holds_from,
    }


def plane_part(source: Source, query: RescoreOptions, per_second: Callable[[int], float]) -> dict[str, Any] | None:
    """Goodput under every pair of two bounds; None where no plane is requested."""
    if not query.limits_s:
        return None
    found = plane(source.seen, dict(query.limits_s))
    n = max(1, found.requests)
    return {
        "metrics": list(found.metrics),
        "limits_s": [list(limits) for limits in found.limits_s],
        "attainment": found.met / n,
        "goodput_rps": [[per_second(int(met)) for met in row] for row in found.met],
        "alone": [found.first / n, found.second / n],
    }


def groups_part(
    source: Source, by: str, objectives: Sequence[Objective], goal: float, per_second: Callable[[int], float]
) -> dict[str, Any]:
    """Per group how many requests kept each objective; goodput is the group's part of that of the run."""
    code, names = grouped(source, by)
    outcomes = [outcome(source.seen, objective, goal) for objective in objectives]
    count, failed = np.bincount(code, minlength=len(names)), np.bincount(code, ~source.seen.ok, len(names))
    met = [np.bincount(code, found.met, len(names)) if found.by_request else None for found in outcomes]
    return {
        "by": by,
        "slos": [found.text for found in outcomes],
        "groups": [
            {
                "name": name,
                "requests": int(count[i]),
                "failed": int(failed[i]),
                "attainment": [None if m is None else m[i] / count[i] for m in met],
                "goodput_rps": [None if m is None else per_second(int(m[i])) for m in met],
                "bounds": [_bounds_in(found, code == i) for found in outcomes],
                "latencies": {
                    metric.name: {"p50": quantile(values_s, 0.5), "p99": quantile(values_s, 0.99)}
                    for metric in headline()
                    for values_s in [source.seen.values(metric.name)[(code == i) & source.seen.ok]]
                },
            }
            for i, name in enumerate(names)
        ],
    }


def _bounds_in(found: Outcome, inside: np.ndarray) -> dict[str, float]:
    """Per bound the share that kept it, of the requests inside the group that it binds."""
    scored = [p.scored for p in found.parts if p.scored is not None and not p.is_percentile]
    shares = {}
    for one in scored:
        among = inside & one.applies
        shares[one.text] = float(one.met[among].mean()) if among.any() else math.nan
    return shares


def _tokens(
    source: Source, objective: Objective, found: Outcome, per_second: Callable[[int], float]
) -> dict[str, Any] | None:
    """Goodput in tokens; None where the tokens of an event are not known, or the objective has no such rule."""
    if not isinstance(objective, Slo) or "token_n" in missing(source.table):
        return None
    made = tokens(source.seen, objective, found.score)
    coded = source.seen.classes()
    code, names = (np.zeros(len(made.output), np.int64), ["all"]) if coded is None else coded
    whole = int(source.table["output_tokens"].to_numpy()[found.met].sum())
    parts = {name: _good(made, code == i, per_second) for i, name in enumerate(names)} if coded is not None else {}
    everything = np.ones(len(made.output), bool)
    return {
        **_good(made, everything, per_second),
        "whole_answers_tps": per_second(whole),
        "classes": dict(sorted(parts.items())),
    }


def _good(made: Tokens, inside: np.ndarray, per_second: Callable[[int], float]) -> dict[str, Any]:
    output, prompt, due = (int(part[inside].sum()) for part in (made.output, made.prompt, made.due))
    service = {f"{p}:{d}": per_second(p * prompt + d * output) for p, d in WEIGHTS}
    return {
        "good_output_tokens": output,
        "good_prompt_tokens": prompt,
        "due_output_tokens": due,
        "share": output / due if due else None,
        "token_goodput_tps": per_second(output),
        "service": service,
    }
