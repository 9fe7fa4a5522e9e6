"""Distribution of TTFT and TPOT at several rates of one system, or of several systems at one rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from harness.metrics.quantiles import quantile
from reports import _data, _format
from reports._format import in_figure
from reports.figures import _reduce, _systems
from reports.figures import _style as style
from reports.figures._systems import Line
from reports.study import runs
from reports.study.runs import Told

if TYPE_CHECKING:
    from reports.study import Point, Study

ORDER = 7
OF = "study"
SECTION = "latency"
TITLE = "Distribution of TTFT and TPOT"
MOST = 5
"""Curves in a panel."""

_POINTS = _reduce.MOST // 4
_LOOKS = [(style.GREEN, "solid", "circle"), (style.BLUE, "dash", "square"), (style.PURPLE, "dashdot", "triangle-up"),
          (style.VERMILLION, "dot", "diamond"), (style.GREY, "longdash", "cross")]  # fmt: skip
_MARKED = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class _Curve:
    name: str
    point: Point
    told: list[Told]


def figure(study: Study) -> go.Figure | str:
    """Cumulative share of the requests against seconds on a log axis: TTFT above TPOT."""
    lines = _systems.lines(study, made=True)
    curves = [curve for curve in _curves(study, lines) if any(one.requests for one in curve.told)]
    if not curves:
        return runs.GONE
    drawn = style.panels([0.5, 0.5], 700, shared=False, spacing=0.14)
    kept = total = 0
    for row, metric in enumerate(runs.SAMPLES, 1):
        samples = [runs.pooled(curve.told, metric) for curve in curves]
        for number, (curve, found) in enumerate(zip(curves, samples, strict=True)):
            kept += _draw(drawn, row, curve.name, found, number)
            total += len(found)
        _axes(drawn, row, metric, curves, samples)
    seeds = runs.seeds_note(study, [curve.point for curve in curves])
    left = sum(not system.again for system in study.systems) - (1 if len(lines) == 1 else len(curves))
    notes = [
        _reduce.note(total, kept, "values", _reduce.RANKS),
        seeds,
        _grown(curves),
        _chosen(lines),
        f"{_format.count(left, 'system')} more left out." if left > 0 else "",
    ]
    return style.done(drawn, _finding(curves), notes)


def _curves(study: Study, lines: Sequence[Line]) -> list[_Curve]:
    """Several rates of the one system, or every system at the highest rate that all have and keep up with.

    Where no system has several rates, every system as it is.
    """
    if not lines:
        single = next(iter(_systems.groups(study)), None)
        told = list(single.points.items())[:MOST] if single is not None else []
        return [_Curve(name, point, runs.of(study, point)) for name, point in told]
    if len(lines) == 1:
        points = lines[0].points
        shown = np.unique(np.linspace(0, len(points) - 1, min(MOST, len(points))).astype(int))
        names = [f"{_format.plain(float(lines[0].x[i]), 4)} {study.rate_unit}" for i in shown]
        return [_Curve(name, points[i], runs.of(study, points[i]))
                for name, i in zip(names, shown, strict=True)]  # fmt: skip
    # the highest rate that all systems were tried at, of those at which no queue grew if there is one
    shared = set.intersection(*(set(line.x.tolist()) for line in lines))
    grown = {x for line in lines for x, point in zip(line.x.tolist(), line.points, strict=True) if point.overloaded}
    common = max(shared - grown or shared, default=None)
    if common is None:
        return []
    found = [(line, next(p for x, p in zip(line.x, line.points, strict=True) if x == common)) for line in lines[:MOST]]
    unit = f"at {_format.plain(common, 4)} {study.rate_unit}"
    return [_Curve(f"{line.prefix}{unit}", point, runs.of(study, point)) for line, point in found]


def _draw(drawn: go.Figure, row: int, name: str, found: np.ndarray, number: int) -> int:
    if not len(found):
        return 0
    color, dash, symbol = _LOOKS[number]
    kept = _reduce.ranks(len(found), _POINTS)
    drawn.add_scatter(
        x=found[kept], y=(kept + 1) / len(found) * 100.0, name=name, mode="lines", line=style.line(color, dash),
        legendgroup=name, showlegend=row == 1, row=row, col=1, hovertemplate="%{x:.4r} s: %{y:.1f}%",
    )  # fmt: skip
    drawn.add_scatter(
        x=[quantile(found, q) for q in _MARKED], y=[q * 100 for q in _MARKED], mode="markers", name=name,
        showlegend=False, legendgroup=name, meta=style.MARKS, row=row, col=1,
        marker={"symbol": symbol, "size": 8, "color": color}, hovertemplate="p%{y:g}: %{x:.4r} s",
    )  # fmt: skip
    return len(kept)


def _axes(drawn: go.Figure, row: int, metric: str, curves: Sequence[_Curve], samples: Sequence[np.ndarray]) -> None:
    ends = [float(end) for found in samples if len(found) for end in found[found > 0][[0, -1]]]
    bounds = {kept.limit_s: kept for curve in curves for kept in curve.point.bounds
              if kept.metric == metric and kept.tag is None and kept.percentile is None}  # fmt: skip
    title = f"{_data.label(metric)} (s, log scale)"
    drawn.update_xaxes(style.log_axis(title, [*ends, *bounds]), row=row, col=1)
    drawn.update_yaxes(style.axis("requests at or below (%)", range=[-2, 104]), row=row, col=1)
    for limit_s in bounds:
        drawn.add_vline(x=limit_s, line={"color": style.GREY, "width": 1.5, "dash": "dash"}, row=row, col=1)
        drawn.add_annotation(
            x=float(np.log10(limit_s)), y=2, text=in_figure(f"SLO {_format.limit(limit_s)}"), showarrow=False,
            xanchor="left", xshift=4, yanchor="bottom", font={"size": 12}, row=row, col=1,
        )  # fmt: skip


def _grown(curves: Sequence[_Curve]) -> str:
    names = [curve.name for curve in curves if curve.point.overloaded]
    if not names:
        return ""
    return f"A queue grew all through a run at {', '.join(names)}: those times tell how long the run was."


def _chosen(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    if len(lines) == 1:
        drawn = min(MOST, len(lines[0].points))
        return f"{drawn} of {len(lines[0].points)} rates are drawn." if drawn < len(lines[0].points) else ""
    return "All systems at the highest rate that they have in common and keep up with."


def _finding(curves: Sequence[_Curve]) -> str:
    ends = (curves[0], curves[-1]) if len(curves) > 1 else (curves[0],)
    texts = []
    for curve in ends:
        told = [
            f"{_data.label(metric)} {_format.seconds(quantile(found, 0.99))}"
            for metric in runs.SAMPLES
            if len(found := runs.pooled(curve.told, metric))
        ]
        texts.append(f"{curve.name}: {', '.join(told)}")
    return f"99% of the requests that ended well stay within, {'; '.join(texts)}."
