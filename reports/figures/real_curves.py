"""Simulator against real: the measured curve over the rate and the simulated one, a panel for each metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from reports._format import in_figure
from reports.answers import validate as said
from reports.figures import _real
from reports.figures import _style as style

ORDER = 1
OF = "validate"
SECTION = "figures"
TITLE = "Measured and simulated over the rate"
MOST = 4
"""Metrics that are drawn."""
MISSING = "These measurements were not made at several rates; see the plane of measured and simulated."


def figure(one: Mapping[str, Any]) -> go.Figure | str:
    """Each metric against the rate: measured with marks and solid lines, simulated hollow and dashed."""
    pairs = [pair for pair in one["pairs"] if pair["x"] is not None]
    if len({pair["x"] for pair in pairs}) < 2:
        return MISSING
    found: dict[str, list[Mapping[str, Any]]] = {}
    for pair in pairs:
        found.setdefault(pair["metric"], []).append(pair)
    shown = list(found.items())[:MOST]
    drawn = style.panels([1.0] * len(shown), 120 + 280 * len(shown), shared=True, spacing=0.06)
    for row, (metric, group) in enumerate(shown, start=1):
        _panel(drawn, metric, group, row)
        drawn.update_xaxes(style.axis("rate (req/s)" if row == len(shown) else ""), row=row, col=1)
    note = f"{len(found) - MOST} more metrics are not drawn." if len(found) > MOST else ""
    return style.done(drawn, said.verdict(one), ["Solid: measured; dashed: simulated.", note])


def _panel(drawn: go.Figure, metric: str, pairs: Sequence[Mapping[str, Any]], row: int) -> None:
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for pair in pairs:
        curves.setdefault(pair["curve"], []).append(pair)
    for place, (curve, group) in enumerate(curves.items()):
        ordered = sorted(group, key=lambda pair: float(pair["x"]))
        for side, dash in (("measured", "solid"), ("simulated", "dash")):
            _line(drawn, f"{in_figure(curve)} {side}".strip(), ordered, side, (place, dash, row))
    share = metric.endswith("_pct")
    if share:
        drawn.update_yaxes(style.axis(f"{said.name(metric)} (%)", range=[-3, 104]), row=row, col=1)
    else:
        values = [float(pair[side]) for pair in pairs for side in ("measured", "simulated")]
        drawn.update_yaxes(style.log_axis(f"{said.name(metric)} (s)", values, title_standoff=10), row=row, col=1)


def _line(drawn: go.Figure, name: str, pairs: Sequence[Mapping[str, Any]], side: str, at: tuple[int, str, int]) -> None:
    place, dash, row = at
    color, symbol, _ = _real.look(place)
    drawn.add_scatter(
        x=[pair["x"] for pair in pairs], y=[pair[side] for pair in pairs], name=name, mode="lines+markers",
        line=style.line(color, dash, 2), legendgroup=name, showlegend=row == 1,
        marker={"size": 9, "symbol": symbol if side == "measured" else f"{symbol}-open", "color": color},
        hovertemplate="%{x:.4r} req/s: %{y:.4r}", row=row, col=1,
    )  # fmt: skip
