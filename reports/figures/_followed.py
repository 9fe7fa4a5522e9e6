"""Attainment against rate as the sliders of a page move it: at first under the SLO itself."""

from collections.abc import Callable
from functools import partial

import numpy as np
import plotly.graph_objects as go

from harness.stats.curves import Crossing
from reports import _format, _replay
from reports._format import in_figure
from reports._replay import Cells, Replay, Scored
from reports.figures import _style as style
from reports.figures._systems import NO_CURVE

EACH = 5
"""Traces of a system: under the SLO itself (which stays), then both bounds, TTFT, TPOT, and where goals are crossed."""
_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")


def places(replay: Replay) -> list[list[int]]:
    """Per system the traces that follow the sliders: all bounds, TTFT, TPOT, crossings."""
    return [list(range(EACH * i + 1, EACH * (i + 1))) for i in range(len(replay.systems))]


def figure(replay: Replay) -> go.Figure | str:
    """The share of requests within the bounds of the sliders, against the rate."""
    if all(len(system.rates) < 2 for system in replay.systems):
        return NO_CURVE
    drawn = style.new(400)
    for number, system in enumerate(replay.systems):
        _draw(drawn, replay, system, number)
    title = f"rate per GPU ({replay.unit})" if "GPU" in replay.unit else f"rate ({replay.unit})"
    highest = max(rate.rate_rps / system.share for system in replay.systems for rate in system.rates)
    drawn.update_layout(
        xaxis=style.axis(title, range=[0, highest * 1.04]),
        yaxis=style.axis("requests within the bounds (%)", range=[-2, 104]),
    )
    for goal in replay.goals:
        style.level(drawn, goal * 100, f"goal {goal * 100:g}%")
    percentile = _replay.PERCENTILE if replay.open else ""
    rates = [rate for system in replay.systems for rate in system.rates]
    means = "Means over the seeds." if any(len(rate.runs) > 1 for rate in rates) else ""
    hollow = "Hollow points: a queue grew all through a run, so a longer run falls further."
    grown = any(rate.overloaded for rate in rates)
    notes = ["The thin grey line is the SLO itself and stays.", percentile, means, hollow if grown else ""]
    return style.done(drawn, _finding(replay), notes)


def _draw(drawn: go.Figure, replay: Replay, system: Scored, number: int) -> None:
    one = not replay.named
    prefix = "" if one else f"{in_figure(system.name)}: "
    color, symbol = _COLORS[number % len(_COLORS)], _SYMBOLS[number % len(_SYMBOLS)]
    x = np.array([rate.rate_rps for rate in system.rates]) / system.share
    ttft, tpot = replay.grid.axes
    joint = _percent(system, lambda run: _replay.at(run, ttft.start, tpot.start) / run.requests)
    alone = [_percent(system, partial(_alone, axis=i, place=a.start)) for i, a in enumerate(replay.grid.axes)]
    drawn.add_scatter(x=x, y=joint, name=f"{prefix}the SLO itself", mode="lines", showlegend=False, hoverinfo="skip",
                      line=style.line(style.GREY, "solid", 1), meta=style.MARKS)  # fmt: skip
    looks = ((joint, "all bounds", color, "solid", symbol, 3.0),
             (alone[0], "TTFT only", style.VERMILLION if one else color, "dot", "square", 1.5),
             (alone[1], "TPOT only", style.GREEN if one else color, "dash", "diamond", 1.5))  # fmt: skip
    for y, name, colored, dash, mark, width in looks:
        drawn.add_scatter(
            x=x, y=y, name=f"{prefix}{name}", mode="lines+markers", line=style.line(colored, dash, width),
            marker={"symbol": [f"{mark}-open" if rate.overloaded else mark for rate in system.rates], "size": 8,
                    "color": colored}, hovertemplate="%{x:.4r}: %{y:.1f}%",
        )  # fmt: skip
    goals = () if replay.open else replay.goals
    crossed = [(goal, found.at / system.share) for goal in goals if (found := _crossing(replay, system, goal)).at]
    drawn.add_scatter(
        x=[at for _, at in crossed], y=[goal * 100 for goal, _ in crossed], name=f"{prefix}goal crossed",
        mode="markers", meta=style.MARKS, showlegend=one, hovertemplate="%{y:g}% at %{x:.3r}",
        marker={"symbol": "circle-open", "size": 16, "color": color, "line": {"width": 3}},
    )  # fmt: skip


def _crossing(replay: Replay, system: Scored, goal: float) -> Crossing:
    ttft, tpot = replay.grid.axes
    return system.crossing(lambda run: _replay.at(run, ttft.start, tpot.start), goal)


def _percent(system: Scored, of: Callable[[Cells], float | None]) -> list[float | None]:
    means = [rate.mean(of) for rate in system.rates]
    return [None if value is None else value * 100 for value in means]


def _alone(run: Cells, axis: int, place: int) -> float | None:
    one = run.alone[axis]
    return float(one.shares()[place]) if one.requests and place < len(one.counts) else None


def _finding(replay: Replay) -> str:
    if replay.open:
        return "The sliders move the curve, which counts the bounds on single requests alone."
    texts = [_crossed(replay, system) for system in replay.systems]
    text = "; ".join([*texts, "the sliders move the curve"])
    return f"{text if replay.named else text[:1].upper() + text[1:]}."


def _crossed(replay: Replay, system: Scored) -> str:
    """How the first goal fares under the SLO itself."""
    found, goal = _crossing(replay, system, replay.goals[0]), f"{replay.goals[0] * 100:g}%"
    name = f"{system.name}: " if replay.named else ""
    if found.at is not None:
        at = f"{_format.number(found.at / system.share)} {replay.unit}"
        return f"{name}{goal} is crossed near {at} under the SLO itself"
    if len(system.rates) == 1:
        return f"{name}{goal} is {'reached' if found.side == 'above' else 'missed'} at its one rate"
    return f"{name}all rates lie {found.side} {goal}"
