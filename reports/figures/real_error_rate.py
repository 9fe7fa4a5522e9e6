"""Simulator against real: the error of each metric over the rate, so that it is seen where on the curve it breaks."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import plotly.graph_objects as go

from reports import _format
from reports.answers import validate as said
from reports.figures import _real
from reports.figures import _style as style

ORDER = 2
OF = "validate"
SECTION = "figures"
TITLE = "Error over the rate"
MISSING = "These measurements were not made at several rates; the errors stand in the tables."
_AXES = {"%": "error (%)", "points": "error (points)"}
_LEAST = 1.0
"""Per cent, or points, that an axis reaches at least either way, so that rounding does not look like an error."""
_LINE = 13
"""Pixels that a name in the legend takes, of two side by side."""


def figure(one: Mapping[str, Any]) -> go.Figure | str:
    """Error against rate of each metric, one panel for relative errors and one for points of a percentage."""
    pairs = [pair for pair in one["pairs"] if pair["x"] is not None]
    if len({pair["x"] for pair in pairs}) < 2:
        return MISSING
    units = _real.panels(pairs)
    names = sum(len(_real.groups(found)) for found in units.values())
    drawn = style.panels([1.0] * len(units), 120 + 300 * len(units) + _LINE * names, spacing=0.08)
    drawn.update_layout(margin_t=40 + _LINE * names)
    places = count()
    for row, (unit, found) in enumerate(units.items(), start=1):
        for name, group in _real.groups(found).items():
            _line(drawn, name, sorted(group, key=lambda pair: float(pair["x"])), next(places), row)
        drawn.add_hline(y=0, line={"color": style.GREY, "width": 1}, row=row, col=1)
        small = all(abs(pair["error"]) < _LEAST for pair in found)
        drawn.update_yaxes(style.axis(_AXES[unit], **({"range": [-_LEAST, _LEAST]} if small else {})), row=row, col=1)
        drawn.update_xaxes(style.axis("rate (req/s)" if row == len(units) else ""), row=row, col=1)
    return style.done(drawn, _finding(pairs), _real.notes(pairs, len(pairs)))


def _line(drawn: go.Figure, name: str, pairs: Sequence[Mapping[str, Any]], place: int, row: int) -> None:
    color, symbol, dash = _real.look(place)
    drawn.add_scatter(
        x=[pair["x"] for pair in pairs], y=[pair["error"] for pair in pairs], name=name, mode="lines+markers",
        line=style.line(color, dash, 1.5),
        marker={"size": 9, "symbol": _real.symbols(pairs, symbol), "color": color},
        hovertemplate="%{x:.4r} req/s: %{y:+.2f}", row=row, col=1,
    )  # fmt: skip


def _finding(pairs: Sequence[Mapping[str, Any]]) -> str:
    """The rate at which the largest scored error stands."""
    scored = [pair for pair in pairs if not pair["calibrated"]] or pairs
    parts = []
    for unit, found in _real.panels(scored).items():
        worst = max(found, key=lambda pair: abs(pair["error"]))
        error = said.size(worst["error"], unit, signed=True)
        parts.append(f"{error} ({said.name(worst['metric'])} at {_format.option(worst['x'])} req/s)")
    return f"The largest error is {' and '.join(parts)}."
