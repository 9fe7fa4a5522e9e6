"""A small curve for a terminal: attainment over the rate with its goals, in braille, or ASCII where that is missing."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from reports import _format

WIDTH, HEIGHT = 72, 9
"""Columns and lines of the field itself."""

ROOM = WIDTH + 18
"""Columns that a curve takes with its labels."""

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a braille character, by line and column (Unicode 16, chapter 21.1)."""

FEWEST = 3
"""Points below which there is no curve to see."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Shares from 0 to 1 over a rate; `goals` are drawn as lines, `marks` (capacities) as columns.

    `log`: equal ratios of the rate are equally far apart.
    """

    points: Sequence[tuple[float, float]]
    goals: Sequence[float]
    title: str
    unit: str
    marks: Sequence[float] = ()
    log: bool = False


def drawn(curve: Curve, *, blocks: bool) -> str:
    """The curve in at most 100 columns; empty of fewer points than make one."""
    points = sorted((x, y) for x, y in curve.points if x > 0 or not curve.log)
    if len({x for x, _ in points}) < FEWEST:
        return ""
    field_ = _Field(points, curve.goals, blocks, curve.log)
    for goal in curve.goals:
        field_.level(goal)
    for mark in curve.marks:
        field_.column(mark)
    field_.line(points)
    return "\n".join([curve.title, *field_.lines(), *field_.foot(curve.unit)])


@dataclass(slots=True)
class _Field:
    """Characters, and the dots of the curve above them."""

    points: Sequence[tuple[float, float]]
    goals: Sequence[float]
    blocks: bool
    log: bool
    under: list[list[str]] = field(default_factory=lambda: [[" "] * WIDTH for _ in range(HEIGHT)])
    dots: list[list[int]] = field(default_factory=lambda: [[0] * WIDTH for _ in range(HEIGHT)])

    @property
    def low(self) -> float:
        """Share at the bottom: so far down as the curve or a goal needs, in steps of 5 points."""
        least = min([*(y for _, y in self.points), *self.goals])
        return min(0.9, math.floor(20 * least + 1e-9) / 20)

    def across(self, x: float) -> float:
        """0 at the left end, 1 at the right."""
        left, right = self.points[0][0], self.points[-1][0]
        return math.log(x / left) / math.log(right / left) if self.log else (x - left) / (right - left)

    def up(self, y: float) -> float:
        """0 at the bottom, 1 at the top."""
        return (y - self.low) / (1 - self.low)

    def down(self, y: float) -> float:
        """Dots from the top."""
        return (1 - self.up(y)) * (4 * HEIGHT - 1)

    def row(self, y: float) -> int:
        """Line of a share, from the top."""
        return min(HEIGHT - 1, max(0, round(self.down(y)) // 4))

    def level(self, goal: float) -> None:
        """A line from end to end at a goal."""
        if not self.blocks:
            self.under[self.row(goal)] = ["-"] * WIDTH
        for place in range(0, 2 * WIDTH, 4) if self.blocks else ():
            self._dot(place, self.down(goal))

    def column(self, x: float) -> None:
        """A line from the bottom to the top."""
        place = round(self.across(x) * (WIDTH - 1))
        if 0 <= place < WIDTH:
            for row in self.under:
                row[place] = "│" if self.blocks else "|"

    def line(self, points: Iterable[tuple[float, float]]) -> None:
        """The points, joined."""
        places = [(self.across(x) * (2 * WIDTH - 1), self.down(y)) for x, y in points]
        for (x0, y0), (x1, y1) in pairwise(places):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for step in range(steps + 1):
                self._dot(x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps)

    def _dot(self, x: float, y: float) -> None:
        column, line = round(x), min(4 * HEIGHT - 1, max(0, round(y)))
        self.dots[line // 4][column // 2] |= _DOTS[line % 4][column % 2]

    def lines(self) -> Iterable[str]:
        """The field with its shares on the left and its goals on the right."""
        labels = {0: "100%", HEIGHT - 1: f"{100 * self.low:.0f}%"}
        goals = {self.row(goal): f" goal {_format.option(goal * 100)}%" for goal in self.goals}
        wall = "│" if self.blocks else "|"
        for number, (cells, dots) in enumerate(zip(self.under, self.dots, strict=True)):
            plotted = "".join(self._cell(cell, bits) for cell, bits in zip(cells, dots, strict=True))
            yield f"{labels.get(number, ''):>4} {wall}{plotted}{goals.get(number, '')}".rstrip()

    def _cell(self, under: str, bits: int) -> str:
        if not bits:
            return under
        return chr(0x2800 + bits) if self.blocks else "*"

    def foot(self, unit: str) -> Iterable[str]:
        """The axis below, with the ends and the middle of the rates."""
        corner, rule = ("└", "─") if self.blocks else ("+", "-")
        yield f"     {corner}{rule * WIDTH}"
        left, right = self.points[0][0], self.points[-1][0]
        middle = math.sqrt(left * right) if self.log else (left + right) / 2
        ends = [_format.number(x) for x in (left, middle, right)]
        row = f"{ends[0]}{ends[1]:^{WIDTH - 2 * len(ends[0])}}"
        yield f"      {row:<{WIDTH - len(ends[2])}}{ends[2]} {unit}"
