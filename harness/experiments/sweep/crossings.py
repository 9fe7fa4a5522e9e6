"""Where the curves of a sweep cross their goals, and how systems compare there.

Intervals are over seeds, which all systems have in common: a seed is left out of every point at once (jackknife), and
differences are taken seed by seed, so what one draw of the traffic does to both systems cancels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from harness.experiments.sweep.axes import RATE, RESCORED, SCALE
from harness.experiments.sweep.sweep_json import (
    Crossing,
    SweepAnswer,
    SweepPoint,
    SystemDifference,
    SystemRatio,
)
from harness.stats import crossing
from harness.stats.seeds import half_width, jackknife

Where: TypeAlias = tuple[tuple[str, Any], ...]
Line: TypeAlias = Sequence[SweepPoint]

MOST_SYSTEMS = 8
"""Systems of which each is compared with each of the others."""


def compared(info: SweepAnswer) -> SweepAnswer:
    """The answer with its crossings, and with its systems compared."""
    rates = _lines(info.points, RATE)
    return info.change(
        crossings=[
            _crossed(line, along, dict(others), goal)
            for along, lines in ((RATE, rates), (SCALE, _lines(info.points, SCALE)))
            for others, line in lines.items()
            for goal in info.goals
            if len(line) > 1
        ],
        ratios=list(_ratios(info.goals, rates)),
        differences=list(_differences(info.points)),
    )


def _lines(points: Sequence[SweepPoint], along: str) -> dict[Where, list[SweepPoint]]:
    """The points along an axis in its order, for every combination of the others; those without a bound are left."""
    lines: dict[Where, list[SweepPoint]] = {}
    for point in points:
        if along in point.values and point.bounds:
            others = tuple((name, value) for name, value in point.values.items() if name != along)
            lines.setdefault(others, []).append(point)
    return {others: sorted(line, key=lambda point: _value(point, along)) for others, line in lines.items()}


def _value(point: SweepPoint, along: str) -> float:
    return float(str(point.values[along]))


def _crossed(line: Line, along: str, where: dict[str, object], goal: float) -> Crossing:
    crossing = _found(line, along, goal)
    if crossing is None:
        why = "a bound on a percentile is part of the SLO, which attainment does not show"
        if all(bound.percentile is None for point in line for bound in point.bounds):
            why = "attainment is unknown, as the stream was held back"
        return Crossing(along=along, where=where, goal=goal, at=None, between=None, side=None, why=why)
    if crossing.at is None:
        unit = " req/s" if along == RATE else ""
        span = f"from {_value(line[0], along):g} to {_value(line[-1], along):g}{unit}"
        why = f"attainment is {crossing.side} the goal {span}"
        return Crossing(along=along, where=where, goal=goal, at=None, between=None, side=crossing.side, why=why)
    ends = jackknife(lambda seed: _log(line, along, goal, seed), _seeds(line))
    return Crossing(
        along=along,
        where=where,
        goal=goal,
        at=crossing.at,
        low=None if ends is None else math.exp(ends[0]),
        high=None if ends is None else math.exp(ends[1]),
        between=crossing.between,
        side=None,
        why=None,
    )


def _found(line: Line, along: str, goal: float, without: object = None) -> crossing.Crossing | None:
    """The crossing of the means over all seeds but one; None where a bound is on a percentile, or a point is empty."""
    if any(bound.percentile is not None for point in line for bound in point.bounds):
        return None
    runs = [[run for run in point.runs if run.valid and (without is None or run.seed != without)] for point in line]
    shares = [[run.attainment for run in at_point if run.attainment is not None] for at_point in runs]
    if not all(shares):
        return None
    return crossing.crossing(
        [_value(point, along) for point in line],
        [math.fsum(at_point) / len(at_point) for at_point in shares],
        [max(sum(run.requests for run in at_point), 1) for at_point in runs],
        goal,
        rising=along == SCALE,
    )


def _log(line: Line, along: str, goal: float, without: object = None) -> float | None:
    crossing = _found(line, along, goal, without)
    return None if crossing is None or crossing.at is None else math.log(crossing.at)


def _seeds(line: Line) -> list[object]:
    return list(dict.fromkeys(run.seed for point in line for run in point.runs if run.valid))


def ratio(base: Line, head: Line, goal: float) -> tuple[float, float | None, float | None] | None:
    """What `head` sustains over what `base` does, at a goal, and the ends of its interval where both share seeds.

    None where one of them does not cross the goal. Both are points by rising rate.
    """

    def log_ratio(without: object = None) -> float | None:
        logs = [_log(line, RATE, goal, without) for line in (base, head)]
        return None if logs[0] is None or logs[1] is None else logs[1] - logs[0]

    center = log_ratio()
    if center is None:
        return None
    ends = jackknife(log_ratio, _seeds(base)) if set(_seeds(base)) == set(_seeds(head)) else None
    return (math.exp(center), None, None) if ends is None else (math.exp(center), math.exp(ends[0]), math.exp(ends[1]))


def _ratios(goals: Sequence[float], lines: Mapping[Where, Line]) -> Iterator[SystemRatio]:
    """Each system over each that stands before it, under one SLO."""
    for base, head in combinations([*lines][:MOST_SYSTEMS], 2):
        if _scoring(base) == _scoring(head):
            for goal in goals:
                if interval := ratio(lines[base], lines[head], goal):
                    value, low, high = interval
                    yield SystemRatio(goal=goal, base=dict(base), head=dict(head), ratio=value, low=low, high=high)


def _scoring(values: Where) -> Where:
    return tuple(value for value in values if value[0] in RESCORED)


def _differences(points: Sequence[SweepPoint]) -> Iterator[SystemDifference]:
    """Attainment of each system less that of the first, at each rate that both have, over their common seeds."""
    first: dict[Where, SweepPoint] = {}
    for point in points:
        at_rate = tuple((name, value) for name, value in point.values.items() if name in (RATE, *RESCORED))
        base = first.setdefault(at_rate, point)
        shares = [{run.seed: run.attainment for run in p.runs if run.valid} for p in (base, point)]
        differences = [
            after - before
            for seed, after in shares[1].items()
            if seed is not None and after is not None and (before := shares[0].get(seed)) is not None
        ]
        if base is point or not differences or _system(base) != _system(next(iter(first.values()))):
            continue
        mean, half = math.fsum(differences) / len(differences), half_width(differences)
        yield SystemDifference(
            at=dict(at_rate),
            base=_system(base),
            head=_system(point),
            seeds=len(differences),
            difference=mean,
            low=None if half is None else mean - half,
            high=None if half is None else mean + half,
        )


def _system(point: SweepPoint) -> dict[str, object]:
    return {name: value for name, value in point.values.items() if name not in (RATE, *RESCORED)}
