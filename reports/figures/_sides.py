"""The two sides of a comparison as figures draw them: base grey with circles, head blue with diamonds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from reports._format import in_figure
from reports.figures import _style as style

if TYPE_CHECKING:
    import numpy as np

SIDES = ("base", "head")
COLORS = {"base": style.GREY, "head": style.BLUE}
SYMBOLS = {"base": "circle", "head": "diamond"}
DASHES = {"ttft": "dot", "tpot": "dash"}
"""Dash of the share within one bound alone, by its metric (DistServe's convention); all bounds together are solid."""

OTHER = "dashdot"
MOST_LETTERS = 28


def dash(bound: str) -> str:
    """The dash of the line of one bound, from its text ('ttft=0.25', 'p99:tpot=0.1')."""
    return DASHES.get(bound.partition("=")[0].rpartition(":")[2], OTHER)


def label(text: object) -> str:
    """Foreign text that stays short beside an axis."""
    whole = str(text)
    return in_figure(whole if len(whole) <= MOST_LETTERS else f"{whole[: MOST_LETTERS - 1]}…")


def row_label(row: Mapping[str, Any]) -> str:
    """A metric, and below it its point where there are several."""
    from harness.experiments.compare import wording

    return label(row["label"]) + (f"<br>{label(wording.where(row))}" if row["point"] else "")


def unit(row: Mapping[str, Any]) -> str:
    """The unit of a metric's values; shares are drawn in percent."""
    return "%" if row["unit"] == "share" else in_figure(row["unit"] or "as printed")


def factor(row: Mapping[str, Any]) -> float:
    """What a stored value is multiplied with to be drawn in `unit`."""
    return 100.0 if row["unit"] == "share" else 1.0


def band(
    drawn: go.Figure, x: Sequence[float] | np.ndarray, ends: tuple[np.ndarray, np.ndarray], side: str, said: str,
    **where: Any,
) -> None:  # fmt: skip
    """The band of a side between its lower and its upper end, both of which are columns of the table."""
    for name, values, fill in (("low", ends[0], None), ("high", ends[1], "tonexty")):
        drawn.add_scatter(
            x=x, y=values, name=f"{side}, {name} end of the {said}", mode="lines", fill=fill, hoverinfo="skip",
            line={"width": 0, "color": COLORS[side]}, fillcolor=style.faint(COLORS[side]), showlegend=False, **where,
        )  # fmt: skip
