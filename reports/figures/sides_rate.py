"""Attainment of both sides of a comparison against the rate, with both bands: how far each carries the traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from harness.stats.curves import crossing
from harness.stats.seeds import LEAST_SEEDS, spread
from reports import _format
from reports._format import clean, in_figure
from reports.figures import _share, _sides, _sides_searched
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.comparison import Comparison

ORDER = 2
OF = "compare"
SECTION = "curves"
TITLE = "Attainment of both sides against the rate"
WEIGHT = 1000
"""Requests that each point counts as where the crossing is looked for: every point alike."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Axis:
    """What the points differ in: its name, its values, and what a value of each side is divided by."""

    name: str
    values: tuple[float, ...]
    gpus: Mapping[str, float]

    def of(self, side: str) -> list[float]:
        """The values of a side: rates are those per GPU."""
        return [value / self.gpus[side] for value in self.values]

    @property
    def title(self) -> str:
        if self.name != "rate":
            return f"{in_figure(self.name)} (as given)"
        return "rate (requests/s per GPU)" if self.gpus["base"] else "rate (requests/s)"


def figure(comparison: Comparison) -> go.Figure | str:
    """Share of requests within the SLO against the rate per GPU (or another axis), of base and head."""
    info = comparison.info
    if comparison.searches:
        return _sides_searched.figure(comparison)
    rows = comparison.of_metric("attainment")
    if info["refused"] or not rows:
        return "The runs have no SLO in common, so there is no attainment to draw; give --slo ttft=0.25,tpot=0.1."
    found = _axis(info, rows)
    if isinstance(found, str):
        return found
    order = np.argsort(found.values)
    drawn = style.new(440)
    for side in _sides.SIDES:
        x = np.asarray(found.of(side))[order]
        _joint(drawn, x, [rows[i] for i in order], side)
        for name, bound in comparison.bounds:  # of which a point of `rows` may have none
            at = {tuple(row["point"].items()): row for row in comparison.of_metric(name)}
            _alone(drawn, x, [at.get(tuple(rows[i]["point"].items())) for i in order], side, bound)
    everything = [x for side in _sides.SIDES for x in found.of(side)]
    pad = 0.04 * (max(everything) - min(everything))
    shares = [(row.get("values") or {}).get(side) or [row[side]] for row in rows for side in _sides.SIDES]
    percents = [100 * share for one in shares for share in one if share is not None]
    drawn.update_layout(
        xaxis=style.axis(found.title, range=[min(everything) - pad, max(everything) + pad]),
        yaxis=_share.axis("requests within the SLO (%)", percents),
    )
    goal = info["goal"]
    drawn.add_hline(
        y=goal * 100, line={"color": style.GREY, "width": 1, "dash": "dash"}, annotation_text=f"goal {goal * 100:g}%",
        annotation_position="top right", annotation_font_size=12,
    )  # fmt: skip
    carried = {side: _carried(found, rows, order, side, goal) for side in _sides.SIDES}
    for place, side in enumerate(_sides.SIDES):
        _drop(drawn, carried[side], side, goal, place, everything)
    return style.done(drawn, _finding(carried, found, goal, rows), _notes(rows, found, carried))


def _axis(info: Mapping[str, Any], rows: Sequence[Row]) -> _Axis | str:
    """The one number in which the points differ; the sentence that says why there is none."""
    named = [row["point"] for row in rows]
    if len(rows) < 2:
        return "Runs at one rate are no curve over the rate: compare two sweeps or two searches (bench sweep --out)."
    names = list(dict.fromkeys(name for point in named for name in point))
    varied = [name for name in names if len({point.get(name) for point in named}) > 1]
    if len(varied) != 1:
        return f"The points differ in {clean(' and '.join(varied))}, so there is no single axis; compare one of them."
    values = [_value(point.get(varied[0])) for point in named]
    if None in values:
        return (
            f"The points differ in {clean(varied[0])}, which is no number; the table of the gates has a row for each."
        )
    rate = varied[0] == "rate"
    gpus = {side: info[side]["system"].get("gpus") for side in _sides.SIDES}
    known = rate and all(isinstance(n, int) and n > 0 for n in gpus.values())
    shares = {side: float(gpus[side]) if known else 1.0 for side in _sides.SIDES}
    return _Axis(varied[0], tuple(value for value in values if value is not None), shares)


def _value(text: object) -> float | None:
    try:
        return float(str(text).removesuffix("/s"))
    except ValueError:
        return None


def _joint(drawn: go.Figure, x: np.ndarray, rows: Sequence[Row], side: str) -> None:
    mean, low, high, said = _spreads(rows, side)
    if said:
        _sides.band(drawn, x, (low, high), side, said)
    drawn.add_scatter(
        x=x, y=mean, name=side, mode="lines+markers", line=style.line(_sides.COLORS[side], width=3),
        marker={"size": 9, "symbol": _sides.SYMBOLS[side], "color": _sides.COLORS[side]},
        hovertemplate=f"{side}: %{{x:.4r}}: %{{y:.1f}}%",
    )  # fmt: skip


def _alone(drawn: go.Figure, x: np.ndarray, rows: Sequence[Row | None], side: str, bound: str) -> None:
    """The share that keeps one bound alone."""
    y = np.array([np.nan if row is None or row[side] is None else 100 * row[side] for row in rows])
    drawn.add_scatter(
        x=x, y=y, name=f"{side}, {_sides.label(bound)} only", mode="lines+markers",
        line=style.line(_sides.COLORS[side], _sides.dash(bound), 1.5),
        marker={"size": 5, "symbol": _sides.SYMBOLS[side], "color": _sides.COLORS[side]},
        hovertemplate=f"{side}: %{{x:.4r}}: %{{y:.1f}}%",
    )  # fmt: skip


def _spreads(rows: Sequence[Row], side: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Mean and band of a side in percent, and what the band is; empty where there is one pair or no single values."""
    mean = np.array([np.nan if row[side] is None else 100 * row[side] for row in rows])
    every = [spread((row.get("values") or {}).get(side) or [], most=1.0) for row in rows]
    if not any(found is not None and found["n"] > 1 for found in every):
        return mean, mean, mean, ""
    ends = [[np.nan, np.nan] if f is None else [f["least"], f["most"]] if f["low"] is None else [f["low"], f["high"]]
            for f in every]  # fmt: skip
    low, high = 100 * np.array(ends).T
    return mean, low, high, "95% interval" if _enough(rows) else "range over the pairs"


def _enough(rows: Sequence[Row]) -> bool:
    return all(row["pairs"] >= LEAST_SEEDS for row in rows)


def _carried(found: _Axis, rows: Sequence[Row], order: np.ndarray, side: str, goal: float) -> float | str:
    """Where the mean attainment of a side falls below the goal; 'above' or 'below' where all of it is."""
    x, y = np.asarray(found.of(side))[order], [rows[i][side] for i in order]
    if None in y or x[0] <= 0:
        return "unknown"
    at = crossing(x.tolist(), y, [WEIGHT] * len(y), goal)
    return at.at if at.at is not None else str(at.side)


def _drop(
    drawn: go.Figure, at: float | str, side: str, goal: float, place: int, values: Sequence[float]
) -> None:  # fmt: skip
    """The line from where the goal is crossed down to the axis, with its value on the side that has room."""
    if isinstance(at, str):
        return
    drawn.add_shape(
        type="line",
        x0=at,
        x1=at,
        y0=-2,
        y1=100 * goal,
        line={"color": _sides.COLORS[side], "width": 1.5, "dash": "dot"},
    )
    left = at > (min(values) + max(values)) / 2
    drawn.add_annotation(
        x=at, y=0.02 + 0.08 * place, yref="paper", text=f"{side} {_format.number(at)}", showarrow=False,
        font={"size": 12}, xanchor="right" if left else "left", xshift=-4 if left else 4, yanchor="bottom",
    )  # fmt: skip


def _finding(carried: Mapping[str, float | str], found: _Axis, goal: float, rows: Sequence[Row]) -> str:
    unit = "req/s per GPU" if found.name == "rate" else clean(found.name)
    base, head = carried["base"], carried["head"]
    if isinstance(base, float) and isinstance(head, float):
        return (
            f"The base keeps {goal * 100:g}% up to {_format.number(base)} {unit}, the head up to "
            f"{_format.number(head)}: {_format.number(head / base)} times as far."
        )
    told = {
        "above": f"keeps {goal * 100:g}% at all points", "below": f"keeps {goal * 100:g}% at none of the points",
        "unknown": "was not measured at all points",
    }  # fmt: skip
    parts = [
        f"the {side} keeps {goal * 100:g}% up to {_format.number(at)} {unit}"
        if isinstance(at, float)
        else f"the {side} {told[at]}"
        for side, at in carried.items()
    ]
    low, high = (_format.option(end) for end in (min(found.values), max(found.values)))
    return f"Over {len(rows)} points from {clean(found.name)} {low} to {high} {' and '.join(parts)}."


def _notes(rows: Sequence[Row], found: _Axis, carried: Mapping[str, float | str]) -> Iterator[str]:
    if any(isinstance(at, float) for at in carried.values()):
        yield "Crossings are interpolated between points, without an interval of their own."
    if max(row["pairs"] for row in rows) > 1:
        yield f"Bands are the {'95% interval of the mean' if _enough(rows) else 'range'} over the pairs."
    if found.name == "rate" and found.gpus["base"] != found.gpus["head"]:
        base, head = (_format.count(found.gpus[side], "GPU") for side in _sides.SIDES)
        yield f"The base has {base}, the head {head}."
