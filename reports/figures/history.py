"""Runs of a series as panels over the date, one for each metric: values, the reference, changes, gaps."""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.experiments.compare.trend_json import FactChange, RunValue, Step, TrendAnswer, TrendMetric, TrendSeries
from reports import _format
from reports._format import clean, in_figure
from reports._history import MOST_DRAWN, format_night, format_step, marked
from reports.figures import style
from reports.figures.style import Look

_FEW_DAYS, _DAY_MS = 14, 86_400_000
_PANEL_PX, _REST_PX = 150, 130
_SIDES = {
    "worse": ("change to the worse", Look(style.VERMILLION, symbol="diamond")),
    "better": ("change to the better", Look(style.GREEN, symbol="triangle-up")),
}


def trend_judged(info: TrendAnswer, most: int = MOST_DRAWN) -> go.Figure | str:
    """A panel for each judged metric of each series, with the latest `most` runs."""
    return _figure(info, most, judged=True) or (
        "No valid run has a metric that is judged (mean TTFT and TPOT, failures, capacity); bench report RUN says why."
    )


def trend_shown(info: TrendAnswer, most: int = MOST_DRAWN) -> go.Figure | str:
    """A panel for each metric that is only shown: tails, rates and attainment at one rate."""
    return _figure(info, most, judged=False) or (
        "Only a search or no valid run is in this series; with bench run --out FOLDER/WORKLOAD/BACKEND/DATE-COMMIT "
        "its p99, rates and attainment are shown too."
    )


def _figure(info: TrendAnswer, most: int, *, judged: bool) -> go.Figure | None:
    """The panels above one another; None where no metric is of that kind."""
    found = panels(info, most, judged=judged)
    if not found:
        return None
    drawn = style.panels([1.0] * len(found), _REST_PX + _PANEL_PX * len(found))
    named: set[str] = set()
    several, ticks = len(info.series) > 1, _ticks(found)
    for row, panel in enumerate(found, start=1):
        for name, trace in _traces(panel):
            drawn.add_scatter(row=row, col=1, name=name, legendgroup=name, showlegend=name not in named, **trace)
            named.add(name)
        head = f"{in_figure(panel.series.name, 30)}<br>" if several else ""
        title = f"{head}{in_figure(panel.metric.name, 30)}<br>({panel.unit})"
        x = style.axis("night (date, UTC)" if row == len(found) else "", type="date", **ticks)
        style.axes(drawn, x, style.axis(title, range=list(panel.edges)), row)
        _lines(drawn, row, panel, labels=row == 1)
    return style.done(drawn, _finding(found), _notes(found))


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
    def lines(self) -> list[tuple[str, str, list[FactChange]]]:
        """The vertical lines among its runs."""
        return marked(self.series, set(self.at))


def panels(info: TrendAnswer, most: int, *, judged: bool) -> list[Panel]:
    """A panel for each metric of each series, of those that are judged or of those that are only shown."""
    found = []
    for one in info.series:
        for metric in one.metrics:
            if metric.judged is judged:
                runs = metric.runs[-most:]
                found.append(Panel(one, metric, runs, *_unit(metric, runs)))
    return found


def _unit(metric: TrendMetric, runs: Sequence[RunValue]) -> tuple[str, float]:
    if metric.unit == "s":
        unit = _format.unit_of(run.value for run in runs)
        return unit, 1000.0 if unit == "ms" else 1.0
    if metric.unit == "share":
        return "%", 100.0
    return ("req/s" if metric.unit == "1/s" else in_figure(metric.unit, 20)), 1.0


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


def _lines(drawn: go.Figure, row: int, panel: Panel, *, labels: bool) -> None:
    """A vertical line with its letter where hardware, versions or what is sent changed."""
    _, _, data, parts = style.panel_of(drawn, row)
    where = {"xref": data["xref"], "yref": parts["yref"]}
    for label, night, _ in panel.lines:
        look = Look(style.GREY, "solid" if label.isupper() else "dot", width=1.5)
        drawn.add_shape(type="line", x0=night, x1=night, y0=0, y1=1, line=look.line, layer="below", **where)
        if labels:
            font = {"size": 12, "color": style.GREY}
            style.label(drawn, night, 1, label, row, yanchor="top", xshift=0, font=font, **where)


def _step(metric: TrendMetric, step: Step) -> str:
    change, level = format_step(metric, step)
    return f"{metric.name} {change} from {format_night(step.first, step.commit)} on ({level})"


def _finding(found: Sequence[Panel]) -> str:
    """The changes that last; else the latest one, and over which runs there is none."""
    several = len({panel.series.name for panel in found}) > 1
    fresh = ("regressed", "improved", "changed", "longer")
    stepped = [panel for panel in found if panel.metric.steps]
    news = [(panel, panel.metric.steps[-1]) for panel in stepped if panel.metric.state in fresh]
    past = [(panel, step) for panel in stepped for step in panel.metric.steps]
    shown = news[:3] or sorted(past, key=lambda one: one[1].first)[-1:]
    steps = [(f"{clean(panel.series.name, 60)}: " if several else "") + _step(panel.metric, step)
            for panel, step in shown]  # fmt: skip
    if news:
        return style.finding({"Away from the reference": [*steps, f"{len(news) - 3} more" if len(news) > 3 else ""]})
    names = ", ".join(dict.fromkeys(clean(panel.metric.name, 60) for panel in found))
    most = max(len(panel.metric.runs) for panel in found)
    runs = f"{most} runs up to {max(panel.at[-1] for panel in found)}"
    few = all(panel.metric.state == "few" for panel in found)
    return style.finding(
        {names: ["too few runs to detect a change" if few else "no change that lasts", runs], "earlier": steps}
    )


def _notes(found: Sequence[Panel]) -> Iterator[str]:
    firsts = list({id(panel.series): panel for panel in found}.values())
    if any(math.isfinite(low) for panel in found for low in panel.scaled("low")):
        yield "Bars are the 95 % interval that a run reports for itself."
    if any(panel.series.exact for panel in firsts):
        yield "The clock is virtual: values have no noise, so any difference is one of the system."
    if lines := [panel.lines for panel in firsts if panel.lines]:
        letters = "; ".join(", ".join(f"{label}: {night}" for label, night, _ in each) for each in lines)
        yield (
            "Vertical lines: what must be equal changed (capital letter, nothing is connected across it), or a "
            f"version did (small letter, dotted): {letters}."
        )
    if cut := [panel for panel in found if len(panel.runs) < len(panel.metric.runs)]:
        every = len(cut[0].metric.runs)
        yield f"The latest {len(cut[0].runs):,} of {every:,} runs are drawn."
