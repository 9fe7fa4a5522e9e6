"""A comparison metric by metric and pair by pair: the losses of the head, and values on both sides."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go

from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, GateRow
from reports import _format
from reports._format import clean, in_figure
from reports.comparison import Comparison
from reports.figures import style
from reports.figures.style import Look

_LETTERS = 28

_VERDICTS = {
    "regressed": Look(style.VERMILLION, symbol="square"),
    "inconclusive": Look(style.PURPLE, symbol="x"),
    "improved": Look(style.BLUE, symbol="diamond"),
    "equivalent": Look(style.GREEN),
}
MOST = 32
"""Rows that are drawn; all of them are in the table of the gates."""

COLUMNS = 12
"""Most pairs that are columns of the table; all are in the JSON of the answer."""

_ROW = 34
"""Pixels of a row."""

_EDGE = 98.0
"""A loss of a quantity that should be high cannot be above 100 %, so the axis need not go far beyond."""


def label(text: object) -> str:
    """Foreign text that stays short beside an axis."""
    full = str(text)
    return in_figure(full if len(full) <= _LETTERS else f"{full[: _LETTERS - 1]}…")


def forest(comparison: Comparison) -> go.Figure | str:
    """The loss in percent of each gated metric at each point: mean, bounds and pairs; to the right is worse."""
    info = comparison.info
    rows = _rows(info)
    if isinstance(rows, str):
        return rows
    exact = info.mode == "exact"
    names = _unique(
        [label(row.label) + (f"<br>{label(wording.where(row.point))}" if row.point else "") for row in rows]
    )
    edge = _furthest(rows)
    drawn = style.new(height=110 + _ROW * len(rows))
    for place, row in enumerate(rows):
        _zones(drawn, place, row, edge, exact=exact)
    _means(drawn, rows, names, exact=exact)
    _pairs(drawn, rows, names)
    _legend(drawn, rows, names, edge, exact=exact)
    style.axes(
        drawn,
        style.axis("loss of the head, right is worse (%; points for shares)", range=[-edge, edge]),
        style.axis("", range=[len(rows) - 0.5, -0.5], type="category", showgrid=False),
    )
    drawn.add_vline(x=0, line={"color": style.GREY, "width": 1})
    drawn.update_layout(margin_r=style.BESIDE)
    verdicts = [verdict for verdict in _VERDICTS if any(row.verdict == verdict for row in rows)]
    values = {f"{len(rows)} rows": [f"{sum(row.verdict == v for row in rows)} {v}" for v in verdicts]}
    if verdicts != ["equivalent"]:
        worst = max(rows, key=lambda row: (row.verdict == verdicts[0], abs(_loss(row, row.change_pct))))
        point_text = f" at {wording.where(worst.point)}" if worst.point else ""
        values[f"furthest {verdicts[0]}"] = [clean(f"{worst.label}{point_text} {wording.change(worst)}")]
    return style.done(drawn, style.finding(values), _forest_notes(rows, info), _forest_table(rows, info))


def _rows(info: CompareAnswer) -> list[GateRow] | str:
    """The rows that have a loss, by metric and then by point; or the sentence that says why there are none."""
    if info.refused:
        return "The runs cannot be compared, so there are no losses; what stands against it is listed below."
    with_loss = [row for row in info.gates if row.change_pct is not None]
    if not with_loss:
        return "No gated metric has a loss that is a number; name others with --gate."
    if info.exact and info.exact.identical:
        return "Both sides are equal to the last bit, so every loss is 0 and there is nothing to draw."
    order = list(dict.fromkeys(row.metric for row in info.gates))
    with_loss.sort(key=lambda row: order.index(row.metric))
    different = [row for row in with_loss if row.verdict != "equivalent"]
    return with_loss if len(with_loss) <= MOST else (different or with_loss)[:MOST]


def _loss(row: GateRow, change_pct: float | None) -> float:
    """A change of the quantity as its loss in percent or points; NaN where it is not known."""
    if change_pct is None:
        return math.nan
    return (-change_pct if row.better == "higher" else change_pct) + 0.0


def _ends(row: GateRow, *, exact: bool) -> tuple[float, float]:
    """Both ends of the bar: the bounds, of simulators the range over the pairs; NaN where there are none."""
    if exact:
        losses = [_loss(row, change) for change in row.changes_pct if change is not None]
        return (min(losses), max(losses)) if len(losses) > 1 else (math.nan, math.nan)
    low, high = sorted(_loss(row, end) for end in (row.low_pct, row.high_pct))
    return low, high


def _furthest(rows: Sequence[GateRow]) -> float:
    """How far the axis goes: as far as the losses do, but not so far that the limits cannot be seen."""
    limit = max(row.must_detect_pct for row in rows)
    changes = [change for row in rows for change in (row.low_pct, row.high_pct, *row.changes_pct)]
    most = max(abs(change) for change in changes if change is not None)
    return float(min(max(1.08 * most, 1.6 * limit, 1.0), max(6 * limit, 10.0), 1.08 * _EDGE))


def _zones(drawn: go.Figure, place: int, row: GateRow, edge: float, *, exact: bool) -> None:
    """The losses that do not matter, and those that must be found (of simulators all others)."""
    least = row.min_effect_pct
    most = least if exact else row.must_detect_pct
    spans = [(-least, least, style.GREY)] if least else []
    for low, high, color in (*spans, (most, edge, style.VERMILLION)):
        if low < edge:
            drawn.add_shape(
                type="rect", x0=low, x1=min(high, edge), y0=place - 0.42, y1=place + 0.42, layer="below",
                fillcolor=style.faint(color), line={"width": 0},
            )  # fmt: skip


def _means(drawn: go.Figure, rows: Sequence[GateRow], names: Sequence[str], *, exact: bool) -> None:
    means = np.array([_loss(row, row.change_pct) for row in rows])
    low, high = np.array([_ends(row, exact=exact) for row in rows]).T
    styles = [_VERDICTS[row.verdict] for row in rows]
    name = "mean over the pairs" if any(row.pairs > 1 for row in rows) else "loss"
    style.curve(
        drawn, means, names, name, Look(style.GREY),
        "%{x:.3g}", mode="markers", showlegend=False, ends=(low, high), across=True, size=12,
        symbols=[look.symbol for look in styles], marker={"color": [look.color for look in styles]},
    )  # fmt: skip
    for place, row in enumerate(rows):
        style.label(drawn, 1, place, _beside(row, exact=exact), xref="paper", xshift=6, yanchor="middle")


def _beside(row: GateRow, *, exact: bool) -> str:
    """The loss beside its row: '~' where it could be chance."""
    if exact and not any(row.losses):
        return "same"
    if not exact and not row.is_significant:
        return "~"
    unit = " pts" if row.scale == "difference" else "%"
    return f"{wording.percent(_loss(row, row.change_pct), signed=True)}{unit}"


def _pairs(drawn: go.Figure, rows: Sequence[GateRow], names: Sequence[str]) -> None:
    """A dot for each pair; the pairs are counted at each point."""
    if all(len(row.changes_pct) < 2 for row in rows):
        return
    dots = [
        (_loss(row, change), name, pair)
        for row, name in zip(rows, names, strict=True)
        for pair, change in enumerate(row.changes_pct, 1)
        if change is not None
    ]
    chosen = [dots[i] for i in style.sampled(np.array([loss for loss, _, _ in dots]))]
    losses, labels, pairs = (list(column) for column in zip(*chosen, strict=True))
    style.curve(
        drawn, np.array(losses), labels, "pairs", Look(style.GREY, symbol="circle-open"),
        "pair %{customdata}: %{x:.3g}", mode="markers", size=6, marker={"line": {"width": 1.2}}, showlegend=False,
        customdata=pairs,
    )  # fmt: skip


def _legend(drawn: go.Figure, rows: Sequence[GateRow], names: Sequence[str], edge: float, *, exact: bool) -> None:
    """An arrow where a mean or an end of its bar is beyond the axis; marks of verdicts and zones."""
    values = [(_loss(row, row.change_pct), *_ends(row, exact=exact)) for row in rows]
    far = [
        (name, loss, row)
        for name, losses, row in zip(names, values, rows, strict=True)
        for loss in {math.copysign(edge, value): value for value in losses if abs(value) > edge}.values()
    ]
    if far:
        style.curve(
            drawn, [math.copysign(edge * 0.985, loss) for _, loss, _ in far], [name for name, _, _ in far],
            "beyond the axis", Look(style.GREY), None, mode="markers", size=13, meta=style.MARKS,
            symbols=["triangle-right" if loss > 0 else "triangle-left" for _, loss, _ in far],
            marker={"color": [_VERDICTS[row.verdict].color for _, _, row in far]},
        )  # fmt: skip
    verdicts = {row.verdict for row in rows}
    entries: list[tuple[str, Look]] = [(verdict, look) for verdict, look in _VERDICTS.items() if verdict in verdicts]
    if any(row.min_effect_pct for row in rows):
        entries.append(("ignored", Look(style.faint(style.GREY), symbol="square")))
    most = "counts as a loss" if exact else "must be found"
    for name, look in (*entries, (most, Look(style.faint(style.VERMILLION), symbol="square"))):
        drawn.add_scatter(
            x=np.array([np.nan]), y=names[:1], name=name, mode="markers", meta=style.MARKS,
            marker={"color": look.color, "symbol": look.symbol, "size": 12},
        )  # fmt: skip


def _unique(names: Sequence[str]) -> list[str]:
    """Names that a category axis keeps apart."""
    unique: list[str] = []
    for name in names:
        unique.append(name if name not in unique else f"{name} ({sum(name in other for other in unique) + 1})")
    return unique


def _forest_table(rows: Sequence[GateRow], info: CompareAnswer) -> style.Table:
    """The same as numbers: losses in percent, of shares in points."""
    exact = info.mode == "exact"
    most = max(len(row.changes_pct) for row in rows)
    most = most if 1 < most <= COLUMNS else 0
    ends = ["least of the pairs", "most of the pairs"]
    if not exact:
        ends = [f"{end} {100 * (1 - info.alpha):.4g}% bound" for end in ("lower", "upper")]
    heads = ["metric", "unit of the loss", "loss, mean", *ends, *(f"pair {pair + 1}" for pair in range(most))]
    cells = []
    for row in rows:
        pairs = [_loss(row, change) for change in row.changes_pct[:most]]
        numbers = [_loss(row, row.change_pct), *_ends(row, exact=exact), *pairs, *[math.nan] * (most - len(pairs))]
        unit = "points" if row.scale == "difference" else "%"
        cells.append([clean(f"{wording.at(row)}{row.label}"), unit, *map(_format.number, numbers)])
    return heads, cells, len(rows), ""


def _forest_notes(rows: Sequence[GateRow], info: CompareAnswer) -> Iterator[str]:
    if info.mode != "exact":
        yield f"Bars are one-sided {100 * (1 - info.alpha):.4g}% bounds on either side; ~ is no significant loss."
    elif any(row.pairs > 1 for row in rows):
        yield "Simulators have no noise: bars are the range over the pairs."
    else:
        yield "Simulators have no noise: there is nothing to draw bounds from, and any loss counts."
    left_out = sum(row.change_pct is not None for row in info.gates) - len(rows)
    if left_out:
        yield f"Rows of the table of the gates that are not drawn: {left_out}."
    if endless := sum(bool(row.endless) for row in rows):
        yield f"Rows in which some pairs were measured on one side only, and have no dot: {endless}."
