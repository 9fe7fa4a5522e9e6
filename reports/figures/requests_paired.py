"""The same requests on both sides of a comparison: how much of the SLO each used there, and which changed sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.comparison import Comparison

ORDER = 6
OF = "compare"
SECTION = "pairs"
TITLE = "The same requests on both sides"
_LOOKS = {
    "both": ("met on both sides", style.GREY, "circle-open"),
    "base": ("met by the base only", style.VERMILLION, "square"),
    "head": ("met by the head only", style.BLUE, "diamond"),
    "neither": ("missed on both sides", style.PURPLE, "x"),
}


def figure(comparison: Comparison) -> go.Figure | str:
    """Largest part of a bound that each request used: in the base on x, in the head on y; above 1 it missed."""
    contrasts = comparison.contrasts
    if not contrasts:
        return comparison.missing
    if not comparison.same_requests:
        return "The two sides sent different requests, so none can be followed from one side to the other."
    if not contrasts[0].sides[0].bounds:
        return "The runs have no bound on single requests, so none changed sides; give --slo ttft=0.25,tpot=0.1."
    used = contrasts[0].used
    drawable = used[np.isfinite(used).all(axis=1) & (used > 0).all(axis=1)]
    if not len(drawable):
        return "No request of the first pair ended well on both sides, so there is none to draw."
    drawn = style.new(520)
    for which, (name, color, symbol) in _LOOKS.items():
        mine = drawable[_of(drawable, which)]
        if len(mine):
            drawn.add_scatter(
                x=mine[:, 0], y=mine[:, 1], name=name, mode="markers", hovertemplate="base %{x:.3r}, head %{y:.3r}",
                marker={"color": color, "symbol": symbol, "size": 6, "opacity": 0.7},
            )  # fmt: skip
    ends = [float(drawable.min()), float(drawable.max())]
    drawn.add_scatter(
        x=ends, y=ends, name="the same on both sides", mode="lines", meta=style.MARKS, hoverinfo="skip",
        line=style.line(style.GREY, "dash", 1.5),
    )  # fmt: skip
    drawn.add_hline(y=1.0, line={"color": style.GREY, "width": 1, "dash": "dot"})
    drawn.add_vline(x=1.0, line={"color": style.GREY, "width": 1, "dash": "dot"})
    drawn.update_layout(
        xaxis=style.log_axis("base: largest part of a bound used (1 = the bound)", [*ends, 1.0]),
        yaxis=style.log_axis("head: largest part of a bound used (1 = the bound)", [*ends, 1.0]),
    )
    return style.done(drawn, _finding(comparison), _notes(comparison, len(drawable)))


def _of(used: np.ndarray, which: str) -> np.ndarray:
    base, head = used[:, 0] <= 1.0, used[:, 1] <= 1.0
    found: np.ndarray = {"both": base & head, "base": base & ~head, "head": head & ~base, "neither": ~base & ~head}[
        which
    ]
    return found


def counts(comparison: Comparison) -> dict[str, int]:
    """Requests of all pairs by where they met the SLO: `both`, only `base`, only `head`, `neither`."""
    return {which: sum(contrast.met[which] for contrast in comparison.contrasts) for which in _LOOKS}


def _finding(comparison: Comparison) -> str:
    found = counts(comparison)
    total = sum(found.values())
    lost, won = found["base"], found["head"]
    if not lost and not won:
        return f"Not one of {total:,} requests changed sides: each met the SLO on both sides or on neither."
    return (
        f"Of {_format.count(total, 'request')} {lost:,} met the SLO in the base and miss it in the head "
        f"({_format.share(lost / total)}), {won:,} the other way round ({_format.share(won / total)})."
    )


def _notes(comparison: Comparison, drawn: int) -> Iterator[str]:
    if comparison.point:
        yield f"At {comparison.point}."
    contrasts = comparison.contrasts
    first = contrasts[0]
    of = f" of pair {first.pair}" if len(contrasts) > 1 else ""
    if drawn < first.requests:
        yield f"Drawn are {drawn:,} of the {first.requests:,} requests{of}, evenly chosen of those that ended well."
    elif of:
        yield f"Drawn are the {_format.count(drawn, 'request')}{of}."
    yield "Below the dashed line a request used less of its bounds in the head."
