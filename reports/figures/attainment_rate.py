"""Attainment against the rate per GPU: the curve of goodput, with a band over seeds and the rates that are carried.

After figures 8 and 9 of DistServe (OSDI 2024): all bounds together solid, TTFT alone dotted, TPOT alone dashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from harness.experiments.capacity.conditions import JOINT
from harness.stats import curves
from reports import _data, _format
from reports._format import clean, in_figure
from reports.figures import _share, _systems
from reports.figures import _style as style
from reports.figures._systems import Line

if TYPE_CHECKING:
    from reports.study import Capacity, Point, Study, System

ORDER = 1
OF = "study"
SECTION = "figures"
TITLE = "Attainment against rate"
_BOUNDS = {"ttft": ("dot", "square", style.VERMILLION), "tpot": ("dash", "diamond", style.GREEN)}
_OTHERS = (("dashdot", "x", style.PURPLE), ("longdash", "cross", style.OCHRE), ("longdashdot", "star", style.GREY))
"""Looks of bounds on other metrics and of those of a class."""
_WITH_BOUNDS = 2
"""Systems up to which the bounds are drawn one by one."""
BY_PERCENTILE = "Every bound is on a percentile of a run, so there is no share of requests to draw."
_NAMED = 3
"""Systems that a sentence can name."""


def figure(study: Study) -> go.Figure | str:
    """Share of requests within the SLO against the rate, for each system."""
    lines = [line for line in _systems.lines(study) if any(point.attainment for point in line.points)]
    if not lines:
        points = [point for line in _systems.lines(study) for point in line.points]
        return BY_PERCENTILE if _percentile(points) else _systems.NO_CURVE
    drawn = style.new(460)
    for line in lines:
        _draw(drawn, line, bounds=len(lines) <= _WITH_BOUNDS, alone=len(lines) == 1)
    shares = [*(share for trace in drawn.data for share in trace.y), *(goal * 100 for goal in study.goals)]
    drawn.update_layout(
        xaxis=_systems.rate_axis(study, lines), yaxis=_share.axis("requests within the SLO (%)", shares)
    )
    for goal in study.goals:
        style.level(drawn, goal * 100, f"goal {goal * 100:g}%")
    carried = [(line, line.system.carried(goal)) for goal in study.goals for line in lines]
    known = [(line, told) for line, told in carried if told is not None and told.rps is not None]
    for number, (line, told) in enumerate(known):
        _drop(drawn, study, line, told, number)
    return style.done(drawn, finding(study), _notes(study, lines))


def _draw(drawn: go.Figure, line: Line, *, bounds: bool, alone: bool) -> None:
    points = [point for point in line.points if point.attainment is not None]
    x = line.x[[point.attainment is not None for point in line.points]]
    _band(drawn, line, points, x)
    every = "bounds on single requests" if _percentile(points) else "all bounds"
    joint = f"{line.prefix}{every}" if bounds else line.prefix.removesuffix(": ")
    look = style.line(line.color, width=3)
    if _searched(line):
        _curve(drawn, x, [_mean(p) for p in points], f"{joint}, as found", look, line.ring(points), mode="markers")
        falling = curves.falling([_mean(p) for p in points], [max(p.requests, 1) for p in points])
        drawn.add_scatter(x=x, y=np.array(falling) * 100, name=joint, mode="lines", line=look, hoverinfo="skip")
    else:
        _curve(drawn, x, [_mean(p) for p in points], joint, look, line.ring(points))
    single = {kept.text: kept for point in points for kept in point.bounds
              if kept.attainment is not None and kept.percentile is None}  # fmt: skip
    others = cycle(_OTHERS)
    for text, kept in single.items() if bounds and len(single) > 1 else ():
        # bounds on every request always have the same look
        dash, symbol, color = _BOUNDS[kept.metric] if kept.metric in _BOUNDS and kept.tag is None else next(others)
        shares = [[b.attainment.mean for b in p.bounds if b.text == text and b.attainment is not None] for p in points]
        values = [share[0] if share else np.nan for share in shares]
        name = in_figure(f"{_data.bound_label(kept.metric, tag=kept.tag)} only")
        own = color if alone else line.color
        shape = [f"{symbol}-open" if point.overloaded else symbol for point in points]
        _curve(drawn, x, values, f"{line.prefix}{name}", style.line(own, dash, 1.5), shape)


def _searched(line: Line) -> bool:
    """Whether the points are those of a search: of few seeds each, so that the curve is drawn through all of them."""
    return any(told.how == "searched" for told in line.system.capacities)


def _curve(
    drawn: go.Figure, x: np.ndarray, y: Sequence[float], name: str, line: dict[str, object], symbols: list[str],
    mode: str = "lines+markers",
) -> None:  # fmt: skip
    drawn.add_scatter(
        x=x, y=np.array(y) * 100, name=name, mode=mode, line=line,
        marker={"symbol": symbols, "size": 8, "color": line["color"]},
        hovertemplate="%{x:.4r}: %{y:.1f}%",
    )  # fmt: skip


def _band(drawn: go.Figure, line: Line, points: Sequence[Point], x: np.ndarray) -> None:
    """The interval of the mean over the seeds, or their range; nothing of one seed."""
    if max(point.seeds for point in points) < 2:
        return
    ends = [point.attainment.ends for point in points if point.attainment is not None]
    for number, (end, name) in enumerate((("lower", 0), ("upper", 1))):
        drawn.add_scatter(
            x=x, y=np.array([both[name] for both in ends]) * 100, mode="lines", showlegend=False, hoverinfo="skip",
            name=f"{line.prefix}{end} end of the band", line={"width": 0, "color": style.faint(line.color)},
            fill="tonexty" if number else None, fillcolor=style.faint(line.color),
        )  # fmt: skip


def _mean(point: Point) -> float:
    return np.nan if point.attainment is None else point.attainment.mean


def _drop(drawn: go.Figure, study: Study, line: Line, told: Capacity, number: int) -> None:
    """A line from the goal down to the rate that is carried, with its interval where it was searched."""
    assert told.rps is not None
    share, y = study.share(line.system), told.goal * 100
    x = told.rps / share
    drawn.add_shape(type="line", x0=x, x1=x, y0=-2, y1=y, line={"color": line.color, "width": 1.5, "dash": "dot"})
    if told.low_rps is not None and told.high_rps is not None:
        drawn.add_shape(
            type="rect", x0=told.low_rps / share, x1=told.high_rps / share, y0=-2, y1=y, layer="below",
            fillcolor=style.faint(line.color), line={"width": 0},
        )  # fmt: skip
    left = x > 0.6 * float(max(line.x))
    drawn.add_annotation(
        x=_systems.place(drawn, x), y=0.03 + 0.07 * number, yref="y domain", text=_label(told, share), showarrow=False,
        xanchor="right" if left else "left", xshift=-4 if left else 4, yanchor="bottom", font={"size": 12},
    )  # fmt: skip


def _label(told: Capacity, share: float) -> str:
    text = f"{told.goal * 100:g}% up to {_format.number((told.rps or 0.0) / share)}"
    if told.low_rps is None or told.high_rps is None:
        return text
    return f"{text} ({_format.number(told.low_rps / share)} to {_format.number(told.high_rps / share)})"


def finding(study: Study) -> str:
    """What is carried at the first goal; of several systems the ratio of the best to the others."""
    goal = study.goals[0] if study.goals else 0.9
    told = [(system, one) for system in study.systems if (one := system.carried(goal)) is not None]
    known = [(system.name, one.rps / study.share(system), one) for system, one in told if one.rps]
    if not known:
        return _not_crossed(goal, told)
    known.sort(key=lambda found: -found[1])
    (name, best, how), *others = known
    sure = "found by a search" if how.how == "searched" else "interpolated between the rates tried"
    if len(study.systems) == 1 and (rule := _rule(study)):
        return (
            f"With definition {rule}, {_format.number(best)} {study.rate_unit} is carried at {goal * 100:g}%, {sure}."
        )
    if len(study.systems) == 1:
        return f"Attainment falls below {goal * 100:g}% at {_format.number(best)} {study.rate_unit}, {sure}."
    text = f"At {goal * 100:g}% {name} carries {_format.number(best)} {study.rate_unit} ({sure})"
    beside = [f"{_format.number(best / rps)} times that of {other} ({_format.number(rps)})"
              for other, rps, _ in others[:_NAMED]]  # fmt: skip
    return "; ".join([", ".join([text, *beside]), *_beyond(told)]) + "."


def _rule(study: Study) -> str:
    """The definition of capacity under which a search went by something else than all bounds together."""
    told = [str(source.get("definition") or JOINT) for source in study.sources]
    return clean(next((name for name in told if name != JOINT), ""), 40)


def _not_crossed(goal: float, told: Sequence[tuple[System, Capacity]]) -> str:
    if len(told) == 1 and told[0][1].said:
        return f"{goal * 100:g}% is not crossed: {told[0][1].said}."
    beyond = "; ".join(_beyond(told))
    return f"{goal * 100:g}% is not crossed by any of the rates tried{f': {beyond}' if beyond else ''}."


def _beyond(told: Sequence[tuple[System, Capacity]]) -> Iterator[str]:
    """The systems that stay on one side of the goal."""
    for side in ("above", "below"):
        names = [system.name for system, one in told if one.rps is None and one.side == side]
        if names:
            shown = ", ".join(names) if len(names) <= _NAMED else f"{len(names)} systems"
            yield f"{shown} stay{'s' if len(names) == 1 else ''} {side} the goal at every rate tried"


def _notes(study: Study, lines: Sequence[Line]) -> list[str]:
    points = [point for line in lines for point in line.points if point.attainment is not None]
    search = "Of a search the line is made to fall, through points of few seeds." if any(map(_searched, lines)) else ""
    rule = "What is carried does not go by the curve of all bounds." if _rule(study) else ""
    many = "" if len(lines) <= _WITH_BOUNDS else "The single bounds are in the table of the points."
    texts = in_figure(", ".join(_percentile(points)))
    apart = f"No part of these shares: {texts}, kept or broken by a run as a whole." if texts else ""
    return [
        _band_note(points),
        search,
        _systems.hollow(points),
        rule,
        many,
        apart,
        _systems.left_out(study, lines),
    ]


def _percentile(points: Sequence[Point]) -> list[str]:
    """The bounds on percentiles."""
    return list(dict.fromkeys(kept.text for p in points for kept in p.bounds if kept.percentile is not None))


def _band_note(points: Sequence[Point]) -> str:
    if max(point.seeds for point in points) < 2:
        return "One run at each point, so there is no band."
    known = [point.attainment is not None and point.attainment.low is not None for point in points]
    if not any(known):
        return f"Bands: the range of the seeds ({_systems.runs(points)})."
    rest = "" if all(known) else ", or the range of the seeds where they do not give one"
    return f"Bands: 95% interval of the mean over seeds{rest} ({_systems.runs(points)})."
