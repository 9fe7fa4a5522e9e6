"""Forest plot of a comparison: the loss of each gated metric with a dot for each pair, its bounds, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from harness.experiments.compare import wording
from reports import _format
from reports._format import clean
from reports.figures import _reduce, _sides
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.comparison import Comparison

ORDER = 1
OF = "compare"
SECTION = "losses"
TITLE = "Losses of the gated metrics"

MOST = 32
"""Rows that are drawn; all of them are in the table of the gates."""

_LOOKS = {
    "regressed": (style.VERMILLION, "square"),
    "inconclusive": (style.PURPLE, "x"),
    "improved": (style.BLUE, "diamond"),
    "equivalent": (style.GREEN, "circle"),
}
COLUMNS = 12
"""Most pairs that are columns of the table; all are in the JSON of the answer."""

_ROW = 34
_EDGE = 98.0
"""A loss of a quantity that should be high cannot be above 100 %, so the axis need not go far beyond."""

Row = Mapping[str, Any]


def figure(comparison: Comparison) -> go.Figure | str:
    """The loss in percent of each gated metric at each point, a row each; to the right is worse."""
    rows, left_out = _rows(comparison)
    if isinstance(rows, str):
        return rows
    names = _unique([_sides.row_label(row) for row in rows])
    drawn = style.new(height=110 + _ROW * len(rows))
    edge, exact = _edge(rows), comparison.info["mode"] == "exact"
    _zones(drawn, rows, edge, exact=exact)
    _means(drawn, rows, names, comparison.info)
    _pairs(drawn, rows, names)
    _beyond(drawn, rows, names, edge)
    _legend(drawn, rows, names, exact=exact)
    drawn.update_layout(
        xaxis=style.axis("loss of the head, right is worse (%; points for shares)", range=[-edge, edge]),
        yaxis=style.axis("", range=[len(rows) - 0.5, -0.5], type="category", showgrid=False),
        margin={**drawn.layout.margin.to_plotly_json(), "r": 78, "l": 20},
    )
    drawn.add_vline(x=0, line={"color": style.GREY, "width": 1})
    info = comparison.info
    return style.done(drawn, _finding(rows, info), _notes(rows, left_out, info), _table(rows, info))


def _rows(comparison: Comparison) -> tuple[list[Row] | str, int]:
    """The rows that have a loss, by metric and then by point; or the sentence that says why there are none."""
    info = comparison.info
    if info["refused"]:
        return "The runs cannot be compared, so there are no losses; what stands against it is listed below.", 0
    gates = info["gates"]
    known = [row for row in gates if row["change_pct"] is not None]
    if not known:
        return "No gated metric has a loss that is a number; name others with --gate.", 0
    if info["exact"] and info["exact"]["identical"]:
        return "Both sides are equal to the last bit, so every loss is 0 and there is nothing to draw.", 0
    order = list(dict.fromkeys(row["metric"] for row in gates))
    known.sort(key=lambda row: order.index(row["metric"]))
    if len(known) <= MOST:
        return known, 0
    told = [row for row in known if row["verdict"] != "equivalent"][:MOST]
    return told or known[:MOST], len(known) - len(told or known[:MOST])


def _loss(row: Row, change_pct: float | None) -> float:
    """A change of the quantity as its loss in percent or points; NaN where it is not known."""
    if change_pct is None:
        return math.nan
    return (-change_pct if row["better"] == "higher" else change_pct) + 0.0


def _ends(row: Row, *, exact: bool) -> tuple[float, float]:
    """Both ends of the bar: the bounds, of simulators the range over the pairs; NaN where there are none."""
    if exact:
        known = [_loss(row, change) for change in row["changes_pct"] if change is not None]
        return (min(known), max(known)) if len(known) > 1 else (math.nan, math.nan)
    ends = [_loss(row, row[end]) for end in ("low_pct", "high_pct")]
    return min(ends), max(ends)


def _edge(rows: Sequence[Row]) -> float:
    """How far the axis goes: as far as the losses do, but not so far that the limits cannot be seen."""
    most_limit = max(row["must_detect_pct"] for row in rows)
    changes = [row[key] for row in rows for key in ("low_pct", "high_pct")]
    changes += [change for row in rows for change in row["changes_pct"]]
    most = max(abs(change) for change in changes if change is not None)
    return float(min(max(1.08 * most, 1.6 * most_limit, 1.0), max(6 * most_limit, 10.0), 1.08 * _EDGE))


def _zones(drawn: go.Figure, rows: Sequence[Row], edge: float, *, exact: bool) -> None:
    """Per row the losses that nobody cares about, and those that must be found (of simulators all others)."""
    for place, row in enumerate(rows):
        least = row["min_effect_pct"]
        most = least if exact else row["must_detect_pct"]
        spans = [(-least, least, style.GREY)] if least else []
        for low, high, color in (*spans, (most, edge, style.VERMILLION)):
            if low < edge:
                drawn.add_shape(
                    type="rect", x0=low, x1=min(high, edge), y0=place - 0.42, y1=place + 0.42, layer="below",
                    fillcolor=style.faint(color), line={"width": 0},
                )  # fmt: skip


def _means(drawn: go.Figure, rows: Sequence[Row], names: Sequence[str], info: Mapping[str, Any]) -> None:
    exact = info["mode"] == "exact"
    means = np.array([_loss(row, row["change_pct"]) for row in rows])
    low, high = (np.array([_ends(row, exact=exact)[end] for row in rows]) for end in (0, 1))
    looks = [_LOOKS[row["verdict"]] for row in rows]
    drawn.add_scatter(
        x=means, y=names, name="mean over the pairs" if any(row["pairs"] > 1 for row in rows) else "loss",
        mode="markers", showlegend=False,
        marker={"color": [color for color, _ in looks], "symbol": [symbol for _, symbol in looks], "size": 12},
        error_x={"type": "data", "symmetric": False, "array": np.nan_to_num(high - means),
                 "arrayminus": np.nan_to_num(means - low), "thickness": 2, "width": 6, "color": style.GREY},
        hovertemplate="%{x:.3g}",
    )  # fmt: skip
    for place, row in enumerate(rows):
        drawn.add_annotation(
            x=1, xref="paper", xanchor="left", xshift=6, y=place, text=_told(row, exact=exact), showarrow=False,
            font={"size": 12},
        )  # fmt: skip


def _told(row: Row, *, exact: bool) -> str:
    """The loss beside its row: '~' where it could be chance."""
    if exact and not any(row["losses"]):
        return "same"
    if not exact and (row["low_pct"] is None or row["low_pct"] <= 0 <= row["high_pct"]):
        return "~"
    unit = " pts" if row["scale"] == "difference" else "%"
    return f"{wording.percent(_loss(row, row['change_pct']), signed=True)}{unit}"


def _pairs(drawn: go.Figure, rows: Sequence[Row], names: Sequence[str]) -> None:
    """A dot for each pair; the pairs are counted at each point."""
    if all(len(row["changes_pct"]) < 2 for row in rows):
        return
    dots = [
        (_loss(row, change), name, pair)
        for row, name in zip(rows, names, strict=True)
        for pair, change in enumerate(row["changes_pct"], 1)
        if change is not None
    ]
    kept = [dots[i] for i in _reduce.sampled(np.array([loss for loss, _, _ in dots]))]
    drawn.add_scatter(
        x=np.array([loss for loss, _, _ in kept]), y=[name for _, name, _ in kept], mode="markers", name="pairs",
        marker={"size": 6, "color": style.GREY, "symbol": "circle-open", "line": {"width": 1.2}}, showlegend=False,
        customdata=[pair for _, _, pair in kept], hovertemplate="pair %{customdata}: %{x:.3g}",
    )  # fmt: skip


def _table(rows: Sequence[Row], info: Mapping[str, Any]) -> style.Table:
    """The same as numbers: losses in percent, of shares in points."""
    exact = info["mode"] == "exact"
    most = max(len(row["changes_pct"]) for row in rows)
    most = most if 1 < most <= COLUMNS else 0
    bound = "of the pairs" if exact else f"{100 * (1 - info['alpha']):.4g}% bound"
    ends = [f"least {bound}", f"most {bound}"] if exact else [f"lower {bound}", f"upper {bound}"]
    heads = ["metric", "unit of the loss", "loss, mean", *ends, *(f"pair {pair + 1}" for pair in range(most))]
    printed = []
    for row in rows:
        pairs = [_loss(row, change) for change in row["changes_pct"][:most]]
        numbers = [_loss(row, row["change_pct"]), *_ends(row, exact=exact), *pairs, *[math.nan] * (most - len(pairs))]
        unit = "points" if row["scale"] == "difference" else "%"
        printed.append([clean(f"{wording.at(row)}{row['label']}"), unit, *(_format.number(n) for n in numbers)])
    return heads, printed, len(rows), ""


def _beyond(drawn: go.Figure, rows: Sequence[Row], names: Sequence[str], edge: float) -> None:
    """An arrow at the edge of the axis for each mean that is beyond it."""
    far = [(name, np.sign(loss), row) for name, row in zip(names, rows, strict=True)
           if abs(loss := _loss(row, row["change_pct"])) > edge]  # fmt: skip
    if far:
        drawn.add_scatter(
            x=[sign * edge * 0.985 for _, sign, _ in far], y=[name for name, _, _ in far], mode="markers",
            name="beyond the axis", meta=style.MARKS, hoverinfo="skip",
            marker={"size": 13, "color": [_LOOKS[row["verdict"]][0] for _, _, row in far],
                    "symbol": ["triangle-right" if sign > 0 else "triangle-left" for _, sign, _ in far]},
        )  # fmt: skip


def _legend(drawn: go.Figure, rows: Sequence[Row], names: Sequence[str], *, exact: bool) -> None:
    """Marks of the verdicts that are there, and of the zones."""
    entries: list[tuple[str, str, str]] = [
        (verdict, *look) for verdict, look in _LOOKS.items() if any(row["verdict"] == verdict for row in rows)
    ]
    if any(row["min_effect_pct"] for row in rows):
        entries.append(("ignored", style.faint(style.GREY), "square"))
    entries.append(("counts as a loss" if exact else "must be found", style.faint(style.VERMILLION), "square"))
    for name, color, symbol in entries:
        drawn.add_scatter(
            x=np.array([np.nan]), y=names[:1], name=name, mode="markers", meta=style.MARKS,
            marker={"color": color, "symbol": symbol, "size": 12},
        )  # fmt: skip


def _unique(names: Sequence[str]) -> list[str]:
    """Names that a category axis keeps apart."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name} ({sum(name in other for other in found) + 1})")
    return found


def _finding(rows: Sequence[Row], info: Mapping[str, Any]) -> str:
    verdicts = [verdict for verdict in _LOOKS if any(row["verdict"] == verdict for row in rows)]
    if verdicts == ["equivalent"]:
        return f"{_every(rows)} equivalent: no loss as large as must be found is possible within its bounds." if (
            info["mode"] == "paired"
        ) else f"{_every(rows)} equivalent: none is worse."  # fmt: skip
    if len(rows) == 1:
        return clean(f"{verdicts[0].capitalize()}: {wording.at(rows[0])}{rows[0]['label']} {wording.change(rows[0])}.")
    counts = ", ".join(f"{sum(row['verdict'] == v for row in rows)} {v}" for v in verdicts)
    worst = max(rows, key=lambda row: (row["verdict"] == verdicts[0], abs(_loss(row, row["change_pct"]))))
    where = f" at {wording.where(worst)}" if worst["point"] else ""
    told = clean(f"{worst['label']}{where}, which {wording.change(worst)}")
    return f"Of {_format.count(len(rows), 'row')} {counts}; the furthest {verdicts[0]} is {told}."


def _every(rows: Sequence[Row]) -> str:
    return "The gated metric is" if len(rows) == 1 else f"All {len(rows)} rows are"


def _notes(rows: Sequence[Row], left_out: int, info: Mapping[str, Any]) -> Iterator[str]:
    if info["mode"] == "exact":
        yield (
            "Simulators have no noise: bars are the range over the pairs."
            if any(row["pairs"] > 1 for row in rows)
            else "Simulators have no noise: there is nothing to draw bounds from, and any loss counts."
        )
    else:
        yield f"Bars are one-sided {100 * (1 - info['alpha']):.4g}% bounds on either side; ~ is no significant loss."
    if left_out:
        yield f"{left_out} more rows that are equivalent are in the table of the gates."
    far = [row for row in rows if row["endless"]]
    if far:
        yield f"In {_format.count(len(far), 'row')} some pairs were measured on one side only, and have no dot."
