"""Runs of a series as panels over the date, one for each metric: values, the reference, changes, gaps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.experiments.compare.compare_json import RunValue, Step, TrendAnswer, TrendMetric, TrendSeries
from reports import _format
from reports._format import clean, in_figure
from reports.answers.trend import MOST_DRAWN, format_step
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.style import Look

_FEW_DAYS = 14
_PANEL_PX, _REST_PX = 150, 130
_SIDES = {
    "worse": ("change to the worse", Look(style.VERMILLION, symbol="diamond")),
    "better": ("change to the better", Look(style.GREEN, symbol="triangle-up")),
}


def trend(info: TrendAnswer, most: int = MOST_DRAWN) -> Drawing | str:
    """Return a panel for each judged metric of each series, above one another, with the latest `most` runs."""
    rows = [
        Panel(series, metric, metric.runs[-most:], *_unit(metric, metric.runs[-most:]))
        for series in info.series
        for metric in series.judged
    ]
    if not rows:
        return "No valid run has a judged metric (mean TTFT and TPOT, failures, capacity); bench report RUN says why."
    drawn = style.panels([1.0] * len(rows), _REST_PX + _PANEL_PX * len(rows))
    several, ticks = len(info.series) > 1, _ticks(rows)
    for row, panel in enumerate(rows, start=1):
        _curves(drawn, row, panel)
        head = f"{in_figure(panel.series.name, 30)}<br>" if several else ""
        title = f"{head}{in_figure(panel.metric.name, 30)}<br>({panel.unit})"
        x = style.axis("night (date, UTC)" if row == len(rows) else "", type="date", **ticks)
        style.axes(drawn, x, style.axis(title, range=list(panel.edges)), row)
        _lines(drawn, row, panel)
    in_legend: set[str] = set()
    for trace in drawn.data:  # one entry for all panels
        trace.update(legendgroup=trace["name"], showlegend=trace["name"] not in in_legend)
        in_legend.add(trace["name"])
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
        values = [v for key in keys for v in self.scaled(key) if math.isfinite(v)] or [0.0]
        low, high = min(values), max(values)
        room = 0.24 * (high - low) or 0.1 * abs(high) or 1.0
        floor = -0.12 * (high + room) if low >= 0 else -math.inf  # nothing that is followed can be negative
        return max(low - room, floor), high + room

    @property
    def breaks(self) -> set[str]:
        """Runs that are not connected with the one before."""
        return {event.night for event in self.series.breaks}

    @property
    def lines(self) -> dict[str, str]:
        """Night of each vertical line among its runs -> its dash: nothing is connected across a solid one."""
        dashes = {event.night: "dot" for event in self.series.versions} | dict.fromkeys(self.breaks, "solid")
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
    days = sorted({date[:10] for panel in rows for date in panel.at})
    return {"tickvals": days, "tickformat": "%b %-d\n%Y"} if len(days) <= _FEW_DAYS else {}


def _curves(drawn: Drawing, row: int, panel: Panel) -> None:
    """Values with their intervals and a line, the reference, changes, runs without a value."""
    value, blue, values = "value of the night", Look(style.BLUE, width=1.2), panel.scaled("value")
    low, high = panel.scaled("low"), panel.scaled("high")
    style.curve(
        drawn, panel.at, values, value, blue, f"%{{x}}: %{{y:,.4~g}} {panel.unit} %{{text}}", row=row, mode="markers",
        size=6, text=[in_figure(run.commit or "", 20) for run in panel.runs],
        ends=(low, high) if any(map(math.isfinite, low)) else None,
    )  # fmt: skip
    # nothing is connected across a break, nor at a run without a value
    gaps = np.flatnonzero([date in panel.breaks for date in panel.at])
    x, y = (
        np.insert(np.array(panel.at, object), gaps, np.array(panel.at, object)[gaps]),
        np.insert(values, gaps, np.nan),
    )
    style.curve(drawn, x.tolist(), y, value, blue, None, row=row, mode="lines", meta=style.MARKS)
    grey = Look(style.GREY, "dash", width=1.8)
    reference = np.array(panel.scaled("reference"))
    style.curve(
        drawn, panel.at, reference, "reference", grey, None, row=row, mode="lines", step="hvh", connectgaps=False
    )
    for side, (name, look) in _SIDES.items():
        _steps(drawn, row, panel, side, name, look)
    bottom, top = panel.edges
    why = {gap.night: gap.why for gap in panel.series.gaps}
    gone = {date: in_figure(why[date], 120) for date in panel.at if date in why}
    over = {run.night: "overloaded, so it has no latency" for run in panel.runs if run.overloaded}
    for name, texts, place, look in (
        ("no valid run", gone, 0.05, Look(style.GREY, symbol="x")),
        ("overloaded: no value", over, 0.95, Look(style.VERMILLION, symbol="triangle-up-open")),
    ):
        if texts:
            edge, hover = bottom + place * (top - bottom), [f"{date}: {text}" for date, text in texts.items()]
            style.curve(drawn, [*texts], [edge] * len(texts), name, look, "%{hovertext}", row=row, mode="markers",
                        size=9, hovertext=hover, meta=style.MARKS)  # fmt: skip


def _steps(drawn: Drawing, row: int, panel: Panel, side: str, name: str, look: Look) -> None:
    """The first runs of the steps to that side, the last one with its commit."""
    runs = {run.night: run for run in panel.runs}
    steps = [step for step in panel.metric.steps if step.side == side and step.first in runs]
    if not steps:
        return
    values = [runs[step.first].value for step in steps]
    y = [panel.edges[1] if value is None else panel.scale * value for value in values]
    rises = panel.metric.better == "lower" if side == "worse" else panel.metric.better == "higher"
    style.curve(
        drawn, [step.first for step in steps], y, name, look, "%{hovertext}", row=row, mode="markers+text", size=11,
        text=[""] * (len(steps) - 1) + [in_figure((steps[-1].commit or steps[-1].first)[:10], 20)],
        textposition="top left" if rises else "bottom left", textfont={"size": 11},
        hovertext=[in_figure(_step(panel.metric, step), 200) for step in steps], meta=style.MARKS,
    )  # fmt: skip


def _lines(drawn: Drawing, row: int, panel: Panel) -> None:
    """Draw a vertical line where hardware, versions or what is sent changed."""
    _, _, data, parts = style.panel_of(drawn, row)
    for night, dash in panel.lines.items():
        line = Look(style.GREY, dash, width=1.5).line
        drawn.shape(
            "line", x0=night, x1=night, y0=0, y1=1, line=line, layer="below", xref=data["xref"], yref=parts["yref"]
        )


def _step(metric: TrendMetric, step: Step) -> str:
    change, level = format_step(metric, step)
    commit = f" (commit {step.commit})" if step.commit else ""
    return f"{metric.name} {change} from {step.first}{commit} on ({level})"


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
    if any(panel.lines for panel in rows):
        yield (
            "Vertical lines: what must be equal changed (solid, nothing is connected across it), or a version did "
            "(dotted)."
        )
    if cut := [panel for panel in rows if len(panel.runs) < len(panel.metric.runs)]:
        yield f"The latest {len(cut[0].runs):,} of {len(cut[0].metric.runs):,} runs are drawn."
