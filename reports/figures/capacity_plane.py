"""The rate that can be carried over the plane of a bound on TTFT and one on TPOT, from stored runs at several rates."""

import numpy as np
import plotly.graph_objects as go

from harness.stats.curves import crossing
from reports import _format, _replay
from reports._format import in_figure
from reports._replay import Replay, Scored
from reports._tables import Axis
from reports.figures import _plane
from reports.figures import _style as style
from reports.study.runs import Study

ORDER = 4
OF = "study"
SECTION = "sliders"
TITLE = "Rate carried over the bounds"
MOST = 3
"""Systems that are drawn, one panel each."""
POSITIONS = 24
"""Bounds of each axis at which the rate is found."""


def figure(study: Study) -> go.Figure | str:
    """The highest rate whose attainment reaches the goal, as contours over the two bounds."""
    replay = _replay.of_study(study)
    if isinstance(replay, str):
        return replay
    if (lacking := _plane.bare(replay.grid)) is not None:
        return lacking
    systems = [system for system in replay.systems if len(system.rates) > 1][:MOST]
    if not systems:
        return "The rate that is carried needs runs at several rates; bench sweep --rate 1:4:0.5 makes them."
    return _drawn(replay, systems)


def _drawn(replay: Replay, systems: list[Scored]) -> go.Figure:
    goal = replay.goals[0]
    chosen, thinned = [], []
    for axis in replay.grid.axes:  # evenly chosen positions, the SLO's own and both ends among them
        last = len(axis.limits_s) - 1
        even = np.linspace(0, last, min(last + 1, POSITIONS)).round().astype(int).tolist()
        kept = sorted({*even, *([axis.start] if axis.own_s is not None else [])})
        start = len(kept) if axis.own_s is None else kept.index(axis.start)
        chosen.append(kept)
        thinned.append(Axis(axis.metric, tuple(axis.limits_s[i] for i in kept), start))
    ttft, tpot = thinned
    found = [carried(system, goal, chosen) for system in systems]
    known = np.concatenate([z[np.isfinite(z)] for z, _ in found])
    if not len(known):
        known = np.zeros(1)
    drawn = style.new(460) if len(systems) == 1 else style.panels([1.0] * len(systems), 340 * len(systems))
    for number, (system, (z, _)) in enumerate(zip(systems, found, strict=True), start=1):
        where = {"row": number, "col": 1} if len(systems) > 1 else {}
        name = in_figure(system.name) if replay.named else "rate carried"
        ends = (float(known.min()), float(known.max()))
        surface = _plane.surface(np.array(ttft.limits_s), np.array(tpot.limits_s), z, name, replay.unit, ends)
        drawn.add_trace({**surface, "showscale": number == 1}, **where)
        marks = [mark if number == 1 else {**mark, "showlegend": False} for mark in _plane.marks(ttft, tpot)]
        for mark in marks:
            drawn.add_trace(mark, **where)
        if replay.named:
            _name(drawn, number, name)
    _plane.axes(drawn, ttft, tpot, len(systems))
    return style.done(drawn, _finding(replay, systems), _notes(replay, systems, found))


def carried(system: Scored, goal: float, chosen: list[list[int]]) -> tuple[np.ndarray, bool]:
    """(TPOT, TTFT) the rate at each pair, NaN where no rate tried is carried; whether some lie above all rates."""
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


def _name(drawn: go.Figure, number: int, name: str) -> None:
    """The name of a system in the upper left corner of its panel."""
    end = "" if number == 1 else str(number)
    drawn.add_annotation(
        xref=f"x{end} domain", yref=f"y{end} domain", x=0.01, y=0.98, text=name, showarrow=False, xanchor="left",
        yanchor="top", font={"size": 12},
    )  # fmt: skip


def _finding(replay: Replay, systems: list[Scored]) -> str:
    goal = replay.goals[0]
    ttft, tpot = replay.grid.axes
    told = [_at(replay, system, ttft.start, tpot.start) for system in systems]
    head = f"With {goal * 100:g}% of the requests within the {'bounds on single requests' if replay.open else 'SLO'} "
    if not replay.named:
        looser = _looser(replay, systems[0])
        return f"{head}{told[0]} {replay.unit} is carried{looser}."
    each = [f"{system.name} carries {text} {replay.unit}" for system, text in zip(systems, told, strict=True)]
    return f"{head}{'; '.join(each)}."


def _looser(replay: Replay, system: Scored) -> str:
    """What twice each bound would bring."""
    said = []
    ttft, tpot = replay.grid.axes
    for axis in (ttft, tpot):
        if axis.own_s is None:
            continue
        twice = min(range(len(axis.limits_s)), key=lambda i, axis=axis: abs(axis.limits_s[i] - 2 * (axis.own_s or 0.0)))  # type: ignore[misc]
        first, second = (twice, tpot.start) if axis is ttft else (ttft.start, twice)
        name = axis.metric.upper()
        said.append(
            f"{_at(replay, system, first, second)} with a {name} bound of {_format.limit(axis.limits_s[twice])}"
        )
    return f"; {' and '.join(said)}" if said else ""


def _at(replay: Replay, system: Scored, first: int, second: int) -> str:
    """The rate that is carried at a pair of positions, as text."""
    found = system.crossing(lambda run: _replay.at(run, first, second), replay.goals[0])
    if found.at is not None:
        return _format.number(found.at / system.share)
    end = system.rates[-1 if found.side == "above" else 0].rate_rps / system.share
    return f"{'at least' if found.side == 'above' else 'less than'} {_format.number(end)}"


def _notes(replay: Replay, systems: list[Scored], found: list[tuple[np.ndarray, bool]]) -> list[str]:
    empty = any(np.any(np.isnan(z)) for z, _ in found)
    more = len(replay.systems) - len(systems)
    return [
        f"Each of the {found[0][0].size:,} pairs of bounds is interpolated between the rates tried.",
        _replay.PERCENTILE if replay.open else "",
        "Where nothing is drawn, not even the lowest rate is carried." if empty else "",
        "The highest shade stands for the highest rate tried, or more." if any(top for _, top in found) else "",
        f"{_format.count(more, 'system')} more: only {MOST} are drawn, and only those with several rates."
        if more
        else "",
    ]
