"""Contours over the plane of a bound on TTFT and one on TPOT, both axes log: of a run and of systems."""

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from reports import _data
from reports._format import in_figure
from reports._tables import Axis, Grid
from reports.figures import _style as style

FOLLOWS = "bounds of the sliders"
"""Name of the mark that the sliders of a page move."""
OWN = "the SLO"
LEVELS = 11


def bare(grid: Grid) -> str | None:
    """The sentence that stands for a plane without two axes."""
    lacking = [_data.label(axis.metric) for axis in grid.axes if len(axis.limits_s) < 2]
    return f"The plane needs TTFT and TPOT of the requests; {' and '.join(lacking)} is not known." if lacking else None


def axes(drawn: go.Figure, ttft: Axis, tpot: Axis, panels: int = 1) -> None:
    """The log axes of every panel; the lowest one tells the bound on TTFT."""
    for number in range(1, panels + 1):
        end = "" if number == 1 else str(number)
        name = "TTFT bound (s, log scale)" if number == panels else ""
        drawn.layout[f"xaxis{end}"] = style.log_axis(name, ttft.limits_s, **_kept(drawn, f"xaxis{end}"))
        drawn.layout[f"yaxis{end}"] = style.log_axis(
            "TPOT bound (s, log scale)", tpot.limits_s, **_kept(drawn, f"yaxis{end}")
        )


def _kept(drawn: go.Figure, name: str) -> dict[str, Any]:
    """What makes a panel of an axis, which its look must not overwrite."""
    told = drawn.layout[name].to_plotly_json()
    return {key: told[key] for key in ("anchor", "domain", "matches", "showticklabels") if key in told}


def surface(
    x: np.ndarray,
    y: np.ndarray,
    z: np.ndarray,
    name: str,
    unit: str,
    ends: tuple[float, float],
    names: tuple[str, str] = ("TTFT", "TPOT"),
) -> dict[str, Any]:
    """A filled contour of `z` (rows are y) between `ends`, with its scale below the legend's side."""
    low, high, size = levels(*ends)
    return {
        "type": "contour", "x": x, "y": y, "z": z, "name": name, "colorscale": style.SHADES, "zmin": low, "zmax": high,
        "contours": {"start": low, "end": high, "size": size, "coloring": "fill", "showlines": True},
        "line": {"width": 0.5, "color": style.GREY},
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "hovertemplate": f"{in_figure(names[0])} %{{x:.4r}} s, {in_figure(names[1])} %{{y:.4r}} s: %{{z:.3r}} {unit}",
    }  # fmt: skip


def goal_line(x: np.ndarray, y: np.ndarray, percent: np.ndarray, goal: float) -> list[dict[str, Any]]:
    """The contour along which a share `goal` of the requests keeps both bounds."""
    at = goal * 100
    line = {
        "type": "contour", "x": x, "y": y, "z": percent, "name": f"{at:g}% of the requests keep both",
        "contours": {"start": at, "end": at, "size": 1, "coloring": "none"}, "showscale": False,
        "hoverinfo": "skip", "meta": style.MARKS,
    }  # fmt: skip
    halo = {**line, "line": style.line(style.HALO, width=7), "showlegend": False}
    return [halo, {**line, "line": style.line(style.VERMILLION, "dash", 3), "showlegend": True}]


def marks(ttft: Axis, tpot: Axis) -> list[dict[str, Any]]:
    """The SLO, and the ring that sliders move."""
    known = ttft.own_s is not None and tpot.own_s is not None
    at: dict[str, Any] = {"x": [ttft.own_s] if known else [], "y": [tpot.own_s] if known else []}
    look = {"type": "scatter", "mode": "markers", "meta": style.MARKS,
            "hovertemplate": "TTFT %{x:.4r} s, TPOT %{y:.4r} s"}  # fmt: skip
    cross = {"symbol": "x", "size": 12, "color": style.OCHRE, "line": {"width": 1.5, "color": style.HALO}}
    ring = {"symbol": "circle-open", "size": 20, "color": style.VERMILLION, "line": {"width": 3}}
    halo = {**ring, "color": style.HALO, "line": {"width": 7}}
    return [
        {**look, **at, "name": OWN, "marker": cross},
        {**look, **at, "name": FOLLOWS, "marker": halo, "showlegend": False, "hoverinfo": "skip"},
        {**look, **at, "name": FOLLOWS, "marker": ring},
    ]


def levels(low: float, high: float) -> tuple[float, float, float]:
    """Readable first, last and distance of about `LEVELS` contours."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / LEVELS))
    size = next(step * power for step in (1, 2, 5, 10) if step * power * LEVELS >= span)
    return math.floor(low / size) * size, math.ceil(high / size) * size, size
