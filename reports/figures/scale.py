"""Attainment over the bounds of an SLO: every bound multiplied by a scale, and contours over the plane of two bounds.

The curves that DistServe (OSDI 2024, figures 8 and 9) draws from many runs; the scale at which a request turns from
missed to met is the greatest of its value / bound, so one stored run gives a whole curve exactly.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.experiments.rescore.scale import curve
from harness.experiments.rescore.slo_json import ScaleScore
from harness.metrics.summary import per_second_of
from reports import _data, _format, _replay
from reports._format import in_figure
from reports.figures import style
from reports.figures.style import Look

UNKNOWN = "The bounds of the SLO are on times that are unknown in this run, so there is no attainment to draw."
FEW = "A picture needs two scales or more; the table has the requested one."
_GRID = 241

OWN = "the SLO"
LEVELS = 11
NONE = (
    "No request meets any pair of bounds, so there is no goodput to draw; the counts by status and the errors say why."
)
NARROW = "A picture needs two bounds or more of each metric; the table has the requested ones."


class Series(NamedTuple):
    """A curve: its name, the share at each scale, and how it is drawn."""

    name: str
    shares: Any
    look: Look


def _curves(
    series: Iterable[Series], factors: Any, goals: Iterable[float], of: str = "SLO", within: str = style.WITHIN
) -> go.Figure:
    """The curves over the scale, with the goals; `of` says what the scale multiplies."""
    drawn = style.new()
    for name, shares, look in series:
        percent = np.array(shares, np.float64) * 100
        style.curve(drawn, factors, percent, name, look, style.OF_SCALE, marker={"maxdisplayed": style.MARKED})
    style.axes(drawn, style.log_axis(f"SLO scale (1 = the {of})", factors), style.share_axis(within))
    style.goals(drawn, goals)
    return drawn


def _single(bounds: Iterable[tuple[str, Any]]) -> list[Series]:
    """Each bound alone, where there are several."""
    lines = [Series(in_figure(f"{name} only"), shares, look)
             for (name, shares), look in zip(bounds, cycle(style.BOUNDS), strict=False)]  # fmt: skip
    return lines if len(lines) > 1 else []


def slo_scale(run: Run) -> go.Figure | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale on the x axis."""
    if run.requests.num_rows == 0:
        return _data.EMPTY
    slo, seen, scored = _data.slo(run), _data.seen(run), _data.scored(run)
    if not _data.margins(run):
        return UNKNOWN if any(b.percentile is None for b in slo.bounds) else style.UNBOUND
    unscaled = curve(seen, slo, [], scored)
    cross = unscaled.crossing(slo.goal)
    finite = unscaled.ratio[np.isfinite(unscaled.ratio) & (unscaled.ratio > 0)]
    low = float(np.quantile(finite, 0.02)) * 0.8 if len(finite) else 0.25
    high = max(2.0, (cross or 1.0) * 1.3, float(np.quantile(finite, 0.995)) if len(finite) else 2.0)
    low, high = min(max(low, 0.01), 0.5), min(high, 1000.0)
    marks = [1.0] if cross is None or not low <= cross <= high else [1.0, cross]
    factors = np.unique(np.concatenate([np.geomspace(low, high, _GRID), marks]))
    scaled = curve(seen, slo, factors.tolist(), scored)
    names = {bound: _data.bound_label(bound.metric, tag=bound.tag) for bound in scaled.bounds}
    single = _single((names[bound], shares) for bound, shares in scaled.bounds.items())
    series = [Series("all bounds", scaled.attainment, style.ALL), *single]
    drawn = _curves(series, factors, [slo.goal], "SLO of this run")
    style.upright(drawn, 1.0, "SLO of this run", 1)
    reached = f"at no scale: {np.sum(~np.isfinite(unscaled.ratio)):,} of {len(unscaled.ratio):,} requests failed"
    if cross is not None:
        style.upright(drawn, cross, f"{slo.goal * 100:g}% at scale {_format.number(cross)}")
        limits = [f"{name} {_format.seconds(bound.limit * cross)}" for bound, name in names.items()
                  if np.isfinite(bound.limit)]  # fmt: skip
        reached = f"from scale {_format.number(cross)} on ({', '.join(limits) or 'bounds of the requests'})"
    met = _format.share(float(np.mean(unscaled.ratio <= 1.0)), slo.goal)
    values = {"Met the SLO of this run": [met], f"{slo.goal * 100:g}% meet it": [reached]}
    return style.done(drawn, style.finding(values))


def of_answer(answer: ScaleScore, goals: Sequence[float]) -> go.Figure | str:
    """Attainment of an objective of `bench slo` at the scales requested."""
    if len(answer.factors) < 2:
        return FEW
    series = [Series("all bounds", answer.attainment, style.ALL), *_single(answer.bounds.items())]
    drawn = _curves(series, np.array(answer.factors), goals, "objective", "requests within (%)")
    return style.done(drawn, style.finding({
        f"{goal * 100:g}% within": ["at no scale" if factor is None else f"from scale {_format.number(factor)} on"]
        for goal, factor in zip(goals, answer.crossings, strict=True)
    }))  # fmt: skip


def slo_plane(run: Run) -> go.Figure | str:
    """Requests per second that meet both bounds, as contours over the two, and where the goal is reached."""
    plane = _replay.of_run(run)
    if isinstance(plane, str):
        return plane
    (ttft, tpot), counted = plane
    inside = counted.met[:-1, :-1]  # (TTFT, TPOT), without the positions of no bound
    if not inside.any():
        return NONE
    goal, shares = _data.slo(run).goal, counted.met / counted.requests
    per_s = per_second_of(run.requests)(counted.requests)
    has_rate = bool(np.isfinite(per_s))  # a file of another tool may tell no time of sending, hence no rates
    values = shares[:-1, :-1] * (per_s if has_rate else 100)
    name, unit = ("goodput", "req/s") if has_rate else ("requests within", "%")
    drawn = _contours((ttft.limits_s, tpot.limits_s), values, shares[:-1, :-1], goal, name, unit)
    known_bounds = ttft.own_s is not None and tpot.own_s is not None
    x, y = ([ttft.own_s], [tpot.own_s]) if known_bounds else ([], [])
    cross = {"symbol": "x", "size": 12, "color": style.OCHRE, "line": {"width": 1.5, "color": style.HALO}}
    hover = "TTFT %{x:.4r} s, TPOT %{y:.4r} s"
    drawn.add_scatter(x=x, y=y, name=OWN, mode="markers", marker=cross, meta=style.MARKS, hovertemplate=hover)
    cell, bounded = (ttft.place, tpot.place), [axis for axis in (ttft, tpot) if axis.own_s is not None]
    limits = [f"{_data.label(axis.metric)} {_format.limit(axis.own_s or 0.0)}" for axis in bounded]
    at_own = [
        f"goodput {_format.number(float(shares[cell]) * per_s)} req/s" if has_rate else "",
        f"{_format.share(float(shares[cell]), goal)} of the requests within the bounds",
    ]
    reached = [_least(ttft, shares[:-1, cell[1]], goal), _least(tpot, shares[cell[0], :-1], goal)]
    moved = " or ".join(filter(None, reached)) or "not by moving one bound alone, as far as drawn"
    notes = [
        f"Exact counts of all requests at each of the {inside.size:,} pairs of bounds, drawn smoothly between them.",
        "Other bounds of the SLO stay as they are." if len(_data.margins(run)) > len(bounded) else "",
    ]
    heading = ", ".join(limits) or "Without a bound on all requests"
    return style.done(drawn, style.finding({heading: at_own, f"{goal * 100:g}%": [moved]}), notes)


def _least(axis: _replay.Axis, shares: np.ndarray, goal: float) -> str:
    """The least bound of an axis that reaches the goal."""
    reached = np.flatnonzero(shares >= goal)
    return f"from {_data.label(axis.metric)} {_format.limit(axis.limits_s[reached[0]])}" if len(reached) else ""


def _contours(
    limits_s: tuple[Sequence[float], Sequence[float]], values: np.ndarray, shares: np.ndarray, goal: float,
    name: str = "goodput", unit: str = "req/s", names: Sequence[str] = ("TTFT", "TPOT"),
) -> go.Figure:  # fmt: skip
    """Filled contours of (limits, limits) values with a scale, and the line along which the goal is reached."""
    (x, y), (x_name, y_name), pct = map(np.array, limits_s), map(in_figure, names), goal * 100
    low, high, size = levels(float(np.nanmin(values)), float(np.nanmax(values)))
    surface: dict[str, Any] = {"type": "contour", "x": x, "y": y}
    line = {
        **surface, "z": shares.T * 100, "name": f"{pct:g}% of the requests meet both", "showscale": False,
        "contours": {"start": pct, "end": pct, "size": 1, "coloring": "none"}, "hoverinfo": "skip", "meta": style.MARKS,
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
    across, up = (style.log_axis(f"{axis_name} bound (s, log scale)", limits)
                  for axis_name, limits in zip((x_name, y_name), limits_s, strict=True))  # fmt: skip
    style.axes(drawn, across, up)
    return drawn


def levels(low: float, high: float) -> tuple[float, float, float]:
    """Readable first, last and distance of about `LEVELS` contours."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / LEVELS))
    size = next(step * power for step in (1, 2, 5, 10) if step * power * LEVELS >= span)
    return math.floor(low / size) * size, math.ceil(high / size) * size, size
