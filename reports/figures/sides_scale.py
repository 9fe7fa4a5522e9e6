"""Attainment of both sides of a comparison against SLO scale, from the stored requests of their runs."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports.comparison import Comparison
from reports.comparison._contrast import SCALES, Band, band
from reports.figures import _sides
from reports.figures import _style as style

ORDER = 3
OF = "compare"
SECTION = "curves"
TITLE = "Attainment of both sides against SLO scale"
_LEAST, _MOST = 0.02, 0.999
"""The curves are drawn from where one of them leaves 0 to where both have all but reached 1."""


def figure(comparison: Comparison) -> go.Figure | str:
    """Share of requests that meet the SLO when every bound is multiplied by the scale on the x axis."""
    contrasts = comparison.contrasts
    if not contrasts:
        return comparison.missing
    if not contrasts[0].sides[0].bounds:
        return "The runs have no bound on single requests; give --slo ttft=0.25,tpot=0.1 to see attainment."
    goal = comparison.info["goal"]
    found = {
        side: band([contrast.sides[place].attainment for contrast in contrasts])
        for place, side in enumerate(_sides.SIDES)
    }
    shown = _shown([found[side].mean for side in _sides.SIDES])
    drawn = style.new(440)
    for place, side in enumerate(_sides.SIDES):
        here = found[side]
        if here.said:
            ends = np.maximum(100 * here.low[shown], 0), np.minimum(100 * here.high[shown], 100)
            _sides.band(drawn, SCALES[shown], ends, side, here.said)
        _line(drawn, SCALES[shown], 100 * here.mean[shown], side, side, "solid", 3)
        bounds = contrasts[0].sides[place].bounds
        for bound in bounds if len(bounds) > 1 else ():
            alone = band([contrast.sides[place].bounds[bound] for contrast in contrasts])
            name = f"{side}, {_sides.label(bound)} only"
            _line(drawn, SCALES[shown], 100 * alone.mean[shown], name, side, _sides.dash(bound), 1.5)
    drawn.update_layout(
        xaxis=style.log_axis("SLO scale (1 = the SLO of the comparison)", SCALES[shown]),
        yaxis=style.axis("requests within the SLO (%)", range=[-2, 104]),
    )
    drawn.add_hline(
        y=goal * 100, line={"color": style.GREY, "width": 1, "dash": "dash"}, annotation_text=f"goal {goal * 100:g}%",
        annotation_position="bottom right", annotation_font_size=12,
    )  # fmt: skip
    drawn.add_vline(x=1.0, line={"color": style.GREY, "width": 1, "dash": "dot"})
    crossings: dict[str, float | None] = {}
    for place, side in enumerate(_sides.SIDES):
        # the scale from which on a side reaches the goal, the mean of its pairs; none where one of them never does
        each = [contrast.sides[place].crossing for contrast in contrasts]
        known = [at for at in each if at is not None]
        crossings[side] = float(np.mean(known)) if len(known) == len(each) else None
        _mark(drawn, crossings[side], side, place, SCALES[shown])
    return style.done(drawn, _finding(found, crossings, goal), _notes(comparison, found))


def _shown(means: list[np.ndarray]) -> np.ndarray:
    """Which scales are drawn; 1/2 to 2 always."""
    last = np.minimum(means[0].max(), means[1].max()) * _MOST
    inside = (np.maximum(*means) >= _LEAST) & (np.minimum(*means) <= last)
    inside |= (SCALES >= 0.5) & (SCALES <= 2.0)
    places = np.flatnonzero(inside)
    found: np.ndarray = np.arange(places[0], min(places[-1] + 2, len(SCALES)))
    return found


def _line(
    drawn: go.Figure, x: np.ndarray, y: np.ndarray, name: str, side: str, dash: str, width: float
) -> None:  # fmt: skip
    every = max(1, len(x) // 10)
    sizes = np.where(np.arange(len(x)) % every == every // 2, 8 if width > 2 else 5, 0)
    drawn.add_scatter(
        x=x, y=y, name=name, mode="lines+markers", line=style.line(_sides.COLORS[side], dash, width),
        marker={"size": sizes, "symbol": _sides.SYMBOLS[side], "color": _sides.COLORS[side], "line": {"width": 0}},
        hovertemplate="scale %{x:.3r}: %{y:.1f}%",
    )  # fmt: skip


def _mark(drawn: go.Figure, at: float | None, side: str, place: int, scales: np.ndarray) -> None:
    if at is None or not scales[0] <= at <= scales[-1]:
        return
    left = np.log(at / scales[0]) > 0.6 * np.log(scales[-1] / scales[0])
    drawn.add_vline(x=at, line={"color": _sides.COLORS[side], "width": 1.5, "dash": "dot"})
    drawn.add_annotation(
        x=float(np.log10(at)), y=0.02 + 0.08 * place, yref="paper", text=f"{side} from {_format.number(at)}",
        showarrow=False, font={"size": 12}, yanchor="bottom", xanchor="right" if left else "left",
        xshift=-4 if left else 4,
    )  # fmt: skip


def _finding(found: Mapping[str, Band], crossings: Mapping[str, float | None], goal: float) -> str:
    one = int(np.searchsorted(SCALES, 1.0))
    met = [_format.share(float(found[side].mean[one]), goal) for side in _sides.SIDES]
    reached = [
        f"the {side} {'at no scale' if at is None else f'from {_format.number(at)} times its bounds on'}"
        for side, at in crossings.items()
    ]
    return (
        f"{met[0]} of the requests meet the SLO in the base and {met[1]} in the head; {goal * 100:g}% is reached by "
        f"{' and by '.join(reached)}."
    )


def _notes(comparison: Comparison, found: Mapping[str, Band]) -> Iterator[str]:
    if comparison.point:
        yield f"At {comparison.point}."
    if found["base"].said:
        yield f"Bands: {found['base'].said}."
