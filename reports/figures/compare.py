"""Two sides beside one another: losses of the head, latency of both, simulated and measured times."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np

from harness.errors import UsageError
from harness.experiments.compare import wording
from harness.experiments.compare.compare_json import CompareAnswer, GateRow
from harness.experiments.validate.answer import Validation
from harness.metrics.objective import parse_slo
from harness.stats.seeds import LEAST_SEEDS, spread
from harness.stats.tails import CONFIDENCE
from reports import _data, _format
from reports._format import clean, in_figure
from reports.answers import validate
from reports.comparison import METRICS, TIMES_S, Comparison
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.style import SIDES, Look

_LETTERS = 28

_VERDICTS = {
    "regressed": Look(style.VERMILLION, symbol="square"),
    "inconclusive": Look(style.PURPLE, symbol="x"),
    "improved": Look(style.BLUE, symbol="diamond"),
    "equivalent": Look(style.GREEN),
}
MOST = 32
"""Rows that are drawn; all of them are in the table of the gates."""

_ROW = 34
"""Pixels of a row."""

_EDGE = 98.0
"""A loss of a quantity that should be high cannot be above 100 %, so the axis need not go far beyond."""
_SPAN = (0.002, 0.998)
"""Between these shares of either side the curves are drawn."""
_MOST_TIMES = 800
"""Points of a curve."""
MOST_POINTS = 2000
"""Points that are drawn."""
NO_TIMES = "There are no times among these measurements; the percentages stand in the tables."


def label(text: object) -> str:
    """Foreign text that stays short beside an axis."""
    full = str(text)
    return in_figure(full if len(full) <= _LETTERS else f"{full[: _LETTERS - 1]}…")


def forest(comparison: Comparison) -> Drawing | str:
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
        style.axis(
            "",
            range=[len(rows) - 0.5, -0.5],
            type="category",
            showgrid=False,
            categoryorder="array",
            categoryarray=names,
        ),
    )
    drawn.shape("line", x0=0, x1=0, y0=0, y1=1, xref="x", yref="y domain", line={"color": style.GREY, "width": 1})
    drawn.layout["margin"]["r"] = style.BESIDE
    verdicts = [verdict for verdict in _VERDICTS if any(row.verdict == verdict for row in rows)]
    values = {f"{len(rows)} rows": [f"{sum(row.verdict == v for row in rows)} {v}" for v in verdicts]}
    if verdicts != ["equivalent"]:
        worst = max(rows, key=lambda row: (row.verdict == verdicts[0], abs(_loss(row, row.change_pct))))
        point_text = f" at {wording.where(worst.point)}" if worst.point else ""
        values[f"furthest {verdicts[0]}"] = [clean(f"{worst.label}{point_text} {wording.change(worst)}")]
    return style.done(drawn, style.finding(values), _forest_notes(rows, info))


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
    # one metric that tripled would make the zones of a few percent too thin to see; an arrow stands for what is beyond
    limit = max(row.must_detect_pct for row in rows)
    changes = [change for row in rows for change in (row.low_pct, row.high_pct, *row.changes_pct)]
    most = max(abs(change) for change in changes if change is not None)
    return float(min(max(1.08 * most, 1.6 * limit, 1.0), max(6 * limit, 10.0), 1.08 * _EDGE))


def _zones(drawn: Drawing, place: int, row: GateRow, edge: float, *, exact: bool) -> None:
    """The losses that do not matter, and those that must be found (of simulators all others)."""
    least = row.min_effect_pct
    most = least if exact else row.must_detect_pct
    spans = [(-least, least, style.GREY)] if least else []
    for low, high, color in (*spans, (most, edge, style.VERMILLION)):
        if low < edge:
            drawn.shape("rect", x0=low, x1=min(high, edge), y0=place - 0.42, y1=place + 0.42, layer="below",
                fillcolor=style.faint(color), line={"width": 0},
            )  # fmt: skip


def _means(drawn: Drawing, rows: Sequence[GateRow], names: Sequence[str], *, exact: bool) -> None:
    means = np.array([_loss(row, row.change_pct) for row in rows])
    low, high = np.array([_ends(row, exact=exact) for row in rows]).T
    for verdict, look in _VERDICTS.items():
        if places := [place for place, row in enumerate(rows) if row.verdict == verdict]:
            labels, ends = [names[place] for place in places], (low[places], high[places])
            style.curve(drawn, means[places], labels, verdict, look, "%{x:.3g}", mode="markers", ends=ends, across=True,
                        size=12)  # fmt: skip
    for place, row in enumerate(rows):
        loss = wording.short(row, _loss(row, row.change_pct), exact=exact)
        style.label(drawn, 1, place, loss, xref="paper", xshift=6, yanchor="middle")


def _pairs(drawn: Drawing, rows: Sequence[GateRow], names: Sequence[str]) -> None:
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


def _legend(drawn: Drawing, rows: Sequence[GateRow], names: Sequence[str], edge: float, *, exact: bool) -> None:
    """An arrow where a mean or an end of its bar is beyond the axis; marks of the zones."""
    values = [(_loss(row, row.change_pct), *_ends(row, exact=exact)) for row in rows]
    far = [
        (name, loss)
        for name, losses in zip(names, values, strict=True)
        for loss in {math.copysign(edge, value): value for value in losses if abs(value) > edge}.values()
    ]
    if far:
        style.curve(
            drawn, [math.copysign(edge * 0.985, loss) for _, loss in far], [name for name, _ in far],
            "beyond the axis", Look(style.GREY), None, mode="markers", size=13, meta=style.MARKS,
            symbols=["triangle-right" if loss > 0 else "triangle-left" for _, loss in far],
        )  # fmt: skip
    ignored = {"ignored": style.GREY} if any(row.min_effect_pct for row in rows) else {}
    for name, color in (ignored | {"counts as a loss" if exact else "must be found": style.VERMILLION}).items():
        look = Look(style.faint(color), symbol="square")
        style.curve(drawn, [np.nan], names[:1], name, look, None, mode="markers", size=12, meta=style.MARKS)


def _unique(names: Sequence[str]) -> list[str]:
    """Names that a category axis keeps apart."""
    unique: list[str] = []
    for name in names:
        unique.append(name if name not in unique else f"{name} ({sum(name in other for other in unique) + 1})")
    return unique


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


def cdf_difference(comparison: Comparison) -> Drawing | str:
    """Share of the requests at or below a latency, of both sides, mean of the pairs; where they are furthest apart."""
    if not comparison.contrasts:
        return comparison.missing
    spans = {metric: span for metric in METRICS if (span := _spanned(comparison, metric)).any()}
    if not spans:
        return style.UNANSWERED
    drawn = style.panels([1 / len(spans)] * len(spans), 60 + 320 * len(spans), shared=False, spacing=0.14)
    values, pairs = {}, len(comparison.contrasts)
    what = f"{CONFIDENCE:.0%} interval of the mean" if pairs >= LEAST_SEEDS else "range"
    note = f"{what} of {pairs} pairs" if pairs > 1 else ""
    for row, (metric, span) in enumerate(spans.items(), 1):
        name, x, sides = _data.label(metric), TIMES_S[span], _within(comparison, metric)
        for side, shares in zip(SIDES, sides, strict=True):
            if note:
                spreads = [spread(at_x, most=1.0) for at_x in shares[:, span].T.tolist()]
                low, high = 100 * np.array([of_pairs.ends for of_pairs in spreads if of_pairs is not None]).T
                names = f"{side}, low end of the {name}, {note}", f"{side}, high end of the {name}, {note}"
                style.band(drawn, x, (low, high), names, SIDES[side].color, row=row)
            look = SIDES[side]._replace(dash="dash" if side == "base" else "solid", width=2.5)
            means = 100 * shares[:, span].mean(axis=0)
            style.curve(drawn, x, means, f"{name}, {side}", look, style.OF_SECONDS, row=row, mode="lines",
                        legendgroup=side)  # fmt: skip
        style.axes(drawn, style.log_axis(f"{name} (s, log scale)", x), style.axis("at or below (%)"), row)
        for place, limit in enumerate(_limits(comparison, metric)):
            look = Look(style.GREY, "dot", width=1.5)
            style.upright(drawn, limit, f"SLO {_format.limit(limit)}", place, row=row, look=look)
        # over all times, drawn or not: where the sides are furthest apart may lie between two drawn points
        gap = 100 * (sides[1] - sides[0]).mean(axis=0)
        widest = int(np.nanargmax(np.abs(gap)))
        values[name] = [
            f"furthest apart at {_format.seconds(float(TIMES_S[widest]))}",
            f"head {'more' if gap[widest] > 0 else 'fewer'} by {_format.number(abs(gap[widest]))} points there",
        ] if abs(gap[widest]) >= 0.05 else ["the same to 0.05 points at any time"]  # fmt: skip
    return style.done(drawn, style.finding(values), [
        f"At {comparison.point}." if comparison.point else "",
        "Failed requests are never answered; requests of one token have no TPOT. Shares are exact where drawn.",
        f"Bands: {note}." if note else "",
    ])  # fmt: skip


def _within(comparison: Comparison, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, times) shares of the base and of the head."""
    base, head = (np.stack([c.within[place][metric] for c in comparison.contrasts]) for place in (0, 1))
    return base, head


def _spanned(comparison: Comparison, metric: str) -> np.ndarray:
    """Which of the times are drawn: from where one side begins to answer to where both have all but ended."""
    base, head = (side.mean(axis=0) for side in _within(comparison, metric))
    low, high = np.minimum(base, head), np.maximum(base, head)
    inside = np.flatnonzero((high >= high[0] + _SPAN[0]) & (low <= _SPAN[1] * low[-1]))
    return inside[:: max(1, -(-len(inside) // _MOST_TIMES))]


def _limits(comparison: Comparison, metric: str) -> Iterator[float]:
    """The bounds of the SLO on every request of all classes."""
    info = comparison.info
    try:
        bounds = parse_slo(info.slo, goal=info.goal).bounds if info.slo else ()
    except UsageError:
        return
    yield from (b.limit for b in bounds if b.metric == metric and b.tag is None and b.percentile is None)


def real_plane(one: Validation) -> Drawing | str:
    """Simulated against measured seconds, a mark for each run and metric, with the diagonal where both agree."""
    pairs = [
        pair for pair in one.pairs if not pair.metric.endswith("_pct") and pair.measured > 0 and pair.simulated > 0
    ]
    if not pairs:
        return NO_TIMES
    plotted = [pairs[i] for i in style.evenly(len(pairs), MOST_POINTS)]
    drawn = style.new(520)
    for metric, look in zip(dict.fromkeys(pair.metric for pair in plotted), cycle(style.SYSTEMS), strict=False):
        group = [pair for pair in plotted if pair.metric == metric]
        style.curve(
            drawn, [pair.measured for pair in group], [pair.simulated for pair in group], validate.name(metric),
            look, "measured %{x:.4r} s, simulated %{y:.4r} s", mode="markers",
            symbols=look.symbols(pair.calibrated for pair in group), marker={"opacity": 0.8},
        )  # fmt: skip
    values = [float(getattr(pair, side)) for pair in plotted for side in ("measured", "simulated")]
    style.diagonal(drawn, [min(values), max(values)], "both alike")
    style.axes(drawn, style.log_axis("measured (s)", values), style.log_axis("simulated (s)", values))
    scored = [pair for pair in pairs if not pair.calibrated] or pairs
    close = sum(abs(pair.error) <= 10 for pair in scored)
    finding = style.finding({"Simulated times within 10% of the measured ones": [f"{close:,} of {len(scored):,}"]})
    return style.done(drawn, finding, [
        "Hollow marks were seen by the calibration and are not scored." if any(p.calibrated for p in pairs) else "",
        style.reduced(len(pairs), len(plotted), "points", "evenly chosen"),
    ])  # fmt: skip
