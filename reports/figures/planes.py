"""Contours of goodput over the plane of two bounds, both axes log: of a run, and of an answer of `bench slo`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.experiments.rescore.slo_json import PlaneScore
from harness.metrics.summary import per_second_of
from reports import _data, _format, _replay
from reports._format import in_figure
from reports.figures import style

OWN = "the SLO"
LEVELS = 11
NONE = (
    "No request meets any pair of bounds, so there is no goodput to draw; the counts by status and the errors say why."
)
NARROW = "A picture needs two bounds or more of each metric; the table has the requested ones."


def slo_plane(run: Run) -> go.Figure | str:
    """Requests per second that meet both bounds, as contours over the two, and where the goal is reached."""
    found = _replay.of_run(run)
    if isinstance(found, str):
        return found
    (ttft, tpot), counted = found
    inside = counted.met[:-1, :-1]  # (TTFT, TPOT), without the positions of no bound
    if not inside.any():
        return NONE
    goal, shares = _data.slo(run).goal, counted.met / counted.requests
    per_s = per_second_of(run.requests)(counted.requests)
    known = bool(np.isfinite(per_s))  # a file of another tool may tell no time of sending, hence no rates
    values = shares[:-1, :-1] * (per_s if known else 100)
    name, unit = ("goodput", "req/s") if known else ("requests within", "%")
    drawn = _contours((ttft.limits_s, tpot.limits_s), values, shares[:-1, :-1], goal, name, unit)
    known_bounds = ttft.own_s is not None and tpot.own_s is not None
    x, y = ([ttft.own_s], [tpot.own_s]) if known_bounds else ([], [])
    cross = {"symbol": "x", "size": 12, "color": style.OCHRE, "line": {"width": 1.5, "color": style.HALO}}
    hover = "TTFT %{x:.4r} s, TPOT %{y:.4r} s"
    drawn.add_scatter(x=x, y=y, name=OWN, mode="markers", marker=cross, meta=style.MARKS, hovertemplate=hover)
    at, bounded = (ttft.place, tpot.place), [axis for axis in (ttft, tpot) if axis.own_s is not None]
    own = [f"{_data.label(axis.metric)} {_format.limit(axis.own_s or 0.0)}" for axis in bounded]
    at_own = [
        f"goodput {_format.number(float(shares[at]) * per_s)} req/s" if known else "",
        f"{_format.share(float(shares[at]), goal)} of the requests within the bounds",
    ]
    reached = [_least(ttft, shares[:-1, at[1]], goal), _least(tpot, shares[at[0], :-1], goal)]
    moved = " or ".join(filter(None, reached)) or "not by moving one bound alone, as far as drawn"
    notes = [
        f"Exact counts of all requests at each of the {inside.size:,} pairs of bounds, drawn smoothly between them.",
        "Other bounds of the SLO stay as they are." if len(_data.margins(run)) > len(bounded) else "",
    ]
    where = ", ".join(own) or "Without a bound on all requests"
    return style.done(drawn, style.finding({where: at_own, f"{goal * 100:g}%": [moved]}), notes)


def _least(axis: _replay.Axis, shares: np.ndarray, goal: float) -> str:
    """The least bound of an axis that reaches the goal."""
    reached = np.flatnonzero(shares >= goal)
    return f"from {_data.label(axis.metric)} {_format.limit(axis.limits_s[reached[0]])}" if len(reached) else ""


def of_answer(plane: PlaneScore, goal: float) -> go.Figure | str:
    """Goodput under the pairs of bounds of `bench slo`."""
    names, (first, second) = plane.metrics, plane.limits_s
    if min(len(first), len(second)) < 2:
        return NARROW
    goodput, shares = (np.array(values, np.float64) for values in (plane.goodput_rps, plane.attainment))
    drawn = _contours((first, second), goodput, shares, goal, names=names)
    pairs, best = np.argwhere(shares >= goal).tolist(), ["by no pair of these bounds"]
    if pairs:  # the tightest by the product of its bounds
        i, j = min(pairs, key=lambda at: first[at[0]] * second[at[1]])
        tightest = f"{names[0]} {_format.limit(first[i])} and {names[1]} {_format.limit(second[j])}"
        best = [f"tightest pair {tightest}", f"goodput {_format.number(goodput[i, j])} req/s"]
    note = f"Exact counts at each of the {goodput.size:,} pairs."
    return style.done(drawn, style.finding({f"{goal * 100:g}% of the requests": best}), [note])


def _contours(
    limits_s: tuple[Sequence[float], Sequence[float]], values: np.ndarray, shares: np.ndarray, goal: float,
    name: str = "goodput", unit: str = "req/s", names: Sequence[str] = ("TTFT", "TPOT"),
) -> go.Figure:  # fmt: skip
    """Filled contours of (limits, limits) values with a scale, and the line along which the goal is reached."""
    (x, y), (x_name, y_name), at = map(np.array, limits_s), map(in_figure, names), goal * 100
    low, high, size = levels(float(np.nanmin(values)), float(np.nanmax(values)))
    surface: dict[str, Any] = {"type": "contour", "x": x, "y": y}
    line = {
        **surface, "z": shares.T * 100, "name": f"{at:g}% of the requests meet both", "showscale": False,
        "contours": {"start": at, "end": at, "size": 1, "coloring": "none"}, "hoverinfo": "skip", "meta": style.MARKS,
    }  # fmt: skip
    drawn = style.new(460).add_traces([
        {
            **surface, "z": values.T, "name": name, "colorscale": style.SHADES, "zmin": low, "zmax": high,
            "contours": {"start": low, "end": high, "size": size, "coloring": "fill", "showlines": True},
            "line": {"width": 0.5, "color": style.GREY},
            "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14, "outlinewidth": 0},
            "hovertemplate": f"{x_name} %{{x:.4r}} s, {y_name} %{{y:.4r}} s: %{{z:.3r}} {unit}",
        },
        {**line, "line": style.Look(style.HALO, width=7).line, "showlegend": False},
        {**line, "line": style.Look(style.VERMILLION, "dash", width=3).line, "showlegend": True},
    ])  # fmt: skip
    across, up = (style.log_axis(f"{each} bound (s, log scale)", limits)
                  for each, limits in zip((x_name, y_name), limits_s, strict=True))  # fmt: skip
    style.axes(drawn, across, up)
    return drawn


def levels(low: float, high: float) -> tuple[float, float, float]:
    """Readable first, last and distance of about `LEVELS` contours."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / LEVELS))
    size = next(step * power for step in (1, 2, 5, 10) if step * power * LEVELS >= span)
    return math.floor(low / size) * size, math.ceil(high / size) * size, size
