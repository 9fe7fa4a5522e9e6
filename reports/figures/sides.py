"""Both sides of a comparison as curves: base grey with circles, head blue with diamonds; attainment and latency."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.errors import UsageError
from harness.experiments.capacity.capacity_json import GoalCapacity, RatePoint
from harness.experiments.compare.compare_json import CompareAnswer, Row
from harness.metrics.objective import parse_slo
from harness.stats.curves import crossing
from harness.stats.seeds import LEAST_SEEDS, spread
from reports import _data, _format
from reports._format import clean, in_figure
from reports.comparison import METRICS, SCALES, TIMES_S, Band, Comparison, band
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


def _alone(side: str, bound: str) -> tuple[str, Look]:
    """Name and look of the line of one bound, from its text ('ttft=0.25', 'p99:tpot=0.1')."""
    dash = _DASHES.get(bound.partition("=")[0].rpartition(":")[2], "dashdot")
    return f"{side}, {label(bound)} only", SIDES[side]._replace(dash=dash, width=1.5)


def _drop(
    drawn: go.Figure, side: str, at: float, goal: float, place: int, span: tuple[float, float] | None = None
) -> None:
    """The line from where a side crosses the goal down to the axis."""
    look = SIDES[side]._replace(dash="dot", width=1.5)
    style.upright(drawn, at, f"{side} {_format.number(at)}", place, look=look, top=100 * goal, span=span)


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


def sides_rate(comparison: Comparison) -> go.Figure | str:
    """Share of requests within the SLO against the rate per GPU (or another axis), of base and head, with bands."""
    info = comparison.info
    if comparison.searches:
        return _searches(comparison)
    rows = comparison.of_metric("attainment")
    if info.refused or not rows:
        return "The runs have no SLO in common, so there is no attainment to draw; give --slo ttft=0.25,tpot=0.1."
    found = _axis(info, rows)
    if isinstance(found, str):
        return found
    order = np.argsort(found.values)
    rows = [rows[i] for i in order]
    enough = all(row.pairs >= LEAST_SEEDS for row in rows)
    drawn = style.new(440)
    for side in SIDES:
        x = np.asarray(found.of(side))[order]
        _joint(drawn, x, rows, side, "95% interval" if enough else "range over the pairs")
        for name, bound in comparison.bounds:  # of which a point of `rows` may have none
            there = {tuple(row.point.items()): row for row in comparison.of_metric(name)}
            mine = [there.get(tuple(row.point.items())) for row in rows]
            y = np.array([np.nan if row is None or (value := row.on(side)) is None else 100 * value for row in mine])
            style.curve(drawn, x, y, *_alone(side, bound), f"{side}: {style.PERCENT}", size=5)
    everything = [x for side in SIDES for x in found.of(side)]
    pad = 0.04 * (max(everything) - min(everything))
    shares = [row.values.on(side) or [row.on(side)] for row in rows for side in SIDES]
    percents = [100 * share for one in shares for share in one if share is not None]
    x_axis = style.axis(found.title, range=[min(everything) - pad, max(everything) + pad])
    style.axes(drawn, x_axis, style.share_axis(style.WITHIN, percents))
    goal = info.goal
    style.goals(drawn, [goal])
    crossed = {side: _crossing(np.asarray(found.of(side))[order], rows, side, goal) for side in SIDES}
    for place, (side, at) in enumerate(crossed.items()):
        if isinstance(at, float):
            _drop(drawn, side, at, goal, place)
    gpus = {side: _format.count(n, "GPU") for side, n in found.gpus.items()}
    apart = found.name == "rate" and found.gpus["base"] != found.gpus["head"]
    bands = f"Bands are the {'95% interval of the mean' if enough else 'range'} over the pairs."
    crossings = "Crossings are interpolated between points, without an interval of their own."
    return style.done(drawn, _rate_finding(crossed, found, goal), [
        crossings if any(isinstance(at, float) for at in crossed.values()) else "",
        bands if max(row.pairs for row in rows) > 1 else "",
        f"The base has {gpus['base']}, the head {gpus['head']}." if apart else "",
    ])  # fmt: skip


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


def _joint(drawn: go.Figure, x: np.ndarray, rows: Sequence[Row], side: str, what: str) -> None:
    """All bounds of a side together, with its band unless there is one pair or no single values."""
    mean = np.array([np.nan if (value := row.on(side)) is None else 100 * value for row in rows])
    every = [spread(row.values.on(side), most=1.0) for row in rows]
    if any(found is not None and found.n > 1 for found in every):
        low, high = 100 * np.array([(np.nan, np.nan) if found is None else found.ends for found in every]).T
        _band(drawn, x, (low, high), side, what)
    style.curve(drawn, x, mean, side, SIDES[side], f"{side}: {style.PERCENT}", size=9)


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
    goal = comparison.info.goal
    gpus = {side: search.backend.get("gpus") for side, search in comparison.searches.items()}
    per_gpu = all(isinstance(n, int) and n > 0 for n in gpus.values())
    drawn = style.new(440)
    rates: list[float] = []
    least: list[float] = []
    found = {}
    for side in SIDES:
        search = comparison.searches[side]
        points = search.curve
        if not points:
            return f"The search of the {side} has no trials that make a curve; give it more seeds."
        share = float(str(gpus[side])) if per_gpu else 1.0
        x = np.array([point.rate_rps / share for point in points])
        _searched(drawn, x, points, side)
        one = next((one for one in search.answers if one.goal == goal), GoalCapacity(goal=goal))
        ends = (one.capacity_rps, one.low_rps, one.high_rps)
        found[side] = [None if rate is None else float(rate) / share for rate in ends]
        rates += [*x.tolist(), *(rate for rate in found[side] if rate is not None)]
        least += [100 * point.least for point in points]
    pad = 0.05 * (max(rates) - min(rates)) or 0.05 * max(rates)
    x_axis = style.axis(f"rate (requests/s{' per GPU' if per_gpu else ''})", range=[min(rates) - pad, max(rates) + pad])
    style.axes(drawn, x_axis, style.share_axis(style.WITHIN, least))
    style.goals(drawn, [goal])
    unit, found_of = "req/s per GPU" if per_gpu else "req/s", {}
    for place, (side, (rate, low, high)) in enumerate(found.items()):
        found_of[side] = ["nothing that the search could resolve"]
        if rate is not None:
            span = None if low is None or high is None else (low, high)
            _drop(drawn, side, rate, goal, place, span)
            between = "" if span is None else f" ({_format.number(span[0])} to {_format.number(span[1])})"
            found_of[side] = [f"{_format.number(rate)} {unit}{between}"]
    base, head = (found[side][0] for side in SIDES)
    if base and head:
        found_of["head"].append(f"{_format.number(head / base)} times as much")
    notes = [
        "Bands are the range over the seeds tried; lines fall as attainment must; hollow points were overloaded.",
        "The verdict compares the capacities seed by seed.",
    ]
    return style.done(drawn, f"Capacity at {goal * 100:g}%: {style.finding(found_of)}", notes)


def _searched(drawn: go.Figure, x: np.ndarray, points: Sequence[RatePoint], side: str) -> None:
    least, most, falling, mean = (
        np.array([100 * getattr(point, key) for point in points]) for key in ("least", "most", "falling", "attainment")
    )
    look = SIDES[side]
    _band(drawn, x, (least, most), side, "range over the seeds")
    drawn.add_scatter(x=x, y=falling, name=f"{side}, falling curve", mode="lines", line=look.line)
    symbols = look.symbols(point.overloaded for point in points)
    hover = f"{side}: {style.PERCENT}"
    style.curve(drawn, x, mean, f"{side}, as found", look, hover, mode="markers", size=9, symbols=symbols)


_LEAST, _FULL = 0.02, 0.999
"""The curves are drawn from where one of them leaves 0 to where both have all but reached 1."""


def sides_scale(comparison: Comparison) -> go.Figure | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale, from the stored requests."""
    contrasts = comparison.contrasts
    if not contrasts:
        return comparison.missing
    if not contrasts[0].sides[0].bounds:
        return style.UNBOUND
    goal = comparison.info.goal
    found = {
        side: band([contrast.sides[place].attainment for contrast in contrasts]) for place, side in enumerate(SIDES)
    }
    shown = _scales([band.mean for band in found.values()])
    x = SCALES[shown]
    drawn = style.new(440)
    for place, (side, here) in enumerate(found.items()):
        if here.label:
            ends = np.maximum(100 * here.low[shown], 0), np.minimum(100 * here.high[shown], 100)
            _band(drawn, x, ends, side, here.label)
        _scale_line(drawn, x, 100 * here.mean[shown], side, SIDES[side])
        bounds = contrasts[0].sides[place].bounds
        for bound in bounds if len(bounds) > 1 else ():
            alone = band([contrast.sides[place].bounds[bound] for contrast in contrasts])
            _scale_line(drawn, x, 100 * alone.mean[shown], *_alone(side, str(bound)))
    x_axis = style.log_axis("SLO scale (1 = the SLO of the comparison)", x)
    style.axes(drawn, x_axis, style.share_axis(style.WITHIN))
    style.goals(drawn, [goal])
    style.upright(drawn, 1.0)
    one, values = int(np.searchsorted(SCALES, 1.0)), {}
    for place, side in enumerate(SIDES):
        # the scale from which on a side reaches the goal, the mean of its pairs; none where one of them never does
        known = [at for contrast in contrasts if (at := contrast.sides[place].crossing) is not None]
        reached = "at no scale"
        if len(known) == len(contrasts):
            at = float(np.mean(known))
            reached = f"from scale {_format.number(at)} on"
            if x[0] <= at <= x[-1]:
                look = SIDES[side]._replace(dash="dot", width=1.5)
                style.upright(drawn, at, f"{side} from {_format.number(at)}", place, look=look)
        met = _format.share(float(found[side].mean[one]), goal)
        values[side] = [f"{met} met the SLO", f"{goal * 100:g}% {reached}"]
    note = found["base"].label
    return style.done(drawn, style.finding(values), [
        f"At {comparison.point}." if comparison.point else "", f"Bands: {note}." if note else ""
    ])  # fmt: skip


def _scales(means: list[np.ndarray]) -> np.ndarray:
    """Which scales are drawn; 1/2 to 2 always."""
    last = np.minimum(means[0].max(), means[1].max()) * _FULL
    inside = (np.maximum(*means) >= _LEAST) & (np.minimum(*means) <= last)
    inside |= (SCALES >= 0.5) & (SCALES <= 2.0)
    places = np.flatnonzero(inside)
    return np.arange(places[0], min(places[-1] + 2, len(SCALES)))


def _scale_line(drawn: go.Figure, x: np.ndarray, y: np.ndarray, name: str, look: Look) -> None:
    every = max(1, len(x) // 10)
    sizes = np.where(np.arange(len(x)) % every == every // 2, 8 if look.width > 2 else 5, 0)
    style.curve(drawn, x, y, name, look, style.OF_SCALE, size=sizes, marker={"line": {"width": 0}})


_SPAN = (0.002, 0.998)
"""Between these shares of either side the curves are drawn."""

ROWS = 20
"""Rows of the table for a metric."""

_MOST = 800
"""Points of a curve."""


def cdf_difference(comparison: Comparison) -> go.Figure | str:
    """Share of the requests at or below a latency, of both sides; and head minus base in points, mean of the pairs."""
    if not comparison.contrasts:
        return comparison.missing
    spans = {metric: span for metric in METRICS if (span := _spanned(comparison, metric)).any()}
    if not spans:
        return style.UNANSWERED
    drawn = style.panels([0.27, 0.23] * len(spans), 60 + 480 * len(spans), shared=False, spacing=0.09)
    differences, values = {}, {}
    for place, (metric, span) in enumerate(spans.items()):
        found = differences[metric] = _difference(drawn, comparison, metric, span, 2 * place + 1)
        at = int(np.nanargmax(np.abs(found.mean)))
        values[_data.label(metric)] = [
            f"furthest apart at {_format.seconds(float(TIMES_S[at]))}",
            f"head {'more' if found.mean[at] > 0 else 'fewer'} by {_format.number(abs(found.mean[at]))} points there",
        ] if abs(found.mean[at]) >= 0.05 else ["the same to 0.05 points at any time"]  # fmt: skip
    note = next(iter(differences.values())).label
    return style.done(drawn, style.finding(values), [
        f"At {comparison.point}." if comparison.point else "",
        "Failed requests are never answered; requests of one token have no TPOT. Shares are exact where drawn.",
        f"Bands: {note}." if note else "",
    ], _table(comparison, spans, differences))  # fmt: skip


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


def _difference(drawn: go.Figure, comparison: Comparison, metric: str, shown: np.ndarray, row: int) -> Band:
    """Both panels of a metric; gives the difference in points over `TIMES_S`."""
    name, x = _data.label(metric), TIMES_S[shown]
    base, head = _within(comparison, metric)
    for side, shares, dash in (("base", base, "dash"), ("head", head, "solid")):
        look = SIDES[side]._replace(dash=dash, width=2.5)
        y = 100 * shares.mean(axis=0)[shown]
        style.curve(drawn, x, y, f"{name}, {side}", look, style.OF_SECONDS, row=row, mode="lines", legendgroup=side)
    found = band([100 * pair for pair in head - base])
    if found.label:
        ends = np.maximum(found.low[shown], -100), np.minimum(found.high[shown], 100)
        _band(drawn, x, ends, "head", found.label, row + 1)
    style.curve(drawn, x, found.mean[shown], f"{name}, head - base", Look(style.BLUE), "%{x:.4r} s: %{y:+.2f} points",
                row=row + 1, mode="lines", showlegend=False)  # fmt: skip
    look = Look(style.GREY, "dot", width=1.5)
    for panel, title in ((row, "at or below (%)"), (row + 1, "head - base (pts)")):
        style.axes(drawn, style.log_axis(f"{name} (s, log scale)", x), style.axis(title), panel)
        for place, limit in enumerate(_limits(comparison, metric)):
            text = f"SLO {_format.limit(limit)}" if panel == row else ""
            style.upright(drawn, limit, text, place, row=panel, look=look)
    style.level(drawn, 0, row=row + 1)
    return found


def _limits(comparison: Comparison, metric: str) -> Iterator[float]:
    """The bounds of the SLO on every request of all classes."""
    info = comparison.info
    try:
        bounds = parse_slo(info.slo, goal=info.goal).bounds if info.slo else ()
    except UsageError:
        return
    yield from (b.limit for b in bounds if b.metric == metric and b.tag is None and b.percentile is None)


def _table(
    comparison: Comparison, spans: Mapping[str, np.ndarray], differences: Mapping[str, Band]
) -> style.Table:  # fmt: skip
    """Of each metric some of the times, with the shares of both sides and their difference."""
    rows = []
    for metric, found in differences.items():
        base, head = (100 * side.mean(axis=0) for side in _within(comparison, metric))
        for at in spans[metric][style.evenly(len(spans[metric]), ROWS)]:
            values = (TIMES_S[at], base[at], head[at], found.mean[at], found.low[at], found.high[at])
            rows.append([_data.label(metric), *map(_format.number, map(float, values))])
    heads = ["metric", "s", "base, at or below (%)", "head, at or below (%)", "head - base (points)"]
    heads += ["low end of the band (points)", "high end of the band (points)"]
    return heads, rows, sum(map(len, spans.values())), ""
