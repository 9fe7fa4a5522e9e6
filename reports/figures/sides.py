"""Both sides of a comparison as curves: base grey with circles, head blue with diamonds; attainment and latency."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.errors import UsageError
from harness.experiments.compare.compare_json import Row
from harness.metrics.objective import parse_slo
from harness.stats.crossing import crossing
from harness.stats.seeds import spread
from reports import _data, _format
from reports._format import clean
from reports.comparison import METRICS, TIMES_S, Comparison, band
from reports.figures import style
from reports.figures.curves import attainment_rate
from reports.figures.style import SIDES, Look
from reports.study import Capacity, Point, Study, System, bound_of, of_capacity

WEIGHT = 1000
"""Requests that each point counts as where the crossing is looked for: every point alike."""
_SPAN = (0.002, 0.998)
"""Between these shares of either side the curves are drawn."""

_MOST = 800
"""Points of a curve."""


def sides_rate(comparison: Comparison) -> go.Figure | str:
    """Share of requests within the SLO against the rate per GPU (or another axis), of base and head, with bands."""
    study = of_comparison(comparison)
    return study if isinstance(study, str) else attainment_rate(study)


def of_comparison(comparison: Comparison) -> Study | str:
    """Both sides as the systems of a study: those of two searches, or of the points of two sweeps; or why not."""
    info = comparison.info
    if comparison.searches:
        studies = {side: of_capacity(search, comparison.folder) for side, search in comparison.searches.items()}
        for side, study in studies.items():
            if len(study.systems[0].points) < 2:
                return f"The search of the {side} has no trials that make a curve; give it more seeds."
        searched = tuple(replace(study.systems[0], name=side) for side, study in studies.items())
        return Study(info.slo or "", (info.goal,), searched, (), sides=True)
    rows = comparison.of_metric("attainment")
    if info.refused or not rows:
        return "The runs have no SLO in common, so there is no attainment to draw; give --slo ttft=0.25,tpot=0.1."
    axis = _axis(rows)
    if isinstance(axis, str):
        return axis
    name, values = axis
    order = np.argsort(values).tolist()
    rows, values = [rows[i] for i in order], [values[i] for i in order]
    systems = tuple(_system(comparison, rows, values, side, name) for side in SIDES)
    return Study(info.slo or "", (info.goal,), systems, (), axis=name, sides=True)


def _system(comparison: Comparison, rows: Sequence[Row], values: Sequence[float], side: str, axis: str) -> System:
    """A side at the `values` of an axis; of a rate its GPUs count."""
    goal, gpus = comparison.info.goal, comparison.info.on(side).system.get("gpus")
    points = []
    for row, value in zip(rows, values, strict=True):
        alike = {text: other for metric, text in comparison.bounds for other in comparison.of_metric(metric)
                 if other.point == row.point}  # fmt: skip
        bounds = tuple(bound_of(text, spread(_values(other, side), most=1.0)) for text, other in alike.items())
        pairs = _values(row, side)
        points.append(Point(value, len(pairs), 0, 0, 0, spread(pairs, most=1.0), bounds))
    shares = [share for row in rows if (share := row.on(side)) is not None]
    capacities = []
    if len(shares) == len(rows) and values[0] > 0:
        cross = crossing(values, shares, [WEIGHT] * len(shares), goal)
        capacities.append(Capacity(goal, cross.at, None, None, "interpolated", "", cross.side))
    counted_gpus = gpus if axis == "rate" and isinstance(gpus, int) and gpus > 0 else None
    return System(side, counted_gpus, tuple(points), tuple(capacities))


def _values(row: Row, side: str) -> Sequence[float | None]:
    """Of each pair; of an answer without them that of the side."""
    return row.values.on(side) or [row.on(side)]


def _axis(rows: Sequence[Row]) -> tuple[str, list[float]] | str:
    """The one number in which the points differ: its name and values; the sentence that says why there is none."""
    points = [row.point for row in rows]
    if len(rows) < 2:
        return "Runs at one rate are no curve over the rate: compare two sweeps or two searches (bench sweep --out)."
    names = list(dict.fromkeys(name for point in points for name in point))
    varied = [name for name in names if len({point.get(name) for point in points}) > 1]
    if len(varied) != 1:
        return f"The points differ in {clean(' and '.join(varied))}, so there is no single axis; compare one of them."
    try:
        return varied[0], [float(str(point.get(varied[0])).removesuffix("/s")) for point in points]
    except ValueError:
        return (
            f"The points differ in {clean(varied[0])}, which is no number; the table of the gates has a row for each."
        )


def _band(drawn: go.Figure, x: Any, ends: tuple[Any, Any], side: str, what: str, row: int | None = None) -> None:
    """The band of a side between its lower and its upper end, both of which are columns of the table."""
    names = f"{side}, low end of the {what}", f"{side}, high end of the {what}"
    style.band(drawn, x, ends, names, SIDES[side].color, row=row)


def cdf_difference(comparison: Comparison) -> go.Figure | str:
    """Share of the requests at or below a latency, of both sides, mean of the pairs; where they are furthest apart."""
    if not comparison.contrasts:
        return comparison.missing
    spans = {metric: span for metric in METRICS if (span := _spanned(comparison, metric)).any()}
    if not spans:
        return style.UNANSWERED
    drawn = style.panels([1 / len(spans)] * len(spans), 60 + 320 * len(spans), shared=False, spacing=0.14)
    values, note = {}, ""
    for row, (metric, span) in enumerate(spans.items(), 1):
        name, x, sides = _data.label(metric), TIMES_S[span], _within(comparison, metric)
        for side, shares in zip(SIDES, sides, strict=True):
            of_side = band([100 * pair for pair in shares])
            if note := of_side.label:
                ends = np.clip([of_side.low[span], of_side.high[span]], 0, 100)
                _band(drawn, x, (ends[0], ends[1]), side, f"{name}, {note}", row)
            look = SIDES[side]._replace(dash="dash" if side == "base" else "solid", width=2.5)
            style.curve(drawn, x, of_side.mean[span], f"{name}, {side}", look, style.OF_SECONDS, row=row, mode="lines",
                        legendgroup=side)  # fmt: skip
        style.axes(drawn, style.log_axis(f"{name} (s, log scale)", x), style.axis("at or below (%)"), row)
        for place, limit in enumerate(_limits(comparison, metric)):
            look = Look(style.GREY, "dot", width=1.5)
            style.upright(drawn, limit, f"SLO {_format.limit(limit)}", place, row=row, look=look)
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
    return inside[:: max(1, -(-len(inside) // _MOST))]


def _limits(comparison: Comparison, metric: str) -> Iterator[float]:
    """The bounds of the SLO on every request of all classes."""
    info = comparison.info
    try:
        bounds = parse_slo(info.slo, goal=info.goal).bounds if info.slo else ()
    except UsageError:
        return
    yield from (b.limit for b in bounds if b.metric == metric and b.tag is None and b.percentile is None)
