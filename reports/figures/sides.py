"""Both sides of a comparison as curves: base grey with circles, head blue with diamonds; attainment and latency."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import GoalCapacity
from harness.experiments.compare.compare_json import CompareAnswer, Row
from harness.metrics.objective import parse_slo
from harness.stats.curves import crossing
from harness.stats.seeds import LEAST_SEEDS, spread
from reports import _data, _format
from reports._format import clean, in_figure
from reports.comparison import METRICS, TIMES_S, Comparison, band
from reports.figures import style
from reports.figures.compare import label
from reports.figures.style import Look

SIDES = {"base": Look(style.GREY, width=3.0), "head": Look(style.BLUE, symbol="diamond", width=3.0)}
_DASHES = {"ttft": style.TTFT.dash, "tpot": style.TPOT.dash}
WEIGHT = 1000
"""Requests that each point counts as where the crossing is looked for: every point alike."""


def _band(drawn: go.Figure, x: Any, ends: tuple[Any, Any], side: str, what: str, row: int | None = None) -> None:
    """The band of a side between its lower and its upper end, both of which are columns of the table."""
    names = f"{side}, low end of the {what}", f"{side}, high end of the {what}"
    style.band(drawn, x, ends, names, SIDES[side].color, row=row)


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


class Side(NamedTuple):
    """A side over an axis, shares in percent: its points with the ends of their bands, and where it crosses the goal.

    `hollow` points were overloaded; `line` is drawn in their place where it is another than that through them, `alone`
    are the shares of single bounds. `crossing` comes with its interval, where it has one.
    """

    x: np.ndarray
    mean: np.ndarray
    band: np.ndarray | None = None
    hollow: Sequence[bool] = ()
    line: np.ndarray | None = None
    alone: Mapping[str, np.ndarray] = {}
    crossing: tuple[float | None, float | None, float | None] = (None, None, None)


def _drawn(sides: Mapping[str, Side], goal: float, x_axis: dict[str, Any], what: str, hover: str) -> go.Figure:
    """Both sides with their bands, which are `what`, and the lines from where each crosses the goal to the axis."""
    drawn = style.new(440)
    percents: list[float] = []
    for name, side in sides.items():
        if side.band is not None:
            _band(drawn, side.x, (side.band[0], side.band[1]), name, what)
        look, of_side = SIDES[name], f"{name}: {hover}"
        if side.line is not None:
            style.curve(drawn, side.x, side.line, f"{name}, falling curve", look, None, mode="lines")
        marks = {"maxdisplayed": style.MARKED if len(side.x) > style.MARKED else 0}
        style.curve(
            drawn, side.x, side.mean, name if side.line is None else f"{name}, as found", look, of_side, size=9,
            mode="lines+markers" if side.line is None else "markers", symbols=look.symbols(side.hollow), marker=marks,
        )  # fmt: skip
        for bound, shares in side.alone.items():  # of one bound, from its text ('ttft=0.25', 'p99:tpot=0.1')
            dash = _DASHES.get(bound.partition("=")[0].rpartition(":")[2], "dashdot")
            single = look._replace(dash=dash, width=1.5)
            style.curve(
                drawn, side.x, shares, f"{name}, {label(bound)} only", single, of_side, size=5, marker=marks
            )  # fmt: skip
        percents += (side.mean if side.band is None else side.band[0]).tolist()
    style.axes(drawn, x_axis, style.share_axis(style.WITHIN, percents))
    style.goals(drawn, [goal])
    for place, (name, side) in enumerate(sides.items()):
        at, low, high = side.crossing
        if at is not None:
            look = SIDES[name]._replace(dash="dot", width=1.5)
            span = None if low is None or high is None else (low, high)
            style.upright(drawn, at, f"{name} {_format.number(at)}", place, look=look, top=100 * goal, span=span)
    return drawn


def _linear(title: str, sides: Mapping[str, Side]) -> dict[str, Any]:
    """The axis over all points of both sides, and where they cross the goal."""
    values = [x for side in sides.values() for x in (*side.x.tolist(), *side.crossing) if x is not None]
    pad = 0.05 * (max(values) - min(values)) or 0.05 * max(values)
    return style.axis(title, range=[min(values) - pad, max(values) + pad])


def sides_rate(comparison: Comparison) -> go.Figure | str:
    """Share of requests within the SLO against the rate per GPU (or another axis), of base and head, with bands."""
    info, goal = comparison.info, comparison.info.goal
    if comparison.searches:
        return _searches(comparison)
    rows = comparison.of_metric("attainment")
    if info.refused or not rows:
        return "The runs have no SLO in common, so there is no attainment to draw; give --slo ttft=0.25,tpot=0.1."
    axis = _axis(info, rows)
    if isinstance(axis, str):
        return axis
    order = np.argsort(axis.values)
    rows = [rows[i] for i in order]
    several, enough = max(row.pairs for row in rows) > 1, all(row.pairs >= LEAST_SEEDS for row in rows)
    crossed: dict[str, float | str] = {}
    sides: dict[str, Side] = {}
    for name in SIDES:
        x = np.asarray(axis.of(name))[order]
        crossed[name] = at = _crossing(x, rows, name, goal)
        every = [spread(row.values.on(name), most=1.0) for row in rows]
        ends = np.array([(np.nan, np.nan) if found is None else found.ends for found in every]).T
        sides[name] = Side(
            x,
            _percents(rows, name),
            100 * ends if any(found is not None and found.n > 1 for found in every) else None,
            alone={bound: _percents(_at_points(comparison.of_metric(metric), rows), name)
                   for metric, bound in comparison.bounds},
            crossing=(at if isinstance(at, float) else None, None, None),
        )  # fmt: skip
    drawn = _drawn(
        sides, goal, _linear(axis.title, sides), "95% interval" if enough else "range over the pairs", style.PERCENT
    )
    gpus = {side: _format.count(n, "GPU") for side, n in axis.gpus.items()}
    apart = axis.name == "rate" and axis.gpus["base"] != axis.gpus["head"]
    crossings = "Crossings are interpolated between points, without an interval of their own."
    return style.done(drawn, _rate_finding(crossed, axis, goal), [
        crossings if any(isinstance(at, float) for at in crossed.values()) else "",
        f"Bands are the {'95% interval of the mean' if enough else 'range'} over the pairs." if several else "",
        f"The base has {gpus['base']}, the head {gpus['head']}." if apart else "",
    ])  # fmt: skip


def _percents(rows: Sequence[Row | None], side: str) -> np.ndarray:
    """(points,) NaN where a side has no value."""
    values = (None if row is None else row.on(side) for row in rows)
    return np.array([np.nan if value is None else 100 * value for value in values])


def _at_points(rows: Sequence[Row], points: Sequence[Row]) -> list[Row | None]:
    """The rows at the points of others; None where there is none."""
    return [next((row for row in rows if row.point == other.point), None) for other in points]


def _axis(info: CompareAnswer, rows: Sequence[Row]) -> _Axis | str:
    """The one number in which the points differ; the sentence that says why there is none."""
    named = [row.point for row in rows]
    if len(rows) < 2:
        return "Runs at one rate are no curve over the rate: compare two sweeps or two searches (bench sweep --out)."
    names = list(dict.fromkeys(name for point in named for name in point))
    varied = [name for name in names if len({point.get(name) for point in named}) > 1]
    if len(varied) != 1:
        return f"The points differ in {clean(' and '.join(varied))}, so there is no single axis; compare one of them."
    try:
        values = tuple(float(str(point.get(varied[0])).removesuffix("/s")) for point in named)
    except ValueError:
        return (
            f"The points differ in {clean(varied[0])}, which is no number; the table of the gates has a row for each."
        )
    gpus = {side: info.on(side).system.get("gpus") for side in SIDES}
    known = varied[0] == "rate" and all(isinstance(n, int) and n > 0 for n in gpus.values())
    return _Axis(varied[0], values, {side: float(str(gpus[side])) if known else 1.0 for side in SIDES})


def _crossing(x: np.ndarray, rows: Sequence[Row], side: str, goal: float) -> float | str:
    """Where the mean attainment of a side falls below the goal; 'above' or 'below' where all of it is."""
    y = [value for row in rows if (value := row.on(side)) is not None]
    if len(y) < len(rows) or x[0] <= 0:
        return "unknown"
    found = crossing(x.tolist(), y, [WEIGHT] * len(y), goal)
    return found.at if found.at is not None else str(found.side)


def _rate_finding(crossed: Mapping[str, float | str], found: _Axis, goal: float) -> str:
    unit = "req/s per GPU" if found.name == "rate" else clean(found.name)
    sides = {"above": "at all points", "below": "at none of the points", "unknown": "not measured at all points"}
    found_of = {side: [sides[at] if isinstance(at, str) else f"up to {_format.number(at)} {unit}"]
            for side, at in crossed.items()}  # fmt: skip
    base, head = crossed["base"], crossed["head"]
    if isinstance(base, float) and isinstance(head, float):
        found_of["head"].append(f"{_format.number(head / base)} times as far")
    low, high = (_format.option(end) for end in (min(found.values), max(found.values)))
    points = f"{len(found.values)} points from {clean(found.name)} {low} to {high}"
    return f"{goal * 100:g}% met the SLO, of {points}: {style.finding(found_of)}"


def _searches(comparison: Comparison) -> go.Figure | str:
    """Attainment of the whole trials of both searches, and the capacity of each with its interval."""
    goal, gpus = comparison.info.goal, {}
    for name, search in comparison.searches.items():
        if not search.curve:
            return f"The search of the {name} has no trials that make a curve; give it more seeds."
        gpus[name] = search.backend.get("gpus")
    per_gpu = all(isinstance(n, int) and n > 0 for n in gpus.values())
    unit, values, sides = "req/s per GPU" if per_gpu else "req/s", {}, {}
    for name, search in comparison.searches.items():
        share, points = float(str(gpus[name])) if per_gpu else 1.0, search.curve
        found = next((each for each in search.answers if each.goal == goal), GoalCapacity(goal=goal))
        rate, low, high = (
            None if end is None else float(end) / share for end in (found.capacity_rps, found.low_rps, found.high_rps)
        )
        least, most, falling, mean = (
            np.array([100 * getattr(point, key) for point in points])
            for key in ("least", "most", "falling", "attainment")
        )
        sides[name] = Side(
            np.array([point.rate_rps / share for point in points]), mean, np.array([least, most]),
            [bool(point.overloaded) for point in points], falling, crossing=(rate, low, high),
        )  # fmt: skip
        between = "" if low is None or high is None else f" ({_format.number(low)} to {_format.number(high)})"
        known = "nothing that the search could resolve"
        values[name] = [known if rate is None else f"{_format.number(rate)} {unit}{between}"]
    base, head = (sides[name].crossing[0] for name in SIDES)
    if base and head:
        values["head"].append(f"{_format.number(head / base)} times as much")
    x_axis = _linear(f"rate (requests/s{' per GPU' if per_gpu else ''})", sides)
    drawn = _drawn(sides, goal, x_axis, "range over the seeds", style.PERCENT)
    return style.done(drawn, f"Capacity at {goal * 100:g}%: {style.finding(values)}", [
        "Bands are the range over the seeds tried; lines fall as attainment must; hollow points were overloaded.",
        "The verdict compares the capacities seed by seed.",
    ])  # fmt: skip


_SPAN = (0.002, 0.998)
"""Between these shares of either side the curves are drawn."""

_MOST = 800
"""Points of a curve."""


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
        name, x, both = _data.label(metric), TIMES_S[span], _within(comparison, metric)
        for side, shares in zip(SIDES, both, strict=True):
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
        apart = 100 * (both[1] - both[0]).mean(axis=0)
        at = int(np.nanargmax(np.abs(apart)))
        values[name] = [
            f"furthest apart at {_format.seconds(float(TIMES_S[at]))}",
            f"head {'more' if apart[at] > 0 else 'fewer'} by {_format.number(abs(apart[at]))} points there",
        ] if abs(apart[at]) >= 0.05 else ["the same to 0.05 points at any time"]  # fmt: skip
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
