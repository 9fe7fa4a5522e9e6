"""How a capacity was searched: the rate of each trial in the order in which they were made, and what they cost."""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from reports import _format
from reports.figures import _style as style
from reports.study.capacity import LONE
from reports.study.runs import Study, System

ORDER = 61
OF = "study"
SECTION = "search"
TITLE = "The search"
MISSING = (
    "The trials of this search are not there; bench capacity --out DIR keeps them in DIR/trials.parquet, and this page "
    "has to lie beside it."
)
FEWEST = 3
"""Trials below which there is no path to see."""

_ROOM = 56
"""Pixels to the right, where the goals are named."""

_LOOKS = {
    "probe: carried": (style.GREEN, "triangle-up-open"),
    "probe: too much": (style.VERMILLION, "triangle-down-open"),
    "whole trial": (style.BLUE, "circle"),
}


def figure(study: Study) -> go.Figure | str:
    """The rates that were tried, above the requests that were sent by then."""
    made = [row for source in study.sources[:1] for row in source.get("trials") or []]
    system = study.systems[0] if study.systems else None
    if not made or system is None:
        return MISSING
    if len(made) < FEWEST:
        return f"{_format.count(len(made), 'trial')} told enough, so there was nothing to search."
    share = study.share(system)
    shown = []
    for row in made:
        others = [other["rate_rps"] for other in made if other["rate_rps"] != row["rate_rps"]]
        if not others or row["rate_rps"] >= LONE * min(others):  # else its rate is that of requests one by one
            shown.append(row)
    drawn = style.panels((0.66, 0.34), 560)
    for name, (color, symbol) in _LOOKS.items():
        if rows := [row for row in shown if kind(row) == name]:
            drawn.add_trace(_rates(rows, share, name, color, symbol), row=1, col=1)
    sent = [total / 1000 for total in accumulate(row["requests"] for row in made)]
    drawn.add_trace(_cost([row["order"] for row in made], sent), row=2, col=1)
    _capacities(drawn, system, share)
    rates = [row["rate_rps"] / share for row in shown]
    drawn.update_layout(
        yaxis=style.log_axis(f"rate tried ({study.rate_unit})", rates),
        yaxis2=style.axis("sent (1,000 requests)", rangemode="tozero"),
        xaxis=style.axis(""),
        xaxis2=style.axis("trial (number)", **style.whole(len(made))),
    )
    drawn.update_layout(margin_r=_ROOM)
    lines = "Dashed lines: the capacity at each goal." if any(c.rps for c in system.capacities) else ""
    return style.done(drawn, _finding(made, shown, share, study.rate_unit), [lines, _left_out(len(made) - len(shown))])


def _left_out(trials: int) -> str:
    if not trials:
        return ""
    which = "The trial of requests one by one is" if trials == 1 else f"{trials} trials of requests one by one are"
    return f"{which} left out of the upper panel."


def kind(row: Mapping[str, Any]) -> str:
    """What a trial is, and what came of a probe."""
    if row["goal"] is None:
        return "whole trial"
    return "probe: carried" if row["passed"] else "probe: too much"


def _rates(rows: Sequence[Mapping[str, Any]], share: float, name: str, color: str, symbol: str) -> go.Scatter:
    hover = []
    for row in rows:
        met = "" if row["attainment"] is None else f"{_format.share(row['attainment'])} met, "
        hover.append(f"{met}seed {row['seed']}, {_format.count(row['requests'], 'request')}")
    return go.Scatter(
        x=[row["order"] for row in rows], y=[row["rate_rps"] / share for row in rows], name=name, mode="markers",
        marker={"color": color, "symbol": symbol, "size": 9}, customdata=hover,
        hovertemplate="trial %{x}: %{y:.4g} req/s, %{customdata}",
    )  # fmt: skip


def _cost(order: Sequence[int], sent: Sequence[float]) -> go.Scatter:
    return go.Scatter(
        x=order, y=sent, name="requests sent in all", mode="lines",
        line={**style.line(style.PURPLE, "dot"), "shape": "hv"}, hovertemplate="%{y:.3g} thousand requests",
    )  # fmt: skip


def _capacities(drawn: go.Figure, system: System, share: float) -> None:
    """A line for each goal at its capacity, and the interval as a band."""
    for found in system.capacities:
        if found.rps is None:
            continue
        if found.low_rps is not None and found.high_rps is not None:
            low, high = found.low_rps / share, found.high_rps / share
            drawn.add_hrect(y0=low, y1=high, fillcolor=style.faint(style.GREY), line_width=0, row=1, col=1)
        at = found.rps / share
        drawn.add_hline(y=at, line=style.line(style.GREY, "dash", 1), row=1, col=1)
        drawn.add_annotation(
            x=1.005, xref="x domain", y=math.log10(at), yref="y", yanchor="middle", xanchor="left", showarrow=False,
            text=f"{_format.option(found.goal * 100)}%", font={"size": 12},
        )  # fmt: skip


def _finding(made: Sequence[Mapping[str, Any]], shown: Sequence[Mapping[str, Any]], share: float, unit: str) -> str:
    probes = sum(row["goal"] is not None for row in made)
    rates = [row["rate_rps"] / share for row in shown]
    trials = _format.count(len(made) - probes, "whole trial")
    told = f"{_format.count(probes, 'probe')} and {trials}" if probes else trials
    sent = _format.count(sum(row["requests"] for row in made), "request")
    ends = " to ".join(dict.fromkeys(_format.number(end) for end in (min(rates), max(rates))))
    return f"{told} at {ends} {unit} took {sent}."
