"""Throughput against interactivity: what a user sees of the speed, against what a GPU delivers, rate by rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.figures import _style as style
from reports.figures import _systems
from reports.figures._systems import Line

if TYPE_CHECKING:
    from reports.study import Point, Study

ORDER = 5
OF = "study"
SECTION = "latency"
TITLE = "Throughput against interactivity"


def figure(study: Study) -> go.Figure | str:
    """Output tokens per second and GPU against tokens per second of one user, a point for each rate."""
    lines = [line for line in _systems.lines(study, made=True, least=1) if any(map(_known, line.points))]
    if sum(_known(point) for line in lines for point in line.points) < 2:
        return _systems.NO_CURVE
    goal = study.goals[0] if study.goals else 0.9
    drawn = style.new(460)
    for line in lines:
        _draw(drawn, study, line, goal)
    unit = "tok/s per GPU" if study.per_gpu else "tok/s"
    drawn.update_layout(
        xaxis=style.axis("interactivity: 1 / median TPOT (tok/s per user)", rangemode="tozero"),
        yaxis=style.axis(f"throughput ({unit})", rangemode="tozero"),
    )
    hollow = f"Filled points keep the SLO for {goal * 100:g}% of the requests, hollow ones do not"
    notes = [f"{hollow}; the numbers are rates ({study.rate_unit}).", _systems.left_out(study, lines)]
    return style.done(drawn, _finding(study, lines, goal, unit), notes)


def _known(point: Point) -> bool:
    return point.output_tps is not None and "p50" in point.metrics.get("tpot", {})


def _points(study: Study, line: Line) -> tuple[list[Point], np.ndarray, np.ndarray]:
    """The points with latencies, tok/s of a user, tok/s per GPU."""
    points = [point for point in line.points if _known(point)]
    users = np.array([1.0 / point.metrics["tpot"]["p50"].mean for point in points])
    gpus = np.array([point.output_tps.mean for point in points if point.output_tps]) / study.share(line.system)
    return points, users, gpus


def _draw(drawn: go.Figure, study: Study, line: Line, goal: float) -> None:
    points, users, gpus = _points(study, line)
    kept = np.array([point.keeps(goal) for point in points])
    name = line.prefix.removesuffix(": ") or "all rates"
    rates = [_format.plain(point.rate_rps / study.share(line.system), 3) for point in points]
    drawn.add_scatter(
        x=users, y=gpus, name=name, mode="lines+markers+text", line=style.line(line.color, "dot", 1.5),
        marker={"symbol": [line.symbol if one else f"{line.symbol}-open" for one in kept], "size": 9,
                "color": line.color},
        text=rates, textposition="top right", textfont={"size": 11}, cliponaxis=False,
        hovertemplate="%{text} req/s: %{x:.3r} tok/s per user, %{y:.4r} tok/s",
    )  # fmt: skip
    if kept.sum() > 1:
        drawn.add_scatter(
            x=users[kept], y=gpus[kept], name=f"{line.prefix}keeps the SLO", mode="lines", hoverinfo="skip",
            line=style.line(line.color, width=4), meta=style.MARKS,
            showlegend=not line.prefix,
        )  # fmt: skip


def _finding(study: Study, lines: Sequence[Line], goal: float, unit: str) -> str:
    told = []
    for line in lines[:4]:
        points, users, gpus = _points(study, line)
        kept = [(gpu, user) for point, user, gpu in zip(points, users, gpus, strict=True) if point.keeps(goal)]
        if kept:
            gpu, user = max(kept)
            told.append(f"{line.prefix}{_format.number(float(gpu))} {unit} at {_format.number(float(user))} "
                        "tok/s per user")  # fmt: skip
    if not told:
        return f"No rate that was tried keeps the SLO for {goal * 100:g}% of the requests."
    return f"The most throughput among the rates tried that keep the SLO: {'; '.join(told)}."
