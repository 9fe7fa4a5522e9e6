"""Systems over the rate: the look of each, its rates as lines or as groups, and the notes on what is not drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reports import _format
from reports._format import in_figure
from reports.figures import style
from reports.figures.style import Look
from reports.study import Point, Study, System, axis_title

MOST = len(style.SYSTEMS)
"""Systems that one figure can tell apart."""

PANELS = 3
"""Systems that get a panel each."""

NO_CURVE = (
    "A curve over the rate needs runs at several rates; bench sweep --rate 1:4:0.5, or bench capacity, makes them."
)
_WIDE = 30.0
"""Rates further apart than this go on a log axis."""


@dataclass(frozen=True, slots=True)
class Line:
    """A system as it is drawn: its points with a rate, x values in the unit of the figure, and its look."""

    system: System
    points: tuple[Point, ...]
    x: np.ndarray
    look: Look
    prefix: str

    @property
    def name(self) -> str:
        """Its name in a legend; empty for a single system."""
        return self.prefix.removesuffix(": ")

    def at(self, which: int) -> str:
        """A rate as text."""
        return _format.plain(float(self.x[which]), 4)


def lines(study: Study, *, least: int = 2) -> list[Line]:
    """The systems that have at least `least` rates, in their order, `MOST` at most."""
    used = [system for system in study.systems if len({point.rate_rps for point in system.points}) >= least][:MOST]
    return [
        Line(
            system,
            system.points,
            np.array([point.rate_rps for point in system.points]) / study.share(system),
            look,
            f"{in_figure(system.name)}: " if len(used) > 1 else "",
        )
        for system, look in zip(used, style.SYSTEMS, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Group:
    """Points to stand side by side: rates of one system under its `name`, or systems (no `name`); `unit` of the labels.

    The labels are printed.
    """

    name: str
    unit: str
    points: dict[str, Point]

    @property
    def systems(self) -> int:
        return 1 if self.unit else len(self.points)


def groups(study: Study) -> list[Group]:
    """The rates of each system, `PANELS` systems at most; where none has several rates, the systems themselves."""
    curves = lines(study)[:PANELS]
    if not curves:
        single = lines(study, least=1)
        points = {line.name or f"{line.at(0)} {study.rate_unit}": line.points[0] for line in single}
        return [Group("", "", points)] if points else []
    return [
        Group(line.name, study.rate_unit, {line.at(i): point for i, point in enumerate(line.points)}) for line in curves
    ]


def rate_title(study: Study) -> str:
    """The title of the axis of the rates."""
    if study.axis != "rate":
        return in_figure(axis_title(study.axis))
    return f"rate per GPU ({study.rate_unit})" if study.per_gpu else f"rate ({study.rate_unit})"


def rate_axis(study: Study, drawn: Sequence[Line]) -> dict[str, Any]:
    """The axis of the rates: linear, or log where they are far apart."""
    values = np.concatenate([line.x for line in drawn])
    if values.min() > 0 and values.max() / values.min() > _WIDE:
        return style.log_axis(rate_title(study), values.tolist())
    low, top = float(values.min()), float(values.max())
    start = low - 0.3 * (top - low) if low > 0.5 * top else 0.0
    return style.axis(rate_title(study), range=[max(start, 0.0), top + 0.04 * (top - start)])


def left_out(study: Study, drawn: int) -> str:
    """The note on systems that are not drawn, because so many are."""
    missing, why = len(study.systems) - drawn, "too many, or without runs at several rates"
    return f"Systems that are not drawn: {missing} ({why})." if missing > 0 else ""
