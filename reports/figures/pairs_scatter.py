"""Paired scatter of a comparison: each gated metric in the base and in the head, a dot for each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from harness.experiments.compare import wording
from reports import _format
from reports._format import clean
from reports.answers import compare as told
from reports.figures import _sides
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.comparison import Comparison

ORDER = 4
OF = "compare"
SECTION = "pairs"
TITLE = "Each pair: base against head"
MOST = 4
"""Metrics that are drawn, two in a row."""

ROWS = 60
"""Rows of the table."""

_COLUMNS = 2
_WIDE = 20.0
"""Values that lie further apart than by this factor are drawn on log axes."""

Row = Mapping[str, Any]


def figure(comparison: Comparison) -> go.Figure | str:
    """Value in the head against value in the base, a panel for each gated metric and a dot for each pair."""
    info = comparison.info
    if info["refused"]:
        return "The runs cannot be compared, so no pair is drawn; what stands against it is listed below."
    if info["gates"] and not any("values" in row for row in info["gates"]):
        return "An older bench made this answer, without the values of each pair; compare the runs again to see them."
    found = {metric: points for metric, points in _points(info["gates"]).items() if len(points[1])}
    if not found:
        return "No gated metric has a value on both sides of a pair; name others with --gate."
    drawn = _panels(len(found))
    for place, (row, points) in enumerate(found.values()):
        _panel(drawn, row, points, place)
    return style.done(drawn, _finding(found), _notes(info, found), _table(info["gates"], found))


def _points(gates: Sequence[Row]) -> dict[str, tuple[Row, np.ndarray]]:
    """Metric -> its first row and (pairs, 2) values in the base and in the head, of all points."""
    found: dict[str, tuple[Row, list[tuple[float, float]]]] = {}
    for row in gates:
        _, points = found.setdefault(row["metric"], (row, []))
        values = row.get("values") or {"base": (), "head": ()}
        both = zip(values["base"], values["head"], strict=True)
        points += [(float(a), float(b)) for a, b in both if a is not None and b is not None]
    most = list(found.items())[:MOST]
    return {metric: (row, _sides.factor(row) * np.array(points).reshape(-1, 2)) for metric, (row, points) in most}


def _table(gates: Sequence[Row], found: Mapping[str, Any]) -> style.Table:
    """A row for each pair of each metric, evenly chosen where they are many."""
    every = [
        [clean(f"{wording.at(row)}{row['label']}"), str(pair), *(told.value({**row, "base": v}, "base") for v in both)]
        for row in gates
        if row["metric"] in found
        for pair, both in enumerate(zip(*(row["values"][side] for side in _sides.SIDES), strict=True), 1)
    ]
    kept = np.unique(np.linspace(0, len(every) - 1, min(len(every), ROWS)).astype(np.int64))
    return ["metric", "pair", "base (with unit)", "head (with unit)"], [every[i] for i in kept], len(every), ""


def _panels(count: int) -> go.Figure:
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    drawn = make_subplots(rows=rows, cols=columns, horizontal_spacing=0.16, vertical_spacing=0.24 / rows)
    drawn.update_layout(style.new(90 + 310 * rows).layout.to_plotly_json())
    return drawn


def _panel(drawn: go.Figure, row: Row, points: np.ndarray, place: int) -> None:
    at = {"row": place // _COLUMNS + 1, "col": place % _COLUMNS + 1}
    name, unit = _sides.label(row["label"]), _sides.unit(row)
    low, high = float(points.min()), float(points.max())
    wide = low > 0 and high > _WIDE * low
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    ends = [low, high] if wide else [low - pad, high + pad]
    drawn.add_scatter(
        x=points[:, 0], y=points[:, 1], name=f"{name} ({unit})", mode="markers", showlegend=False,
        marker={"size": 9, "symbol": "diamond", "color": style.BLUE, "opacity": 0.75},
        hovertemplate="base %{x:.4r}, head %{y:.4r}", **at,
    )  # fmt: skip
    drawn.add_scatter(
        x=ends, y=ends, name="the same on both sides", mode="lines", meta=style.MARKS, hoverinfo="skip",
        line=style.line(style.GREY, "dash", 1.5), showlegend=False, **at,
    )  # fmt: skip
    worse = "above" if row["better"] == "lower" else "below"
    drawn.add_annotation(
        x=0, y=1, xref="x domain", yref="y domain", xanchor="left", yanchor="bottom", yshift=2, showarrow=False,
        text=f"{worse} the line the head is worse", font={"size": 12}, **at,
    )  # fmt: skip
    for side, update in (("base", drawn.update_xaxes), ("head", drawn.update_yaxes)):
        title = f"{side}: {name} ({unit})"
        update(style.log_axis(title, ends) if wide else style.axis(title, range=ends, nticks=5), **at)


def _finding(found: Mapping[str, tuple[Row, np.ndarray]]) -> str:
    parts = []
    for row, points in found.values():
        base, head = points.T
        worse = np.count_nonzero(head > base if row["better"] == "lower" else head < base)
        same = np.count_nonzero(base == head)
        equal = f" and the same in {same}" if same else ""
        parts.append(f"{clean(row['label'])} is worse in {worse} of {_format.count(len(points), 'pair')}{equal}")
    return "In the head " + ", ".join(parts) + "."


def _notes(info: Mapping[str, Any], found: Mapping[str, tuple[Row, np.ndarray]]) -> list[str]:
    several = any(row["point"] for row in info["gates"])
    more = len({row["metric"] for row in info["gates"]}) - len(found)
    return [
        f"A dot is a pair{', of any point' if several else ''}; on the line both sides are the same.",
        f"{more} more gated metrics are not drawn." if more > 0 else "",
    ]
