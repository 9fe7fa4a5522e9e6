"""Figures of what `bench slo` has answered: attainment against the SLO scale, goodput over two bounds."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports._format import in_figure
from reports.figures import _plane
from reports.figures import _style as style

Info = Mapping[str, Any]

_LOOKS = ((style.VERMILLION, "dot", "square"), (style.GREEN, "dash", "diamond"), (style.PURPLE, "dashdot", "x"))
FEW = "A picture needs two scales or more; the table has the one that was asked for."
NARROW = "A picture needs two bounds or more of each metric; the table has those that were asked for."


def scale(slo: Info, goals: Sequence[float]) -> go.Figure | str:
    """Attainment of an objective at the scales that were asked for."""
    told = slo["scale"]
    factors = np.array(told["factors"], np.float64)
    if len(factors) < 2:
        return FEW
    drawn = style.new(400)
    _curve(drawn, factors, told["attainment"], "all bounds", style.line(style.BLUE, width=3), "circle")
    several = told["bounds"] if len(told["bounds"]) > 1 else {}
    for number, (name, shares) in enumerate(several.items()):
        color, dash, symbol = _LOOKS[number % len(_LOOKS)]
        _curve(drawn, factors, shares, f"{in_figure(name)} only", style.line(color, dash), symbol)
    drawn.update_layout(
        xaxis=style.log_axis("SLO scale (1 = the objective)", factors.tolist()),
        yaxis=style.axis("requests within (%)", range=[-2, 104]),
    )
    for goal in goals:
        style.level(drawn, goal * 100, f"goal {goal * 100:g}%")
    return style.done(drawn, _crossed(told, goals))


def plane(run: Info) -> go.Figure | str:
    """Goodput under the pairs of bounds that were asked for."""
    told = run["plane"]
    (down, across), limits = told["metrics"], [np.array(values, np.float64) for values in told["limits_s"]]
    if min(map(len, limits)) < 2:
        return NARROW
    goodput = np.array(told["goodput_rps"], np.float64).T  # rows are the second metric
    shares, goal = np.array(told["attainment"], np.float64).T, run["goals"][0]
    drawn = style.new(460)
    ends = (float(np.nanmin(goodput)), float(np.nanmax(goodput)))
    drawn.add_trace(_plane.surface(limits[0], limits[1], goodput, "goodput", "req/s", ends, (down, across)))
    drawn.add_traces(_plane.goal_line(limits[0], limits[1], shares * 100, goal))
    drawn.update_layout(
        xaxis=style.log_axis(f"{in_figure(down)} bound (s, log scale)", limits[0].tolist()),
        yaxis=style.log_axis(f"{in_figure(across)} bound (s, log scale)", limits[1].tolist()),
    )
    return style.done(drawn, _plane_finding(told, goal), [f"Exact counts at each of the {goodput.size:,} pairs."])


def _curve(
    drawn: go.Figure, factors: np.ndarray, shares: Sequence[float], name: str, line: dict[str, object], symbol: str
) -> None:
    drawn.add_scatter(
        x=factors, y=np.array(shares, np.float64) * 100, name=name, mode="lines+markers", line=line,
        marker={"symbol": symbol, "size": 7, "color": line["color"]}, hovertemplate="scale %{x:.3r}: %{y:.1f}%",
    )  # fmt: skip


def _crossed(told: Info, goals: Sequence[float]) -> str:
    texts = [
        f"{goal * 100:g}% are within it at no scale" if at is None else
        f"{goal * 100:g}% are within it from scale {_format.number(at)} on"
        for goal, at in zip(goals, told["crossings"], strict=True)
    ]  # fmt: skip
    return f"Of the requests {' and '.join(texts)}."


def _plane_finding(told: Info, goal: float) -> str:
    """The tightest pair of those asked for that reaches the goal, by the product of its bounds."""
    shares, (first, second) = np.array(told["attainment"], np.float64), told["limits_s"]
    kept = np.argwhere(shares >= goal)
    if not len(kept):
        return f"No pair of these bounds is kept by {goal * 100:g}% of the requests."
    i, j = min(kept.tolist(), key=lambda at: first[at[0]] * second[at[1]])
    names = told["metrics"]
    pair = f"{names[0]} {_format.limit(first[i])} and {names[1]} {_format.limit(second[j])}"
    goodput = _format.number(told["goodput_rps"][i][j])
    return f"{goal * 100:g}% of the requests keep {pair}, the tightest such pair, with goodput {goodput} req/s."
