"""Runs of a series as panels over the date, one for each metric: values, the reference, changes, gaps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.experiments.compare.compare_json import RunValue, Step, TrendAnswer, TrendMetric, TrendSeries
from reports import _format
from reports._format import clean, in_figure
from reports.answers.trend import MOST_DRAWN, format_night, format_step
from reports.figures import style
from reports.figures.style import Look

_FEW_DAYS = 14
_PANEL_PX, _REST_PX = 150, 130
_SIDES = {
    "worse": ("change to the worse", Look(style.VERMILLION, symbol="diamond")),
    "better": ("change to the better", Look(style.GREEN, symbol="triangle-up")),
}


def trend(info: TrendAnswer, most: int = MOST_DRAWN) -> go.Figure | str:
    """Return a panel for each judged metric of each series, above one another, with the latest `most` runs."""
    rows = [
        Panel(series, metric, metric.runs[-most:], *_unit(metric, metric.runs[-most:]))
        for series in info.series
        for metric in series.judged
    ]
    if not rows:
        return "No valid run has a judged metric (mean TTFT and TPOT, failures, capacity); bench report RUN says why."
    drawn = style.panels([1.0] * len(rows), _REST_PX + _PANEL_PX * len(rows))
    in_legend: set[str] = set()
    several, ticks = len(info.series) > 1, _ticks(rows)
    for row, panel in enumerate(rows, start=1):
        for name, trace in _traces(panel):
            drawn.add_scatter(row=row, col=1, name=name, legendgroup=name, showlegend=name not in in_legend, **trace)
            in_legend.add(name)
        head = f"{in_figure(panel.series.name, 30)}<br>" if several else ""
        title = f"{head}{in_figure(panel.metric.name, 30)}<br>({panel.unit})"
        x = style.axis("night (date, UTC)" if row == len(rows) else "", type="date", **ticks)
        style.axes(drawn, x, style.axis(title, range=list(panel.edges)), row)
        _lines(drawn, row, panel)
    return style.done(drawn, _finding(rows), _notes(rows))


@dataclass(frozen=True, slots=True)
class Panel:
    """A metric of a series: its runs, and `scale`, by which its values become those of `unit`."""

    series: TrendSeries
    metric: TrendMetric
    runs: Sequence[RunValue]
    unit: str
    scale: float

    @property
    def at(self) -> list[str]:
        """Dates of the runs."""
        return [run.night for run in self.runs]

    def scaled(self, key: str) -> list[float]:
        """Values of the runs in the unit of the panel, NaN where there is none."""
        return [math.nan if value is None else self.scale * value for value in (getattr(run, key) for run in self.runs)]

    @property
    def edges(self) -> tuple[float, float]:
        """Lower and upper end of what is drawn, with room for marks at both."""
        keys = ("value", "low", "high", "reference")
        found = [v for key in keys for v in self.scaled(key) if math.isfinite(v)] or [0.0]
        low, high = min(found), max(found)
        room = 0.24 * (high - low) or 0.1 * abs(high) or 1.0
        floor = -0.12 * (high + room) if low >= 0 else -math.inf  # nothing that is followed can be negative
        return max(low - room, floor), high + room

    @property
    def breaks(self) -> set[str]:
        """Runs that are not connected with the one before."""
        return {one.night for one in self.series.breaks}

    @property
    def lines(self) -> dict[str, str]:
        """Night of each vertical line among its runs -> its dash: nothing is connected across a solid one."""
        dashes = {one.night: "dot" for one in self.series.versions} | dict.fromkeys(self.breaks, "solid")
        return {night: dash for night, dash in dashes.items() if night in self.at}


def _unit(metric: TrendMetric, runs: Sequence[RunValue]) -> tuple[str, float]:
    if metric.unit == "s":
        unit = _format.unit_of(run.value for run in runs)
        return unit, 1000.0 if unit == "ms" else 1.0
    if metric.unit == "share":
        return "%", 100.0
    return ("req/s" if metric.unit == "1/s" else in_figure(metric.unit, 20)), 1.0


def _ticks(rows: Sequence[Panel]) -> dict[str, object]:
    """Return a tick for each day of a few, because plotly would put some between them."""
    days = sorted({at[:10] for panel in rows for at in panel.at})
    return {"tickvals": days, "tickformat": "%b %-d\n%Y"} if len(days) <= _FEW_DAYS else {}


def _traces(panel: Panel) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and content of each trace: values with a line, the reference, changes, runs without a value."""
    value = "value of the night"
    yield value, _values(panel)
    yield value, _connected(panel)
    yield "reference", {
        "x": panel.at, "y": np.array(panel.scaled("reference")), "mode": "lines", "hoverinfo": "skip",
        "connectgaps": False, "line": {**Look(style.GREY, "dash", width=1.8).line, "shape": "hvh"},
    }  # fmt: skip
    for side, (name, look) in _SIDES.items():
        if trace := _steps(panel, side, look):
            yield name, trace
    low, high = panel.edges
    why = {gap.night: gap.why for gap in panel.series.gaps}
    for name, places, y, texts, marker in (
        ("no valid run", there := [at for at in panel.at if at in why], low + 0.05 * (high - low),
         [f"{at}: {in_figure(why[at], 120)}" for at in there], {"color": style.GREY, "symbol": "x", "size": 8}),
        ("overloaded: no value", over := [run.night for run in panel.runs if run.overloaded],
         low + 0.95 * (high - low), [f"{at}: overloaded, so it has no latency" for at in over],
         {"color": style.VERMILLION, "symbol": "triangle-up-open", "size": 10, "line": {"width": 2}}),
    ):  # fmt: skip
        if places:
            yield name, {"x": places, "y": [y] * len(places), "mode": "markers", "marker": marker,
                         "hovertext": texts, "hoverinfo": "text", "meta": style.MARKS}  # fmt: skip


def _values(panel: Panel) -> dict[str, Any]:
    """A dot for each run, with its interval where there is one."""
    y, low, high = (panel.scaled(key) for key in ("value", "low", "high"))
    trace: dict[str, Any] = {
        "x": panel.at, "y": np.array(y), "mode": "markers",
        "marker": {"color": style.BLUE, "size": 6},
        "text": [in_figure(run.commit or "", 20) for run in panel.runs],
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
    """The line through the dots, with a gap at runs without a value and where nothing is connected."""
    x: list[str] = []
    y: list[float] = []
    for at, value in zip(panel.at, panel.scaled("value"), strict=True):
        if at in panel.breaks:
            x.append(at)
            y.append(math.nan)
        x.append(at)
        y.append(value)
    return {
        "x": x, "y": np.array(y), "mode": "lines", "line": Look(style.BLUE, width=1.2).line, "hoverinfo": "skip",
        "meta": style.MARKS,
    }  # fmt: skip


def _steps(panel: Panel, side: str, look: Look) -> dict[str, Any] | None:
    """The first runs of the steps to that side, the last one with its commit."""
    runs = {run.night: run for run in panel.runs}
    steps = [step for step in panel.metric.steps if step.side == side and step.first in runs]
    if not steps:
        return None
    values = [runs[step.first].value for step in steps]
    y = [panel.edges[1] if value is None else panel.scale * value for value in values]
    rises = panel.metric.better == "lower" if side == "worse" else panel.metric.better == "higher"
    return {
        "x": [step.first for step in steps], "y": np.array(y), "mode": "markers+text",
        "marker": {"color": look.color, "symbol": look.symbol, "size": 11, "line": {"color": look.color, "width": 1}},
        "text": [""] * (len(steps) - 1) + [in_figure((steps[-1].commit or steps[-1].first)[:10], 20)],
        "textposition": "top left" if rises else "bottom left", "textfont": {"size": 11},
        "hovertext": [in_figure(_step(panel.metric, step), 200) for step in steps], "hoverinfo": "text",
        "meta": style.MARKS,
    }  # fmt: skip


def _lines(drawn: go.Figure, row: int, panel: Panel) -> None:
    """Draw a vertical line where hardware, versions or what is sent changed."""
    _, _, data, parts = style.panel_of(drawn, row)
    for night, dash in panel.lines.items():
        line = Look(style.GREY, dash, width=1.5).line
        drawn.add_shape(
            type="line", x0=night, x1=night, y0=0, y1=1, line=line, layer="below", xref=data["xref"], yref=parts["yref"]
        )


def _step(metric: TrendMetric, step: Step) -> str:
    change, level = format_step(metric, step)
    return f"{metric.name} {change} from {format_night(step.first, step.commit)} on ({level})"


def _finding(rows: Sequence[Panel]) -> str:
    """Return the changes that last; where there is none, over which runs."""
    several = len({panel.series.name for panel in rows}) > 1
    steps = [
        (f"{clean(panel.series.name, 60)}: " if several else "") + _step(panel.metric, step)
        for panel in rows
        for step in panel.metric.steps
        if step.open
    ]
    if steps:
        return style.finding({"Away from the reference": [*steps[:3], f"{len(steps) - 3} more" if steps[3:] else ""]})
    names = ", ".join(dict.fromkeys(clean(panel.metric.name, 60) for panel in rows))
    few = all(panel.metric.state == "few" for panel in rows)
    runs = f"{max(len(panel.metric.runs) for panel in rows)} runs up to {max(panel.at[-1] for panel in rows)}"
    return style.finding({names: ["too few runs to detect a change" if few else "no change that lasts", runs]})


def _notes(rows: Sequence[Panel]) -> Iterator[str]:
    if any(math.isfinite(low) for panel in rows for low in panel.scaled("low")):
        yield "Bars are the 95 % interval that a run reports for itself."
    if any(panel.series.exact for panel in rows):
        yield "The clock is virtual: values have no noise, so any difference is one of the system."
    if any(panel.lines for panel in rows):
        yield (
            "Vertical lines: what must be equal changed (solid, nothing is connected across it), or a version did "
            "(dotted)."
        )
    if cut := [panel for panel in rows if len(panel.runs) < len(panel.metric.runs)]:
        yield f"The latest {len(cut[0].runs):,} of {len(cut[0].metric.runs):,} runs are drawn."
