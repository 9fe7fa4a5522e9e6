"""What figures of several systems share: the look of each, its rates, and hollow marks where a queue grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from reports import _format
from reports._format import in_figure
from reports.figures import _style as style

if TYPE_CHECKING:
    from reports.study import Point, Study, System

MOST = 8
"""Systems that one figure can tell apart."""

NO_CURVE = (
    "A curve over the rate needs runs at several rates; bench sweep --rate 1:4:0.5, or bench capacity, makes them."
)
PANELS = 3
"""Systems that get a panel each."""

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


def look(number: int) -> tuple[str, str]:
    """Colour and marker of the system of that number, below `MOST`."""
    return _COLORS[number % len(_COLORS)], _SYMBOLS[number]


def lines(study: Study, *, made: bool = False, least: int = 2) -> list[Line]:
    """The systems that have at least `least` rates, in their order, `MOST` at most.

    With `made` systems stand for what was run: those that only score the same runs otherwise are left out.
    """
    able = [system for system in study.systems if len({point.rate_rps for point in system.points}) >= least]
    kept = [system for system in able if not (made and system.again)][:MOST]
    names = [system.made or system.name if made else system.name for system in kept]
    return [
        Line(
            system,
            system.points,
            np.array([point.rate_rps for point in system.points]) / study.share(system),
            *look(i),
            f"{in_figure(name)}: " if len(kept) > 1 else "",
        )
        for i, (system, name) in enumerate(zip(kept, names, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class Group:
    """Points to stand side by side: rates of one system under its `name`, or systems (no `name`); `unit` of the labels.

    The labels are printed.
    """

    name: str
    unit: str
    points: dict[str, Point]


def groups(study: Study) -> list[Group]:
    """The rates of each system, `PANELS` systems at most; where none has several rates, the systems themselves."""
    curves = lines(study, made=True)[:PANELS]
    if not curves:
        single = lines(study, made=True, least=1)
        points = {
            line.prefix.removesuffix(": ") or f"{_format.plain(float(line.x[0]), 4)} {study.rate_unit}": line.points[0]
            for line in single
        }
        return [Group("", "", points)] if points else []
    return [
        Group(
            line.prefix.removesuffix(": "),
            study.rate_unit,
            {_format.plain(float(x), 4): point for x, point in zip(line.x, line.points, strict=True)},
        )
        for line in curves
    ]


def group_axis(study: Study, found: Sequence[Group]) -> dict[str, object]:
    """The axis over the labels of groups."""
    if not found[0].unit:
        return style.axis("", type="category")
    title = f"rate per GPU ({study.rate_unit})" if study.per_gpu else f"rate ({study.rate_unit})"
    return style.axis(title, type="category")


def left_out(study: Study, drawn: Sequence[Line]) -> str:
    """The sentence on systems that are not drawn."""
    missing = sum(not system.again for system in study.systems) - sum(not line.system.again for line in drawn)
    if missing <= 0:
        return ""
    have = "has one rate only" if len(drawn) < MOST else "would not be told apart"
    return f"{_format.count(missing, 'system')} more {have}; the tables have all."


def no_panel(study: Study, found: Sequence[Group]) -> str:
    """The sentence on systems that have no panel among these groups; where those are systems themselves, no bar."""
    shown = sum(len(group.points) if not group.unit else 1 for group in found)
    missing = sum(not system.again for system in study.systems) - shown
    if missing <= 0:
        return ""
    most = PANELS if found[0].unit else MOST
    why = f"at most {most} are drawn here" if shown >= most else "no runs at several rates can be read of them"
    return f"{_format.count(missing, 'system')} more left out: {why}."


def rate_axis(study: Study, drawn: Sequence[Line]) -> dict[str, object]:
    """The axis of the rates: linear, or log where they are far apart."""
    values = np.concatenate([line.x for line in drawn])
    title = f"rate per GPU ({study.rate_unit})" if study.per_gpu else f"rate ({study.rate_unit})"
    if values.min() > 0 and values.max() / values.min() > _WIDE:
        return style.log_axis(title, values.tolist())
    low, top = float(values.min()), float(values.max())
    start = low - 0.3 * (top - low) if low > 0.5 * top else 0.0
    return style.axis(title, range=[max(start, 0.0), top + 0.04 * (top - start)])


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
    return f"{_format.count(most, 'seed')} at each point" if least == most else f"{least} to {most} seeds at a point"
