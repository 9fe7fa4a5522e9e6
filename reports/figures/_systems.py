"""What figures of several systems share: the look of each, its rates, and hollow marks where a queue grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reports import _numbers
from reports._clean import in_figure
from reports.figures import _style as style

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from reports.study import Point, Study, System

MOST = 8
"""Systems that one figure can tell apart."""

NO_CURVE = (
    "A curve over the rate needs runs at several rates; bench sweep --rate 1:4:0.5, or bench capacity, makes them."
)
_COLORS = (style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE)
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
_WIDE = 30.0
"""Rates further apart than this go on a log axis."""


@dataclass(frozen=True, slots=True)
class Line:
    """A system as it is drawn: its points with a rate, x values in the unit of the figure, colour and marker."""

    system: System
    points: tuple[Point, ...]
    x: np.ndarray
    color: str
    symbol: str
    prefix: str

    def ring(self, points: Sequence[Point]) -> list[str]:
        """The marker of each point: hollow where a queue grew all through a run."""
        return [f"{self.symbol}-open" if point.overloaded else self.symbol for point in points]


def lines(study: Study) -> list[Line]:
    """The systems that have at least two rates, in their order, `MOST` at most."""
    kept = [system for system in study.systems if len({point.rate_rps for point in system.points}) > 1][:MOST]
    return [
        Line(
            system,
            system.points,
            np.array([point.rate_rps for point in system.points]) / study.share(system),
            _COLORS[i % len(_COLORS)],
            _SYMBOLS[i],
            f"{in_figure(system.name)}: " if len(kept) > 1 else "",
        )
        for i, system in enumerate(kept)
    ]


def left_out(study: Study, drawn: Sequence[Line]) -> str:
    """The sentence on systems that are not drawn."""
    missing = len(study.systems) - len(drawn)
    if not missing:
        return ""
    have = "has one rate only" if len(drawn) < MOST else "would not be told apart"
    return f"{_numbers.count(missing, 'system')} more {have}; the tables have all."


def rate_axis(study: Study, drawn: Sequence[Line]) -> dict[str, object]:
    """The axis of the rates: linear, or log where they are far apart."""
    values = np.concatenate([line.x for line in drawn])
    title = f"rate per GPU ({study.rate_unit})" if study.per_gpu else f"rate ({study.rate_unit})"
    if values.min() > 0 and values.max() / values.min() > _WIDE:
        return style.log_axis(title, values.tolist())
    top = float(values.max())
    return style.axis(title, range=[min(0.0, float(values.min())), top * 1.04], rangemode="tozero")


def place(drawn: go.Figure, x: float) -> float:
    """Where an annotation at `x` of the rates stands: plotly takes the logarithm of it on a log axis."""
    return float(np.log10(x)) if drawn.layout.xaxis.type == "log" else x


def hollow(points: Sequence[Point]) -> str:
    """What a hollow mark means, where there is one."""
    return "Hollow points: a queue grew all through a run, so a longer run falls further." if any(
        point.overloaded for point in points) else ""  # fmt: skip


def runs(points: Sequence[Point]) -> str:
    """'5 seeds at each point', or '1 to 5'."""
    least, most = min(p.seeds for p in points), max(p.seeds for p in points)
    return f"{_numbers.count(most, 'seed')} at each point" if least == most else f"{least} to {most} seeds at a point"
