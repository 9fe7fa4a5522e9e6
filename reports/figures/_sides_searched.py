"""Attainment of both sides of a comparison of two searches: what each tried, and its capacity with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.figures import _share, _sides
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.comparison import Comparison

Info = Mapping[str, Any]


def figure(comparison: Comparison) -> go.Figure | str:
    """Share of requests within the SLO against the rate per GPU, of the whole trials of both searches."""
    goal = comparison.info["goal"]
    gpus = [(search.get("backend") or {}).get("gpus") for search in comparison.searches.values()]
    per_gpu = all(isinstance(n, int) and n > 0 for n in gpus)
    # what the rates of each side are divided by
    shares = {side: float(s["backend"]["gpus"]) if per_gpu else 1.0 for side, s in comparison.searches.items()}
    drawn = style.new(440)
    rates: list[float] = []
    least: list[float] = []
    found = {}
    for place, side in enumerate(_sides.SIDES):
        search = comparison.searches[side]
        points = search.get("curve") or []
        if not points:
            return f"The search of the {side} has no trials that make a curve; give it more seeds."
        x = np.array([point["rate_rps"] / shares[side] for point in points])
        rates += x.tolist()
        least += [100 * point["least"] for point in points]
        _curve(drawn, x, points, side)
        answer: Info = next((one for one in search.get("answers") or [] if one["goal"] == goal), {})
        found[side] = _capacity(answer, shares[side])
        rates += [rate for rate in found[side] if rate is not None]
        _drop(drawn, found[side], side, goal, place)
    pad = 0.05 * (max(rates) - min(rates)) or 0.05 * max(rates)
    span = [min(rates) - pad, max(rates) + pad]
    drawn.update_layout(
        xaxis=style.axis(f"rate (requests/s{' per GPU' if per_gpu else ''})", range=span),
        yaxis=_share.axis("requests within the SLO (%)", least),
    )
    drawn.add_hline(
        y=goal * 100, line={"color": style.GREY, "width": 1, "dash": "dash"}, annotation_text=f"goal {goal * 100:g}%",
        annotation_position="top right", annotation_font_size=12,
    )  # fmt: skip
    notes = [
        "Bands are the range over the seeds tried; lines fall as attainment must; hollow points were overloaded.",
        "The verdict compares the capacities seed by seed.",
    ]
    return style.done(drawn, _finding(found, "req/s per GPU" if per_gpu else "req/s", goal), notes)


Found = tuple[float | None, float | None, float | None]


def _capacity(answer: Info, share: float) -> Found:
    """Capacity with both ends of its interval, each None where it is not known."""

    def per_gpu(key: str) -> float | None:
        value = answer.get(key)
        return None if value is None else float(value) / share

    return per_gpu("capacity_rps"), per_gpu("low_rps"), per_gpu("high_rps")


def _curve(drawn: go.Figure, x: np.ndarray, points: list[Info], side: str) -> None:
    least, most, falling, mean = (
        np.array([100 * point[key] for point in points]) for key in ("least", "most", "falling", "attainment")
    )
    color, symbol = _sides.COLORS[side], _sides.SYMBOLS[side]
    _sides.band(drawn, x, (least, most), side, "range over the seeds")
    drawn.add_scatter(x=x, y=falling, name=f"{side}, falling curve", mode="lines", line=style.line(color, width=3))
    drawn.add_scatter(
        x=x, y=mean, name=f"{side}, as found", mode="markers", hovertemplate=f"{side}: %{{x:.4r}}: %{{y:.1f}}%",
        marker={"color": color, "size": 9,
                "symbol": [f"{symbol}-open" if point["overloaded"] else symbol for point in points]},
    )  # fmt: skip


def _drop(drawn: go.Figure, found: Found, side: str, goal: float, place: int) -> None:
    """The capacity as a line down from the goal, its interval across that."""
    rate, low, high = found
    if rate is None:
        return
    line = {"color": _sides.COLORS[side], "width": 1.5, "dash": "dot"}
    drawn.add_shape(type="line", x0=rate, x1=rate, y0=-2, y1=100 * goal, line=line)
    if low is not None and high is not None:
        drawn.add_shape(
            type="rect", x0=low, x1=high, y0=-2, y1=100 * goal, line={"width": 0}, layer="below",
            fillcolor=style.faint(_sides.COLORS[side]),
        )  # fmt: skip
    drawn.add_annotation(
        x=low or rate, y=0.02 + 0.08 * place, yref="paper", text=f"{side} {_format.number(rate)}", showarrow=False,
        font={"size": 12}, xanchor="right", xshift=-4, yanchor="bottom",
    )  # fmt: skip


def _finding(found: Mapping[str, Found], unit: str, goal: float) -> str:
    told = {side: _told(capacity, unit) for side, capacity in found.items()}
    base, head = (found[side][0] for side in _sides.SIDES)
    times = f": {_format.number(head / base)} times as much" if base and head else ""
    return f"At {goal * 100:g}% the base carries {told['base']}, the head {told['head']}{times}."


def _told(found: Found, unit: str) -> str:
    rate, low, high = found
    if rate is None:
        return "nothing that the search could tell"
    between = f" ({_format.number(low)} to {_format.number(high)})" if low is not None and high is not None else ""
    return f"{_format.number(rate)} {unit}{between}"
