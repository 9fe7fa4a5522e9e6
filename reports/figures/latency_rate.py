"""TTFT and TPOT against the rate: half, 90% and 99% of the requests, with the bounds and the client's own error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from reports import _data, _format, _stored
from reports._format import in_figure
from reports.figures import _style as style
from reports.figures import _systems
from reports.figures._systems import Line

if TYPE_CHECKING:
    from reports.study import Point, Study

ORDER = 6
OF = "study"
SECTION = "latency"
TITLE = "TTFT and TPOT against rate"
METRICS = ("ttft", "tpot")
_PARTS = {"p50": ("solid", "circle", style.GREEN), "p90": ("dash", "square", style.BLUE),
          "p99": ("dot", "diamond", style.VERMILLION)}  # fmt: skip
_NEAR = 10.0
"""A floor that lies further below the latencies than this is told and not drawn."""


def figure(study: Study) -> go.Figure | str:
    """Percentiles of TTFT above those of TPOT, in seconds on log axes, against the rate."""
    lines = [line for line in _systems.lines(study, made=True) if sum(bool(point.metrics) for point in line.points) > 1]
    if not lines:
        return _none(study)
    floors = _stored.floor_s(study)
    drawn = style.panels([0.5, 0.5], 620, spacing=0.06)
    notes: list[str] = []
    alike = all(np.array_equal(line.x, lines[0].x) for line in lines)
    for row, metric in enumerate(METRICS, 1):
        for line in lines:
            _draw(drawn, row, line, metric, "" if alike else f"{_data.label(metric)} ", alone=len(lines) == 1)
        notes += _panel(drawn, row, metric, lines, floors.get(metric))
    drawn.update_xaxes(_systems.rate_axis(study, lines), row=2, col=1)
    drawn.update_xaxes({**_systems.rate_axis(study, lines), "title": {"text": ""}}, row=1, col=1)
    return style.done(drawn, _finding(study, lines), [*notes, _missing(study, lines), _systems.left_out(study, lines)])


def _none(study: Study) -> str:
    if any(point.overloaded for line in _systems.lines(study) for point in line.points):
        return (
            "At too few rates the system kept up, and where a queue grows latencies tell how long the run was; "
            "bench sweep with lower rates brings them."
        )
    return _systems.NO_CURVE


def _draw(drawn: go.Figure, row: int, line: Line, metric: str, label: str, *, alone: bool) -> None:
    for part, (dash, symbol, color) in _PARTS.items():
        if not alone and part == "p90":
            continue
        values = np.array([_value(point, metric, part) for point in line.points])
        own = color if alone else line.color
        shape = symbol if alone else line.symbol
        drawn.add_scatter(
            x=line.x, y=values, row=row, col=1, mode="lines+markers", line=style.line(own, dash),
            marker={"symbol": [f"{shape}-open" if point.overloaded else shape for point in line.points], "size": 8,
                    "color": own},
            name=f"{line.prefix}{label}{part}", legendgroup=f"{line.prefix}{part}",
            showlegend=row == 1, hovertemplate="%{x:.4r}: %{y:.4r} s",
        )  # fmt: skip


def _value(point: Point, metric: str, part: str) -> float:
    spread = point.metrics.get(metric, {}).get(part)
    return np.nan if spread is None else spread.mean


def _panel(drawn: go.Figure, row: int, metric: str, lines: Sequence[Line], floor_s: float | None) -> Iterator[str]:
    """Axis, bounds and floor of one panel."""
    values = [v for line in lines for point in line.points for part in _PARTS if (v := _value(point, metric, part)) > 0]
    if not values:
        return
    of_all = {kept.text: kept for line in lines for point in line.points for kept in point.bounds
              if kept.metric == metric and kept.tag is None}  # fmt: skip
    bounds = of_all.values()
    near = floor_s is not None and floor_s * _NEAR >= min(values)
    title = f"{_data.label(metric)} (s)"
    axis = style.log_axis(title, [*values, *(b.limit_s for b in bounds), *([floor_s] if near and floor_s else [])])
    drawn.update_yaxes(axis, row=row, col=1)
    for kept in bounds:
        which = "" if kept.percentile is None else f" p{kept.percentile:g}"
        _level(drawn, row, kept.limit_s, in_figure(f"SLO{which} {_format.limit(kept.limit_s)}"))
    if floor_s is not None and near:
        low = 10 ** axis["range"][0]  # type: ignore[index]  # what log_axis made
        drawn.add_hrect(y0=low, y1=floor_s, fillcolor=style.faint(style.GREY), line_width=0, row=row, col=1)
        yield f"Grey: below the client's floor for {_data.label(metric)} ({_format.seconds(floor_s)})."
    elif floor_s is not None:
        yield f"The client's floor for {_data.label(metric)}, {_format.seconds(floor_s)}, lies below the drawing."


def _level(drawn: go.Figure, row: int, limit_s: float, text: str) -> None:
    """A bound: of an annotation on a log axis plotly wants the logarithm."""
    drawn.add_hline(y=limit_s, line={"color": style.GREY, "width": 1, "dash": "dash"}, row=row, col=1)
    drawn.add_annotation(
        x=0, xref=f"x{row if row > 1 else ''} domain", y=float(np.log10(limit_s)), yref=f"y{row if row > 1 else ''}",
        text=text, showarrow=False, xanchor="left", yanchor="bottom", font={"size": 12},
    )  # fmt: skip


def _finding(study: Study, lines: Sequence[Line]) -> str:
    line = lines[0]
    known = [(x, point) for x, point in zip(line.x, line.points, strict=True) if point.metrics]
    (low, first), (high, last) = known[0], known[-1]
    texts = []
    for metric in METRICS:
        ends = [_value(point, metric, "p99") for point in (first, last)]
        if np.all(np.isfinite(ends)):
            texts.append(f"{_data.label(metric)} p99 goes from {_format.seconds(ends[0])} to "
                         f"{_format.seconds(ends[1])}")  # fmt: skip
    rates = f"from {_format.plain(float(low), 4)} to {_format.plain(float(high), 4)} {study.rate_unit}"
    mean = ", in the mean over the seeds" if max(point.seeds for _, point in known) > 1 else ""
    return f"{line.prefix}{' and '.join(texts)} {rates}{mean}."


def _missing(study: Study, lines: Sequence[Line]) -> str:
    without = [x for line in lines for x, point in zip(line.x, line.points, strict=True) if not point.metrics]
    if not without:
        return ""
    return (
        f"No latencies from {_format.plain(float(min(without)), 4)} {study.rate_unit} on where a queue grew all "
        "through a run: they would tell how long the run was."
    )
