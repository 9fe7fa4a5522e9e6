"""Goodput over the plane of a bound on TTFT and one on TPOT: every pair of bounds, counted from the stored table."""

import numpy as np
import plotly.graph_objects as go

from harness.data.folder import Run
from reports import _data, _format, _replay
from reports._replay import Cells
from reports._tables import Axis
from reports.figures import _plane
from reports.figures import _style as style

ORDER = 4
OF = "run"
SECTION = "figures"
TITLE = "Goodput over the bounds"
NONE = (
    "No request keeps any pair of bounds, so there is no goodput to draw; the counts by status and the errors say why."
)


def figure(run: Run) -> go.Figure | str:
    """Requests per second that keep both bounds, as contours over the two, and where the goal is reached."""
    found = _replay.of_run(run)
    if isinstance(found, str):
        return found
    grid, counted = found
    if (lacking := _plane.bare(grid)) is not None:
        return lacking
    ttft, tpot = grid.axes
    met = counted.met()[:-1, :-1].T  # (TPOT, TTFT)
    if not met.any():
        return NONE
    x, y = np.array(ttft.limits_s), np.array(tpot.limits_s)
    goodput, share = counted.goodput_rps(met), met / counted.requests
    goal = grid.slo.goal
    drawn = style.new(460)
    known = bool(np.isfinite(counted.per_s))  # a file of another tool may tell no time of sending, hence no rates
    z, name, unit = (goodput, "goodput", "req/s") if known else (share * 100, "requests within", "%")
    drawn.add_trace(_plane.surface(x, y, z, name, unit, (float(z.min()), float(z.max()))))
    drawn.add_traces(_plane.goal_line(x, y, share * 100, goal))
    drawn.add_traces(_plane.marks(ttft, tpot))
    _plane.axes(drawn, ttft, tpot)
    return style.done(drawn, _finding(counted, ttft, tpot, goal), _notes(run, met, ttft, tpot))


def _finding(counted: Cells, ttft: Axis, tpot: Axis, goal: float) -> str:
    met = counted.met()
    share = met / counted.requests
    here = int(met[ttft.start, tpot.start])
    goodput = f"Goodput is {_format.number(float(counted.goodput_rps(np.array(here))))} req/s"
    within = f"{_format.share(here / counted.requests, goal)} of the requests are within the bounds"
    told = ", ".join(f"{_data.label(a.metric)} {_format.limit(a.own_s)}" for a in (ttft, tpot) if a.own_s is not None)
    where = f"at {told}" if told else "without a bound on all requests"
    start = f"{goodput if np.isfinite(counted.per_s) else within} {where}"
    kept = [_least(ttft, share[:-1, tpot.start], goal), _least(tpot, share[ttft.start, :-1], goal)]
    said = [text for text in kept if text]
    one = f"{goal * 100:g}% of the requests keep it"
    if not said:
        return f"{start}; as far as drawn, moving one bound alone does not reach {goal * 100:g}%."
    rest = "the other bound as it is" if told else "no other"
    return f"{start}; {one} with {' or with '.join(said)} and {rest}."


def _least(axis: Axis, shares: np.ndarray, goal: float) -> str:
    """The least bound of an axis that reaches the goal."""
    reached = np.flatnonzero(shares >= goal)
    return f"a {_data.label(axis.metric)} bound from {_format.limit(axis.limits_s[reached[0]])}" if len(reached) else ""


def _notes(run: Run, met: np.ndarray, ttft: Axis, tpot: Axis) -> list[str]:
    held = len(_data.margins(run)) - sum(axis.own_s is not None for axis in (ttft, tpot))
    return [
        f"Exact counts of all requests at each of the {met.size:,} pairs of bounds, drawn smoothly between them.",
        "Other bounds of the SLO stay as they are." if held > 0 else "",
    ]
