"""The capacity as each seed tells it: how far one traffic of a kind lies from another, and what that leaves of doubt.

The values are jackknife pseudo-values of the search (`harness.experiments.capacity`): their mean is the capacity.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import plotly.graph_objects as go

from reports import _format
from reports.figures import _style as style
from reports.study.runs import Study

ORDER = 60
OF = "study"
SECTION = "search"
TITLE = "Capacity by seed"
MISSING = "There is no capacity of single seeds; bench capacity finds one where several seeds are tried."
_LOOKS = [(style.BLUE, "circle", "solid"), (style.VERMILLION, "square", "dash"), (style.GREEN, "diamond", "dashdot")]


def figure(study: Study) -> go.Figure | str:
    """A mark per seed at the capacity that it tells, the estimate of all as a line, its interval as a band."""
    found = [one for source in study.sources[:1] for one in source.get("answers") or [] if len(_knees(one)) > 1]
    if not found:
        return MISSING
    share = study.share(study.systems[0])
    drawn = style.new(160 + 14 * max(len(_knees(one)) for one in found))
    for number, one in enumerate(found):
        color, symbol, dash = _LOOKS[number % len(_LOOKS)]
        drawn.add_trace(_seeds(one, share, color, symbol))
        if one["capacity_rps"]:
            _estimate(drawn, one, share, color, dash)
    drawn.update_layout(
        xaxis=style.axis(f"capacity ({study.rate_unit})"),
        yaxis=style.axis("seed (number)", autorange="reversed", **style.whole(max(len(_knees(one)) for one in found))),
    )
    first, *others = (_finding(one, share, study.rate_unit) for one in found)
    bands = any(one["low_rps"] is not None for one in found)
    note = "The line is the capacity of all seeds together, the band its interval." if bands else ""
    return style.done(drawn, first, [*others, note])


def _knees(one: Mapping[str, Any]) -> dict[int, float]:
    """Requests per second by seed."""
    return {int(seed): math.exp(knee) for seed, knee in (one.get("knees") or {}).items()}


def _seeds(one: Mapping[str, Any], share: float, color: str, symbol: str) -> go.Scatter:
    knees = _knees(one)
    return go.Scatter(
        x=[rate / share for rate in knees.values()], y=list(knees), mode="markers", name=f"goal {_goal(one)}",
        marker={"color": color, "symbol": symbol, "size": 9}, hovertemplate="seed %{y}: %{x:.4g}",
    )  # fmt: skip


def _estimate(drawn: go.Figure, one: Mapping[str, Any], share: float, color: str, dash: str) -> None:
    if one["low_rps"] is not None and one["high_rps"] is not None:
        low, high = one["low_rps"] / share, one["high_rps"] / share
        drawn.add_vrect(x0=low, x1=high, fillcolor=style.faint(color), line_width=0, layer="below")
    drawn.add_vline(x=one["capacity_rps"] / share, line=style.line(color, dash, 1.5))


def _finding(one: Mapping[str, Any], share: float, unit: str) -> str:
    rates = [rate / share for rate in _knees(one).values()]
    least, most = (_format.number(end) for end in (min(rates), max(rates)))
    together = "".join(_together(one, share))
    return f"At {_goal(one)} the {len(rates)} seeds by themselves tell {least} to {most} {unit}{together}."


def _together(one: Mapping[str, Any], share: float) -> Iterator[str]:
    if one["capacity_rps"]:
        yield f"; together {_format.number(one['capacity_rps'] / share)}"
        if one["low_rps"] is not None and one["high_rps"] is not None:
            low, high = (_format.number(one[end] / share) for end in ("low_rps", "high_rps"))
            yield f" ({low} to {high})"


def _goal(one: Mapping[str, Any]) -> str:
    return f"{_format.option(one['goal'] * 100)}%"
