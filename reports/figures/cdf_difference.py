"""Distribution of TTFT and TPOT on both sides of a comparison, and below each how much more the head has answered."""

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go

from harness.errors import UsageError
from harness.metrics import slo as slos
from reports import _data, _format
from reports.comparison import Comparison, _contrast
from reports.comparison._contrast import METRICS, TIMES_S, Band
from reports.figures import _sides
from reports.figures import _style as style

ORDER = 5
OF = "compare"
SECTION = "pairs"
TITLE = "Latency on both sides, and the difference"
_SPAN = (0.002, 0.998)
"""Between these shares of either side the curves are drawn."""

ROWS = 20
"""Rows of the table for a metric."""

_MOST = 800
"""Points of a curve."""


def figure(comparison: Comparison) -> go.Figure | str:
    """Share of the requests at or below a latency, of both sides; and head minus base in points, mean of the pairs."""
    if not comparison.contrasts:
        return comparison.missing
    metrics = [metric for metric in METRICS if _spanned(comparison, metric).any()]
    if not metrics:
        return "No request ended well on either side, so there is no latency to draw."
    drawn = style.panels([0.27, 0.23] * len(metrics), 60 + 480 * len(metrics), shared=False, spacing=0.09)
    tops = {metric: _metric(drawn, comparison, metric, 2 * place + 1) for place, metric in enumerate(metrics)}
    return style.done(drawn, _finding(tops), _notes(comparison, tops), _table(comparison, tops))


def _within(comparison: Comparison, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(pairs, times) shares of the base and of the head."""
    base, head = (np.stack([c.sides[place].within[metric] for c in comparison.contrasts]) for place in (0, 1))
    return base, head


def _spanned(comparison: Comparison, metric: str) -> np.ndarray:
    """Which of the times are drawn: from where one side begins to answer to where both have all but ended."""
    base, head = (side.mean(axis=0) for side in _within(comparison, metric))
    low, high = np.minimum(base, head), np.maximum(base, head)
    inside = np.flatnonzero((high >= high[0] + _SPAN[0]) & (low <= _SPAN[1] * low[-1]))
    return inside[:: max(1, -(-len(inside) // _MOST))]


def _metric(drawn: go.Figure, comparison: Comparison, metric: str, row: int) -> Band:
    """Both panels of a metric; gives the difference in points over `TIMES_S`."""
    shown, label = _spanned(comparison, metric), _data.label(metric)
    base, head = _within(comparison, metric)
    for side, shares in zip(_sides.SIDES, (base, head), strict=True):
        drawn.add_scatter(
            x=TIMES_S[shown], y=100 * shares.mean(axis=0)[shown], name=f"{label}, {side}", mode="lines",
            line=style.line(_sides.COLORS[side], "dash" if side == "base" else "solid", 2.5),
            legendgroup=side, hovertemplate="%{x:.4r} s: %{y:.1f}%", row=row, col=1,
        )  # fmt: skip
    found = _contrast.band([100 * pair for pair in head - base])
    if found.said:
        _sides.band(
            drawn,
            TIMES_S[shown],
            (np.maximum(found.low[shown], -100), np.minimum(found.high[shown], 100)),
            "head",
            found.said,
            row=row + 1,
            col=1,
        )
    drawn.add_scatter(
        x=TIMES_S[shown], y=found.mean[shown], name=f"{label}, head - base", mode="lines", showlegend=False,
        line=style.line(style.BLUE), hovertemplate="%{x:.4r} s: %{y:+.2f} points", row=row + 1, col=1,
    )  # fmt: skip
    drawn.add_hline(y=0, line={"color": style.GREY, "width": 1}, row=row + 1, col=1)
    for panel, title in ((row, "at or below (%)"), (row + 1, "head - base (pts)")):
        drawn.update_xaxes(style.log_axis(f"{label} (s, log scale)", TIMES_S[shown]), row=panel, col=1)
        drawn.update_yaxes(style.axis(title), row=panel, col=1)
        for limit in _limits(comparison, metric):
            drawn.add_vline(x=limit, line={"color": style.GREY, "width": 1.5, "dash": "dot"}, row=panel, col=1)
    for limit in _limits(comparison, metric):
        drawn.add_annotation(
            x=float(np.log10(limit)), y=0, yanchor="bottom", xanchor="left", xshift=4, showarrow=False, row=row, col=1,
            text=f"SLO {_format.limit(limit)}", font={"size": 12},
        )  # fmt: skip
    return found


def _table(comparison: Comparison, tops: dict[str, Band]) -> style.Table:
    """Of each metric some of the times, with the shares of both sides and their difference."""
    rows, points = [], 0
    for metric, band in tops.items():
        shown = _spanned(comparison, metric)
        points += len(shown)
        base, head = (100 * side.mean(axis=0) for side in _within(comparison, metric))
        for at in shown[np.unique(np.linspace(0, len(shown) - 1, min(len(shown), ROWS)).astype(np.int64))]:
            values = (TIMES_S[at], base[at], head[at], band.mean[at], band.low[at], band.high[at])
            rows.append([_data.label(metric), *map(_format.number, map(float, values))])
    heads = ["metric", "s", "base, at or below (%)", "head, at or below (%)", "head - base (points)"]
    heads += ["low end of the band (points)", "high end of the band (points)"]
    return heads, rows, points, ""


def _limits(comparison: Comparison, metric: str) -> list[float]:
    """The bounds of the SLO on every request of all classes."""
    try:
        bounds = (
            slos.parse(comparison.info["slo"], goal=comparison.info["goal"]).bounds if comparison.info["slo"] else ()
        )
    except UsageError:
        return []
    return [b.limit for b in bounds if b.metric == metric and b.tag is None and b.percentile is None]


def _finding(tops: dict[str, Band]) -> str:
    parts = []
    for metric, difference in tops.items():
        at = int(np.nanargmax(np.abs(difference.mean)))
        label, points = _data.label(metric), difference.mean[at]
        if abs(points) < 0.05:
            parts.append(f"{label} is the same on both sides to 0.05 points at any time")
            continue
        parts.append(
            f"{label}: the sides are furthest apart at {_format.seconds(float(TIMES_S[at]))}, where the head has "
            f"answered {_format.number(abs(points))} points {'more' if points > 0 else 'fewer'} of the requests"
        )
    return "; ".join(parts) + "."


def _notes(comparison: Comparison, tops: dict[str, Band]) -> Iterator[str]:
    if comparison.point:
        yield f"At {comparison.point}."
    yield "Failed requests are never answered; requests of one token have no TPOT. Shares are exact where drawn."
    said = next(iter(tops.values())).said
    if said:
        yield f"Bands: {said}."
