"""Nights of a series as panels over the date, one for each metric: values, what they were held to, steps, gaps."""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports._format import clean, in_figure
from reports.answers.trend import format_night, format_step
from reports.figures import _style as style
from reports.figures._trend_panel import Info, Panel, panels

_FEW_DAYS, _DAY_MS = 14, 86_400_000
_PANEL_PX, _REST_PX = 150, 130
_SIDES = {
    "worse": (style.VERMILLION, "diamond", "step to the worse"),
    "better": (style.GREEN, "triangle-up", "step to the better"),
}


def figure(info: Info, *, judged: bool) -> go.Figure | None:
    """The panels above one another; None where no metric is of that kind."""
    found = panels(info, judged=judged)
    if not found:
        return None
    drawn = style.panels([1.0] * len(found), _REST_PX + _PANEL_PX * len(found))
    named: set[str] = set()
    several, ticks = len(info["series"]) > 1, _ticks(found)
    for row, panel in enumerate(found, start=1):
        for name, trace in _traces(panel):
            drawn.add_scatter(row=row, col=1, name=name, legendgroup=name, showlegend=name not in named, **trace)
            named.add(name)
        _lines(drawn, row, panel, labels=row == 1)
        head = f"{in_figure(panel.series['name'], 30)}<br>" if several else ""
        title = f"{head}{in_figure(panel.metric['name'], 30)}<br>({panel.unit})"
        drawn.update_yaxes(style.axis(title, range=list(panel.edges)), row=row, col=1)
        last = row == len(found)
        drawn.update_xaxes(style.axis("night (date, UTC)" if last else "", type="date", **ticks), row=row, col=1)
    return style.done(drawn, _finding(found), _notes(found))


def _ticks(found: Sequence[Panel]) -> dict[str, object]:
    """Ticks at whole days where so few are drawn that plotly would put some between them."""
    days = [dt.date.fromisoformat(at[:10]) for panel in found for at in (panel.at[0], panel.at[-1])]
    span = (max(days) - min(days)).days
    if span > _FEW_DAYS:
        return {}
    return {
        "tick0": min(days).isoformat(),
        "dtick": _DAY_MS * (1 if span <= _FEW_DAYS / 2 else 2),
        "tickformat": "%b %-d\n%Y",
    }


def _traces(panel: Panel) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "value of the night", _values(panel)
    yield "value of the night", _connected(panel)
    exact = panel.series["exact"]
    yield "the night before" if exact else "median of the 7 nights before", _reference(panel)
    for side, (color, symbol, name) in _SIDES.items():
        if trace := _steps(panel, side, color, symbol):
            yield name, trace
    if trace := _without(panel):
        yield "no valid run", trace
    if trace := _overloaded(panel):
        yield "overloaded: no value", trace


def _values(panel: Panel) -> dict[str, Any]:
    """A dot for each night, with its interval where the run tells one."""
    y, low, high = (panel.scaled(key) for key in ("value", "low", "high"))
    trace: dict[str, Any] = {
        "x": panel.at, "y": np.array(y), "mode": "markers",
        "marker": {"color": style.BLUE, "size": 6},
        "text": [in_figure(night["commit"] or "", 20) for night in panel.nights],
        "hovertemplate": f"%{{x}}: %{{y:,.4~g}} {panel.unit} %{{text}}",
    }  # fmt: skip
    if any(math.isfinite(end) for end in low):
        up, down = (np.abs(np.array(end) - np.array(y)) for end in (high, low))
        trace["error_y"] = {
            "type": "data", "symmetric": False, "array": up, "arrayminus": down,
            "color": style.BLUE, "thickness": 1, "width": 2,
        }  # fmt: skip
    return trace


def _connected(panel: Panel) -> dict[str, Any]:
    """The line through the dots, with a gap at nights without a value and where nothing is connected."""
    x: list[str] = []
    y: list[float] = []
    for at, value in zip(panel.at, panel.scaled("value"), strict=True):
        if at in panel.breaks:
            x.append(at)
            y.append(math.nan)
        x.append(at)
        y.append(value)
    return {
        "x": x, "y": np.array(y), "mode": "lines", "line": style.line(style.BLUE, width=1.2), "hoverinfo": "skip",
        "meta": style.MARKS,
    }  # fmt: skip


def _reference(panel: Panel) -> dict[str, Any]:
    """What each night was held to, as a step line."""
    return {
        "x": panel.at, "y": np.array(panel.scaled("reference")), "mode": "lines", "hoverinfo": "skip",
        "connectgaps": False, "line": {**style.line(style.GREY, "dash", 1.8), "shape": "hvh"},
    }  # fmt: skip


def _steps(panel: Panel, side: str, color: str, symbol: str) -> dict[str, Any] | None:
    """The first nights of the steps to that side, the last one with its commit."""
    nights = {str(night["night"]): night for night in panel.nights}
    steps = [s for s in panel.metric["steps"] if s["side"] == side and str(s["first"]) in nights]
    if not steps:
        return None
    values = [nights[str(step["first"])]["value"] for step in steps]
    y = [panel.edges[1] if value is None else panel.scale * value for value in values]
    rises = panel.metric["better"] == "lower" if side == "worse" else panel.metric["better"] == "higher"
    return {
        "x": [str(step["first"]) for step in steps], "y": np.array(y), "mode": "markers+text",
        "marker": {"color": color, "symbol": symbol, "size": 11, "line": {"color": color, "width": 1}},
        "text": [""] * (len(steps) - 1) + [in_figure((steps[-1]["commit"] or steps[-1]["first"])[:10], 20)],
        "textposition": "top left" if rises else "bottom left", "textfont": {"size": 11},
        "hovertext": [in_figure(_step(panel.metric, step), 200) for step in steps], "hoverinfo": "text",
        "meta": style.MARKS,
    }  # fmt: skip


def _without(panel: Panel) -> dict[str, Any] | None:
    """Nights without a valid run at the lower edge, with the reason."""
    why = {str(gap["night"]): gap["why"] for gap in panel.series["gaps"]}
    there = [at for at in panel.at if at in why]
    if not there:
        return None
    return {
        "x": there, "y": [_inside(panel, 0.05)] * len(there), "mode": "markers",
        "marker": {"color": style.GREY, "symbol": "x", "size": 8},
        "hovertext": [f"{at}: {in_figure(why[at], 120)}" for at in there], "hoverinfo": "text", "meta": style.MARKS,
    }  # fmt: skip


def _overloaded(panel: Panel) -> dict[str, Any] | None:
    """Nights whose queue grew without end, at the upper edge."""
    there = [night for night in panel.nights if night["overloaded"]]
    if not there:
        return None
    return {
        "x": [str(night["night"]) for night in there], "y": [_inside(panel, 0.95)] * len(there), "mode": "markers",
        "marker": {"color": style.VERMILLION, "symbol": "triangle-up-open", "size": 10, "line": {"width": 2}},
        "hovertext": [f"{night['night']}: overloaded, so it has no latency" for night in there],
        "hoverinfo": "text", "meta": style.MARKS,
    }  # fmt: skip


def _inside(panel: Panel, share: float) -> float:
    low, high = panel.edges
    return low + share * (high - low)


def _lines(drawn: go.Figure, row: int, panel: Panel, *, labels: bool) -> None:
    """A vertical line with its letter where hardware, versions or what is sent changed."""
    number = "" if row == 1 else str(row)
    for label, night, _ in panel.lines:
        dash = "solid" if label.isupper() else "dot"
        drawn.add_shape(
            type="line", x0=night, x1=night, y0=0, y1=1, xref=f"x{number}", yref=f"y{number} domain",
            line={"color": style.GREY, "width": 1.5, "dash": dash}, layer="below",
        )  # fmt: skip
        if labels:
            drawn.add_annotation(
                x=night, y=1, xref=f"x{number}", yref=f"y{number} domain", text=label, showarrow=False,
                yanchor="top", xanchor="left", font={"size": 12, "color": style.GREY},
            )  # fmt: skip


def _step(metric: Info, step: Info) -> str:
    change, level = format_step(metric, step)
    return f"from {format_night(step['first'], step['commit'])} on: {metric['name']} {change} ({level})"


def _finding(found: Sequence[Panel]) -> str:
    """The steps that are still news, else that there is none."""
    news = [
        f"{_of(panel, found)}{_step(panel.metric, panel.metric['steps'][-1])}"
        for panel in found
        if panel.metric["steps"] and panel.metric["state"] in ("regressed", "improved", "changed", "longer")
    ]
    if news:
        more = f"; and {len(news) - 3} more" if len(news) > 3 else ""
        text = "; ".join(news[:3]) + more
        return f"{text[0].upper()}{text[1:]}."
    return _without_news(found)


def _without_news(found: Sequence[Panel]) -> str:
    """That no step is new; the latest of those that stayed."""
    last = max(panel.at[-1] for panel in found)
    names = ", ".join(dict.fromkeys(clean(panel.metric["name"], 60) for panel in found))
    few = all(panel.metric["state"] == "few" for panel in found)
    nights = _format.count(max(len(panel.metric["nights"]) for panel in found), "night")
    if few:
        return f"{nights} are too few to tell a step in {names}, up to {last}."
    if stayed := [(panel, step) for panel in found for step in panel.metric["steps"] if step["ended"] is None]:
        panel, step = max(stayed, key=lambda one: str(one[1]["first"]))
        older = f"{_of(panel, found)}{_step(panel.metric, step)}"
        return f"No new step in {names}: {nights}, up to {last}; an older one, {older}."
    return f"No step that lasts in {names}: {nights}, up to {last}."


def _of(panel: Panel, found: Sequence[Panel]) -> str:
    several = len({one.series["name"] for one in found}) > 1
    return f"{clean(panel.series['name'], 60)}: " if several else ""


def _notes(found: Sequence[Panel]) -> Iterator[str]:
    firsts = list({id(panel.series): panel for panel in found}.values())
    if any(math.isfinite(low) for panel in found for low in panel.scaled("low")):
        yield "Bars are the 95 % interval that the run of a night told for itself."
    if any(panel.series["exact"] for panel in firsts):
        yield "The clock is virtual: values have no noise, so any difference is one of the system."
    if lines := [panel.lines for panel in firsts if panel.lines]:
        letters = "; ".join(", ".join(f"{label}: {night}" for label, night, _ in each) for each in lines)
        yield (
            "Vertical lines: what must be equal changed (capital letter, nothing is connected across it), or a "
            f"version did (small letter, dotted): {letters}."
        )
    if cut := [panel for panel in found if len(panel.nights) < len(panel.metric["nights"])]:
        yield f"The latest {len(cut[0].nights):,} of {len(cut[0].metric['nights']):,} nights are drawn."
