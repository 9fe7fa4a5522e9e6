"""Attainment under other bounds: against SLO scale of a run, of an answer and of systems.

The curves DistServe (OSDI 2024, figures 8 and 9) draws from many runs; the scale at which a request turns from missed
to met is the greatest of its value / bound, so one stored run gives a whole curve exactly.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.experiments.rescore.slo_json import ScaleScore
from harness.metrics.stages import Margin, joint
from reports import _data, _format, _replay
from reports._format import in_figure
from reports._replay import Cells, Rate, Replay, Scored
from reports.figures import style
from reports.figures.style import Look
from reports.study import Study

UNKNOWN = "The bounds of the SLO are on times that are unknown in this run, so there is no attainment to draw."
FEW = "A picture needs two scales or more; the table has the requested one."
_GRID = 241
_MARKS = 12
"""Markers that tell a curve from the others."""


def _curves(found: Iterable[tuple[str, Any, Look]], factors: Any) -> go.Figure:
    """Shares over the scale: name, percent and look of each curve."""
    drawn = style.new()
    for name, y, look in found:
        style.curve(drawn, factors, y, name, look, style.OF_SCALE, marker={"maxdisplayed": _MARKS})
    return drawn


def slo_scale(run: Run) -> go.Figure | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale on the x axis."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    found = _data.margins(run)
    if not found:
        return UNKNOWN if any(b.percentile is None for b in _data.slo(run).bounds) else style.UNBOUND
    goal = _data.slo(run).goal
    together = joint(found)
    cross = crossing(together, goal)
    finite = together[np.isfinite(together) & (together > 0)]
    low = float(np.quantile(finite, 0.02)) * 0.8 if len(finite) else 0.25
    high = max(2.0, (cross or 1.0) * 1.3, float(np.quantile(finite, 0.995)) if len(finite) else 2.0)
    low, high = min(max(low, 0.01), 0.5), min(high, 1000.0)
    marks = [1.0] if cross is None or not low <= cross <= high else [1.0, cross]
    factors = np.unique(np.concatenate([np.geomspace(low, high, _GRID), marks]))

    def shares(ratio: np.ndarray) -> Any:
        return np.searchsorted(np.sort(ratio), factors, side="right") / len(ratio) * 100.0

    several = zip(found if len(found) > 1 else [], _styles(), strict=False)
    single = [(in_figure(f"{_name(margin)} only"), shares(margin.ratio), look) for margin, look in several]
    drawn = _curves([("all bounds", shares(together), style.ALL), *single], factors)
    x = style.log_axis("SLO scale (1 = the SLO of this run)", factors)
    style.axes(drawn, x, style.share_axis(style.WITHIN))
    style.goals(drawn, [goal])
    style.upright(drawn, 1.0, "SLO of this run", 1)
    reached = f"at no scale: {np.sum(~np.isfinite(together)):,} of {len(together):,} requests failed"
    if cross is not None:
        style.upright(drawn, cross, f"{goal * 100:g}% at scale {_format.number(cross)}")
        named = [m for m in found if np.isfinite(m.bound.limit)]
        bounds = [f"{_name(m)} {_format.seconds(m.bound.limit * cross)}" for m in named]
        reached = f"from scale {_format.number(cross)} on ({', '.join(bounds) or 'bounds of the requests'})"
    met = _format.share(float(np.mean(together <= 1.0)), goal)
    return style.done(drawn, style.finding({"Met the SLO of this run": [met], f"{goal * 100:g}% meet it": [reached]}))


def _name(margin: Margin) -> str:
    return _data.bound_label(margin.bound.metric, tag=margin.bound.tag)


def _styles() -> Iterator[Look]:
    while True:
        yield from style.BOUNDS


def crossing(ratio: np.ndarray, goal: float) -> float | None:
    """The smallest scale at which a share `goal` of all requests meets the bounds; None when none does."""
    needed = max(1, int(np.ceil(goal * len(ratio) - 1e-9)))
    at = float(np.sort(ratio)[needed - 1])
    return at if np.isfinite(at) else None


def of_answer(answer: ScaleScore, goals: Sequence[float]) -> go.Figure | str:
    """Attainment of an objective of `bench slo` at the scales requested."""
    factors = np.array(answer.factors, np.float64)
    if len(factors) < 2:
        return FEW
    together = np.array(answer.attainment, np.float64) * 100
    several = answer.bounds if len(answer.bounds) > 1 else {}
    single = [(f"{in_figure(name)} only", np.array(each, np.float64) * 100, look)
              for (name, each), look in zip(several.items(), _styles(), strict=False)]  # fmt: skip
    drawn = _curves([("all bounds", together, style.ALL), *single], factors)
    x = style.log_axis("SLO scale (1 = the objective)", factors)
    style.axes(drawn, x, style.share_axis("requests within (%)"))
    style.goals(drawn, goals)
    return style.done(drawn, style.finding({
        f"{goal * 100:g}% within": ["at no scale" if at is None else f"from scale {_format.number(at)} on"]
        for goal, at in zip(goals, answer.crossings, strict=True)
    }))  # fmt: skip


def slo_scale_rates(study: Study) -> go.Figure | str:
    """Share of requests within every bound times the scale, at the highest rate that reaches the first goal."""
    replay = _replay.of_study(study)
    if isinstance(replay, str):
        return replay
    factors = replay.grid.factors
    if not factors:
        return style.UNBOUND
    chosen = [(system, rate_of(replay, system)) for system in replay.systems[: len(style.SYSTEMS)]]
    at = [f"{_format.number(rate.rate_rps / system.share)} {replay.unit}" for system, rate in chosen]
    names = [f"{in_figure(system.name)} at {rate}" for (system, _), rate in zip(chosen, at, strict=True)]
    shares = [[share(rate, i) * 100 for i in range(len(factors))] for _, rate in chosen]
    found = zip(names, shares, (look._replace(width=3.0) for look in style.SYSTEMS), strict=False)
    drawn = _curves(found if replay.named else _one(chosen[0][1], shares[0]), np.array(factors))
    x = style.log_axis(style.SCALED, factors)
    style.axes(drawn, x, style.share_axis("requests within the bounds (%)"))
    style.goals(drawn, replay.goals)
    style.upright(drawn, 1.0)
    values: dict[str, list[str]] = {}
    for number, ((system, rate), own) in enumerate(zip(chosen, at, strict=True)):
        for place, goal in enumerate(replay.goals):
            known = crossed(replay, rate, goal)
            if known is not None:
                text = f"{goal * 100:g}% from scale {_format.number(known)}"
                style.upright(drawn, known, text, number * len(replay.goals) + place, look=style.SYSTEMS[number],
                              top=goal * 100)  # fmt: skip
            if place == 0:
                reached = "at no scale drawn" if known is None else f"from scale {_format.number(known)} on"
                name = f"{system.name} at {own}" if replay.named else f"At {own}"
                values[name] = [f"{goal * 100:g}% within the SLO {reached}"]
    return style.done(drawn, style.finding(values), _scale_notes(replay, chosen))


def _one(rate: Rate, together: list[float]) -> Iterator[tuple[str, list[float], Look]]:
    """All bounds of the one system, and each alone where that is known."""
    yield "all bounds", together, style.ALL
    for axis, (name, look) in enumerate((("TTFT only", style.TTFT), ("TPOT only", style.TPOT))):
        alone = [rate.mean(partial(_scaled_alone, axis=axis, factor=i)) for i in range(len(together))]
        known = [mean * 100 for mean in alone if mean is not None]
        if len(known) == len(alone):
            yield name, known, look


def rate_of(replay: Replay, system: Scored) -> Rate:
    """The highest rate at which the mean attainment reaches the first goal; the lowest where none does."""
    own = replay.grid.factors.index(1.0)
    kept = [rate for rate in system.rates if share(rate, own) >= replay.goals[0]]
    return kept[-1] if kept else system.rates[0]


def share(rate: Rate, factor: int) -> float:
    """The mean share of requests within every bound times a factor."""
    return rate.mean(lambda run: int(run.scaled[factor]) / run.requests) or 0.0


def _scaled_alone(run: Cells, axis: int, factor: int) -> float | None:
    one = run.alone[axis]
    return None if one.scaled is None or not one.requests else float(one.scaled[factor]) / one.requests


def crossed(replay: Replay, rate: Rate, goal: float) -> float | None:
    """The scale from which on the mean reaches a goal, between two factors linearly in the logarithm; None if none."""
    found = [share(rate, i) for i in range(len(replay.grid.factors))]
    reached = [i for i, value in enumerate(found) if value >= goal]
    if not reached or reached[0] == 0:
        return None
    right = reached[0]
    ends = np.log(replay.grid.factors[right - 1 : right + 1])
    part = (goal - found[right - 1]) / (found[right] - found[right - 1])
    return float(np.exp(ends[0] + part * (ends[1] - ends[0])))


def _scale_notes(replay: Replay, chosen: Sequence[tuple[Scored, Rate]]) -> list[str]:
    goal, own = f"{replay.goals[0] * 100:g}%", replay.grid.factors.index(1.0)
    short = [system.name for system, rate in chosen if share(rate, own) < replay.goals[0]]
    seeds, more = max(len(rate.runs) for _, rate in chosen), len(replay.systems) - len(chosen)
    several = any(len(system.rates) > 1 for system, _ in chosen)
    who = f" ({', '.join(short)})" if replay.named else ""
    return [
        f"The rate is the highest one tried at which {goal} is reached." if several else "",
        _replay.PERCENTILE if replay.open else "",
        f"At no rate tried {goal} is reached{who}, so the lowest is drawn." if short else "",
        f"Means over {seeds} seeds." if seeds > 1 else "",
        f"Systems that are not drawn: {more}." if more > 0 else "",
    ]
