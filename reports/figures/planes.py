"""Contours over the plane of a bound on TTFT and one on TPOT, both axes log: of a run, of an answer, of systems."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from harness.experiments.rescore.slo_json import PlaneScore
from harness.stats.curves import crossing
from reports import _data, _format, _replay
from reports._format import in_figure
from reports._replay import Axis, Grid, Replay, Scored
from reports.figures import style
from reports.study.runs import Study

OWN = "the SLO"
LEVELS = 11
MOST = 3
"""Systems that are drawn, one panel each."""
POSITIONS = 24
"""Bounds of each axis at which the rate of a system is found."""
NONE = (
    "No request meets any pair of bounds, so there is no goodput to draw; the counts by status and the errors say why."
)
NARROW = "A picture needs two bounds or more of each metric; the table has the requested ones."


def slo_plane(run: Run) -> go.Figure | str:
    """Requests per second that meet both bounds, as contours over the two, and where the goal is reached."""
    found = _replay.of_run(run)
    if isinstance(found, str):
        return found
    grid, counted = found
    if (lacking := _lacking(grid)) is not None:
        return lacking
    ttft, tpot = grid.axes
    met = counted.met()  # (TTFT, TPOT), with the position of no bound behind the others
    z = met[:-1, :-1].T
    if not z.any():
        return NONE
    goal, share = grid.slo.goal, met / counted.requests
    known = bool(np.isfinite(counted.per_s))  # a file of another tool may tell no time of sending, hence no rates
    name, unit = ("goodput", "req/s") if known else ("requests within", "%")
    values = counted.goodput_rps(z) if known else share[:-1, :-1].T * 100
    x, y = np.array(ttft.limits_s), np.array(tpot.limits_s)
    drawn = style.new(460)
    drawn.add_trace(_surface(x, y, values, name, unit, (float(values.min()), float(values.max()))))
    drawn.add_traces(_goal_line(x, y, share[:-1, :-1].T * 100, goal))
    drawn.add_traces(_marks(ttft, tpot))
    _axes(drawn, ttft, tpot)
    here = int(met[ttft.start, tpot.start])
    own = [f"{_data.label(a.metric)} {_format.limit(a.own_s)}" for a in (ttft, tpot) if a.own_s is not None]
    at_own = [
        f"goodput {_format.number(float(counted.goodput_rps(np.array(here))))} req/s" if known else "",
        f"{_format.share(here / counted.requests, goal)} of the requests within the bounds",
    ]
    reached = [_least(ttft, share[:-1, tpot.start], goal), _least(tpot, share[ttft.start, :-1], goal)]
    moved = " or ".join(filter(None, reached)) or "not by moving one bound alone, as far as drawn"
    held = len(_data.margins(run)) - sum(axis.own_s is not None for axis in (ttft, tpot))
    notes = [
        f"Exact counts of all requests at each of the {z.size:,} pairs of bounds, drawn smoothly between them.",
        "Other bounds of the SLO stay as they are." if held > 0 else "",
    ]
    where = ", ".join(own) or "Without a bound on all requests"
    return style.done(drawn, style.finding({where: at_own, f"{goal * 100:g}%": [moved]}), notes)


def _least(axis: Axis, shares: np.ndarray, goal: float) -> str:
    """The least bound of an axis that reaches the goal."""
    reached = np.flatnonzero(shares >= goal)
    return f"from {_data.label(axis.metric)} {_format.limit(axis.limits_s[reached[0]])}" if len(reached) else ""


def of_answer(plane: PlaneScore, goal: float) -> go.Figure | str:
    """Goodput under the pairs of bounds of `bench slo`."""
    names, (first, second) = plane.metrics, plane.limits_s
    if min(len(first), len(second)) < 2:
        return NARROW
    goodput, shares = (np.array(values, np.float64) for values in (plane.goodput_rps, plane.attainment))
    x, y = np.array(first, np.float64), np.array(second, np.float64)
    drawn = style.new(460)
    ends = (float(np.nanmin(goodput)), float(np.nanmax(goodput)))
    drawn.add_trace(_surface(x, y, goodput.T, "goodput", "req/s", ends, names))
    drawn.add_traces(_goal_line(x, y, shares.T * 100, goal))
    x_title, y_title = (f"{in_figure(name)} bound (s, log scale)" for name in names)
    style.axes(drawn, style.log_axis(x_title, first), style.log_axis(y_title, second))
    kept, best = np.argwhere(shares >= goal).tolist(), ["by no pair of these bounds"]
    if kept:  # the tightest by the product of its bounds
        i, j = min(kept, key=lambda at: first[at[0]] * second[at[1]])
        tightest = f"{names[0]} {_format.limit(first[i])} and {names[1]} {_format.limit(second[j])}"
        best = [f"tightest pair {tightest}", f"goodput {_format.number(goodput[i, j])} req/s"]
    note = f"Exact counts at each of the {goodput.size:,} pairs."
    return style.done(drawn, style.finding({f"{goal * 100:g}% of the requests": best}), [note])


def capacity_plane(study: Study) -> go.Figure | str:
    """The highest rate whose attainment reaches the goal, as contours over the two bounds."""
    replay = _replay.of_study(study)
    if isinstance(replay, str):
        return replay
    if (lacking := _lacking(replay.grid)) is not None:
        return lacking
    systems = [system for system in replay.systems if len(system.rates) > 1][:MOST]
    if not systems:
        return "The sustained rate needs runs at several rates; bench sweep --rate 1:4:0.5 makes them."
    goal = replay.goals[0]
    chosen = [_positions(axis) for axis in replay.grid.axes]
    ttft, tpot = (
        Axis(axis.metric, tuple(axis.limits_s[i] for i in at), len(at) if axis.own_s is None else at.index(axis.start))
        for axis, at in zip(replay.grid.axes, chosen, strict=True)
    )
    found = [sustained(system, goal, chosen) for system in systems]
    known = [z[np.isfinite(z)] for z, _ in found if np.isfinite(z).any()]
    ends = (float(min(z.min() for z in known)), float(max(z.max() for z in known))) if known else (0.0, 0.0)
    drawn = style.new(460) if len(systems) == 1 else style.panels([1.0] * len(systems), 340 * len(systems))
    for number, (system, (z, _)) in enumerate(zip(systems, found, strict=True), start=1):
        where = {"row": number, "col": 1} if len(systems) > 1 else {}
        name = in_figure(system.name) if replay.named else "sustained rate"
        surface = _surface(np.array(ttft.limits_s), np.array(tpot.limits_s), z, name, replay.unit, ends)
        drawn.add_trace({**surface, "showscale": number == 1}, **where)
        for mark in _marks(ttft, tpot):
            drawn.add_trace(mark if number == 1 else {**mark, "showlegend": False}, **where)
        if replay.named:
            _, _, _, parts = style.panel_of(drawn, number)
            style.label(drawn, 0.01, 0.98, name, number, yanchor="top", **parts)
    _axes(drawn, ttft, tpot, len(systems))
    more = len(replay.systems) - len(systems)
    return style.done(drawn, _capacity_finding(replay, systems), [
        f"Each of the {found[0][0].size:,} pairs of bounds is interpolated between the rates tried.",
        _replay.PERCENTILE if replay.open else "",
        "Where nothing is drawn, not even the lowest rate is sustained." if any(np.isnan(z).any() for z, _ in found)
        else "",
        "The highest shade stands for the highest rate tried, or more." if any(top for _, top in found) else "",
        f"Systems that are not drawn: {more} (at most {MOST} are, and only those with several rates)." if more else "",
    ])  # fmt: skip


def _positions(axis: Axis) -> list[int]:
    """Evenly chosen positions, the SLO's own and both ends among them."""
    last = len(axis.limits_s) - 1
    even = np.linspace(0, last, min(last + 1, POSITIONS)).round().astype(int).tolist()
    return sorted({*even, *([axis.start] if axis.own_s is not None else [])})


def sustained(system: Scored, goal: float, chosen: list[list[int]]) -> tuple[np.ndarray, bool]:
    """(TPOT, TTFT) the rate at each pair, NaN where no rate tried is sustained; whether some lie above all rates."""
    places = np.ix_(*chosen)
    shares = np.array(  # (rates, TTFT, TPOT), the mean over the seeds
        [np.mean([run.met()[places] / run.requests for run in rate.runs], axis=0) for rate in system.rates]
    )
    rates, weights = [rate.rate_rps for rate in system.rates], [rate.requests for rate in system.rates]
    found = np.full(shares.shape[1:], np.nan)
    for i, j in np.ndindex(*found.shape):
        one = crossing(rates, shares[:, i, j].tolist(), weights, goal)
        found[i, j] = one.at if one.at is not None else rates[-1] if one.side == "above" else np.nan
    return found.T / system.share, bool(np.any(found == rates[-1]))


def _capacity_finding(replay: Replay, systems: Sequence[Scored]) -> str:
    """The rate of each system; of a single one also with twice each bound."""
    axes = replay.grid.axes
    starts = [axis.start for axis in axes]
    values = {}
    for system in systems:
        best = [f"{_rate(replay, system, starts)} {replay.unit}"]
        for i, axis in enumerate(axes if not replay.named else ()):
            if axis.own_s is not None:
                distances = np.abs(np.array(axis.limits_s) - 2 * axis.own_s)
                at = [*starts]
                at[i] = int(distances.argmin())
                best.append(f"{_rate(replay, system, at)} with {_data.label(axis.metric)} "
                            f"{_format.limit(axis.limits_s[at[i]])}")  # fmt: skip
        values[system.name if replay.named else "rate"] = best
    bounds = "bounds on single requests" if replay.open else "SLO"
    return f"{replay.goals[0] * 100:g}% of the requests within the {bounds}: {style.finding(values)}"


def _rate(replay: Replay, system: Scored, at: Sequence[int]) -> str:
    """The sustained rate at a pair of positions, as text."""
    first, second = at
    found = system.crossing(lambda run: int(np.sum(run.counts[: first + 1, : second + 1])), replay.goals[0])
    if found.at is not None:
        return _format.number(found.at / system.share)
    end = system.rates[-1 if found.side == "above" else 0].rate_rps / system.share
    return f"{'at least' if found.side == 'above' else 'less than'} {_format.number(end)}"


def _lacking(grid: Grid) -> str | None:
    """The sentence that stands for a plane without two axes."""
    lacking = [_data.label(axis.metric) for axis in grid.axes if len(axis.limits_s) < 2]
    return f"The plane needs TTFT and TPOT of the requests; not known: {' and '.join(lacking)}." if lacking else None


def _axes(drawn: go.Figure, ttft: Axis, tpot: Axis, panels: int = 1) -> None:
    """The log axes of every panel; the lowest one tells the bound on TTFT."""
    for number in range(1, panels + 1):
        name = "TTFT bound (s, log scale)" if number == panels else ""
        style.axes(
            drawn,
            style.log_axis(name, ttft.limits_s),
            style.log_axis("TPOT bound (s, log scale)", tpot.limits_s),
            number if panels > 1 else None,
        )


def _surface(
    x: np.ndarray, y: np.ndarray, z: np.ndarray, name: str, unit: str, ends: tuple[float, float],
    names: Sequence[str] = ("TTFT", "TPOT"),
) -> dict[str, Any]:  # fmt: skip
    """A filled contour of `z` (rows are y) between `ends`, with its scale at the side."""
    low, high, size = levels(*ends)
    return {
        "type": "contour", "x": x, "y": y, "z": z, "name": name, "colorscale": style.SHADES, "zmin": low, "zmax": high,
        "contours": {"start": low, "end": high, "size": size, "coloring": "fill", "showlines": True},
        "line": {"width": 0.5, "color": style.GREY},
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 14, "outlinewidth": 0},
        "hovertemplate": f"{in_figure(names[0])} %{{x:.4r}} s, {in_figure(names[1])} %{{y:.4r}} s: %{{z:.3r}} {unit}",
    }  # fmt: skip


def _goal_line(x: np.ndarray, y: np.ndarray, percent: np.ndarray, goal: float) -> list[dict[str, Any]]:
    """The contour along which a share `goal` of the requests meets both bounds."""
    at = goal * 100
    line = {
        "type": "contour", "x": x, "y": y, "z": percent, "name": f"{at:g}% of the requests meet both",
        "contours": {"start": at, "end": at, "size": 1, "coloring": "none"}, "showscale": False,
        "hoverinfo": "skip", "meta": style.MARKS,
    }  # fmt: skip
    halo = {**line, "line": style.Look(style.HALO, width=7).line, "showlegend": False}
    return [halo, {**line, "line": style.Look(style.VERMILLION, "dash", width=3).line, "showlegend": True}]


def _marks(ttft: Axis, tpot: Axis) -> list[dict[str, Any]]:
    """The SLO, where it bounds both."""
    known = ttft.own_s is not None and tpot.own_s is not None
    at: dict[str, Any] = {"x": [ttft.own_s] if known else [], "y": [tpot.own_s] if known else []}
    look = {"type": "scatter", "mode": "markers", "meta": style.MARKS,
            "hovertemplate": "TTFT %{x:.4r} s, TPOT %{y:.4r} s"}  # fmt: skip
    cross = {"symbol": "x", "size": 12, "color": style.OCHRE, "line": {"width": 1.5, "color": style.HALO}}
    return [{**look, **at, "name": OWN, "marker": cross}]


def levels(low: float, high: float) -> tuple[float, float, float]:
    """Readable first, last and distance of about `LEVELS` contours."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / LEVELS))
    size = next(step * power for step in (1, 2, 5, 10) if step * power * LEVELS >= span)
    return math.floor(low / size) * size, math.ceil(high / size) * size, size
