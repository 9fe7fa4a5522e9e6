"""Simulator against real: every simulated time against the measured one, with the diagonal where both agree."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from reports.answers import validate as said
from reports.figures import _real
from reports.figures import _style as style

ORDER = 3
OF = "validate"
SECTION = "figures"
TITLE = "Simulated against measured"
MISSING = "There are no times among these measurements; the percentages stand in the tables."


def figure(one: Mapping[str, Any]) -> go.Figure | str:
    """Simulated against measured seconds, a mark for each run and metric, both axes logarithmic."""
    pairs = [
        pair
        for pair in one["pairs"]
        if not pair["metric"].endswith("_pct") and pair["measured"] > 0 and pair["simulated"] > 0
    ]
    if not pairs:
        return MISSING
    shown = _real.thinned(pairs)
    drawn = style.new(520)
    metrics: dict[str, list[Mapping[str, Any]]] = {}
    for pair in shown:
        metrics.setdefault(pair["metric"], []).append(pair)
    for place, (metric, group) in enumerate(metrics.items()):
        _marks(drawn, said.name(metric), group, place)
    values = [float(pair[side]) for pair in shown for side in ("measured", "simulated")]
    ends = [min(values), max(values)]
    drawn.add_scatter(
        x=ends, y=ends, name="both alike", mode="lines", meta=style.MARKS, hoverinfo="skip",
        line=style.line(style.GREY, "dash", 1.5),
    )  # fmt: skip
    drawn.update_layout(xaxis=style.log_axis("measured (s)", values), yaxis=style.log_axis("simulated (s)", values))
    scored = [pair for pair in pairs if not pair["calibrated"]] or pairs
    near = sum(abs(pair["error"]) <= 10 for pair in scored)
    finding = f"{near:,} of {len(scored):,} simulated times are within 10% of the measured ones."
    return style.done(drawn, finding, _real.notes(pairs, len(shown)))


def _marks(drawn: go.Figure, name: str, pairs: Sequence[Mapping[str, Any]], place: int) -> None:
    color, symbol, _ = _real.look(place)
    drawn.add_scatter(
        x=[pair["measured"] for pair in pairs], y=[pair["simulated"] for pair in pairs], name=name, mode="markers",
        marker={"size": 8, "symbol": _real.symbols(pairs, symbol), "color": color, "opacity": 0.8},
        hovertemplate="measured %{x:.4r} s, simulated %{y:.4r} s",
    )  # fmt: skip
