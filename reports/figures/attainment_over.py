"""Attainment and goodput over another option than the rate: SLO scale, burstiness, users, replicas, a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from harness.experiments.sweep.axes import RATE, SCALE
from reports import _format
from reports._format import clean, in_figure
from reports.figures import _style as style
from reports.figures import _systems
from reports.study.sweep import at, axis_title

if TYPE_CHECKING:
    from reports.study import Study

ORDER = 4
OF = "study"
SECTION = "over"
TITLE = "Attainment over another option"
NONE = "Nothing but the rate was varied; bench sweep --over NAME=LIST shows attainment over another option."

_ROOM = 0.15
"""Free part of a numeric axis at its left end, where the goals are named."""

Info = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Line:
    """The points along an axis at one combination of the others."""

    name: str
    values: list[Any]
    points: list[Mapping[str, Any]]


def along(info: Mapping[str, Any]) -> str | None:
    """The axis that is drawn: the first with numbers besides the rate, else the first besides the rate."""
    others = [axis for axis in info["axes"] if axis["name"] != RATE and len(axis["values"]) > 1]
    numbers = [axis for axis in others if _numeric(axis["values"])]
    return next((str(axis["name"]) for axis in (*numbers, *others)), None)


def figure(study: Study) -> go.Figure | str:
    """Share of requests within the SLO above the requests per second within it, over the values of an option."""
    info = next((source for source in study.sources if source.get("kind") == "sweep" and along(source)), None)
    name = None if info is None else along(info)
    if info is None or name is None:
        return NONE
    every = _lines(info, name)
    lines = every[: _systems.MOST]
    if not lines:
        return "No run has ended that could be scored."
    drawn = style.panels([0.6, 0.4], 620, spacing=0.06)
    for number, line in enumerate(lines):
        _draw(drawn, line, number, legend=len(lines) > 1)
    _axes(drawn, info, name, lines)
    grown = any(point["overloaded"] for line in lines for point in line.points)
    hollow = "Hollow points: a queue grew all through a run, so a longer run falls further." if grown else ""
    left = len(every) - len(lines)
    more = f"{_format.count(left, 'more line')} would not be told apart; the tables have all." if left else ""
    return style.done(drawn, _finding(info, name, lines), [_band(lines), hollow, more])


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _lines(info: Mapping[str, Any], name: str) -> list[_Line]:
    found: dict[tuple[tuple[str, Any], ...], list[Mapping[str, Any]]] = {}
    for point in info["points"]:
        if point["attainment"] is not None:
            where = tuple((key, value) for key, value in point["values"].items() if key != name)
            found.setdefault(where, []).append(point)
    return [_line(where, points, name) for where, points in found.items()]


def _line(where: tuple[tuple[str, Any], ...], points: list[Mapping[str, Any]], name: str) -> _Line:
    values: list[Any] = [in_figure(point["values"][name], 40) for point in points]
    if _numeric([point["values"][name] for point in points]):
        points = sorted(points, key=lambda point: float(point["values"][name]))
        values = [float(point["values"][name]) for point in points]
    return _Line(in_figure(at(where)), values, points)


def _draw(drawn: go.Figure, line: _Line, number: int, *, legend: bool) -> None:
    color, symbol = _systems.look(number)
    shapes = [f"{symbol}-open" if point["overloaded"] else symbol for point in line.points]
    for row, key, name in ((1, "attainment", "attainment"), (2, "goodput_rps", "goodput")):
        spreads = [point[key] for point in line.points]
        scale = 100.0 if row == 1 else 1.0
        values = np.array([np.nan if spread is None else spread["mean"] * scale for spread in spreads])
        ends = np.full((len(spreads), 2), np.nan)
        for i, spread in enumerate(spreads):
            if spread is not None:
                low, high = ("least", "most") if spread["low"] is None else ("low", "high")
                ends[i] = spread[low] * scale, spread[high] * scale
        drawn.add_scatter(
            x=line.values, y=values, row=row, col=1, line=style.line(color),
            mode="lines+markers" if _numeric(line.values) else "markers",
            marker={"symbol": shapes, "size": 9, "color": color}, name=line.name or name, legendgroup=line.name,
            showlegend=legend and row == 1, hovertemplate="%{x}: %{y:.4r}",
            error_y={"type": "data", "symmetric": False, "array": ends[:, 1] - values,
                     "arrayminus": values - ends[:, 0], "color": color, "thickness": 1.2, "width": 4},
        )  # fmt: skip


def _axes(drawn: go.Figure, info: Mapping[str, Any], name: str, lines: Sequence[_Line]) -> None:
    values = [value for line in lines for value in line.values]
    title = in_figure(axis_title(name))
    if not _numeric(values):
        kind = style.axis(title, type="category", range=[-0.5, len(dict.fromkeys(values)) - 0.5])
    elif name == SCALE and min(values) > 0:
        kind = style.log_axis(title, [*values, min(values) * (min(values) / max(values)) ** _ROOM])
    else:
        low, high = min(values), max(values)
        kind = style.axis(title, range=[low - _ROOM * (high - low), high + 0.04 * (high - low)])
    drawn.update_xaxes({**kind, "title": {"text": ""}}, row=1, col=1)
    drawn.update_xaxes(kind, row=2, col=1)
    drawn.update_yaxes(style.axis("requests within<br>the SLO (%)", range=[-2, 104]), row=1, col=1)
    drawn.update_yaxes(style.axis("goodput (req/s)", rangemode="tozero"), row=2, col=1)
    for goal in info["goals"]:
        style.level(drawn, goal * 100, f"goal {goal * 100:g}%", row=1, col=1)


def _band(lines: Sequence[_Line]) -> str:
    spreads = [point["attainment"] for line in lines for point in line.points]
    if max(spread["n"] for spread in spreads) == 1:
        return "One run at each point, so there is no interval."
    known = [spread["low"] is not None for spread in spreads]
    rest = ", or the range of the seeds where they do not give one" if any(known) and not all(known) else ""
    return f"Bars: {'95% interval of the mean over seeds' if any(known) else 'range of the seeds'}{rest}."


def _finding(info: Mapping[str, Any], name: str, lines: Sequence[_Line]) -> str:
    found = [crossing for crossing in info["crossings"] if crossing["along"] == name and crossing["at"] is not None]
    if found:
        told = [
            _format.number(one["at"]) + (f" ({where})" if (where := at(one["where"].items())) else "")
            for one in found
            if one["goal"] == found[0]["goal"]
        ]
        goal = f"{100 * found[0]['goal']:g}%"
        return f"{goal} of the requests keep the SLO from {axis_title(name)} {', '.join(told[:4])} on, interpolated."
    told = []
    for line in lines[:3]:
        best = max(zip(line.points, line.values, strict=True), key=lambda pair: pair[0]["attainment"]["mean"])
        worst = min(zip(line.points, line.values, strict=True), key=lambda pair: pair[0]["attainment"]["mean"])
        shares = [_format.share(point["attainment"]["mean"]) for point, _ in (worst, best)]
        ends = f"{shares[0]} at {_value(worst[1])} to {shares[1]} at {_value(best[1])}"
        told.append(f"{ends}{f' ({line.name})' if line.name else ''}")
    return f"Attainment over {clean(name, 40)} goes from {'; '.join(told)}."


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else _format.plain(value)
