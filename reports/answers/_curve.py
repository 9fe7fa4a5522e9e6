"""A small curve in text: attainment over the rate with its goals, in braille, or ASCII where that cannot be shown.

How an answer is printed: plain for files and pipes; on a terminal with a curve, in colour where that is wanted.

Tables of an answer, for a terminal and in markdown, from the same rows.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from reports import _format
from reports._format import clean, in_markdown

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
        for at in range(0, 2 * WIDTH, 4) if self.blocks else ():
            self._dot(at, self.down(goal))

    def column(self, x: float) -> None:
        """A line from the bottom to the top."""
        at = round(self.across(x) * (WIDTH - 1))
        if 0 <= at < WIDTH:
            for row in self.under:
                row[at] = "│" if self.blocks else "|"

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
            shown = "".join(self._cell(cell, bits) for cell, bits in zip(cells, dots, strict=True))
            yield f"{labels.get(number, ''):>4} {wall}{shown}{goals.get(number, '')}".rstrip()

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


@dataclass(frozen=True, slots=True)
class Look:
    """On a `terminal` the verdict stands last, and a small `curve` above it; `color` brings colours.

    Without `blocks` nothing but ASCII is drawn. A terminal of too few `columns` gets no curve: it would wrap.
    """

    terminal: bool = False
    color: bool = False
    blocks: bool = True
    columns: int = 100

    @property
    def curve(self) -> bool:
        """Whether a curve is drawn, and fits."""
        return self.terminal and self.columns >= ROOM

    def bold(self, text: str) -> str:
        """What is to be seen first."""
        return self._styled(text, "bold")

    def judged(self, text: str, good: bool | None) -> str:
        """Good or bad news; None: neither."""
        return self._styled(text, "bold" if good is None else "bold green" if good else "bold red")

    def _styled(self, text: str, style: str) -> str:
        """Every line by itself, so that a pager which begins in the middle shows it right."""
        if not self.color:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        made = Style.parse(style)
        return "\n".join(made.render(line, color_system=ColorSystem.STANDARD) for line in text.split("\n"))


PLAIN = Look()
"""What every form but a terminal gets."""


TABLE_WIDTH = 100
"""Columns: a line is never longer where it need not be."""

NARROWEST = 8
"""Columns that are left to a name, however many numbers stand beside it."""

_GAP = "  "


def text(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, look: Look = PLAIN,
    tones: Sequence[bool | None] = (),
) -> str:  # fmt: skip
    """The rows under their heads, the first `left` columns to the left and the others to the right; no box.

    Where there is little room heads are broken between words, then names on the left; a cell on the right never is.
    `tones` says of each row whether it is good or bad news (None: neither).
    """
    lines = [[clean(cell) for cell in line] for line in (heads, *rows)]
    widths = _widths(lines, left)
    head, *body = [_printed(line, widths, left, top=number > 0) for number, line in enumerate(lines)]
    rule = ("─" if look.blocks else "-") * (sum(widths) + len(_GAP) * (len(widths) - 1))
    head = [look.bold(line) for line in head]
    for number, tone in enumerate(tones):
        if tone is not None:
            body[number] = [look.judged(line, tone) for line in body[number]]
    return "\n".join([*head, rule, *(line for part in body for line in part)]) + "\n"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The same as a markdown table; foreign text cannot break out of its cell."""
    marks = ["---" if number < left else "---:" for number in range(len(heads))]
    cells = [[in_markdown(cell) for cell in line] for line in (heads, *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (cells[0], marks, *cells[1:]))


def wrapped(sentence: str) -> str:
    """A sentence in lines of a terminal, those after the first indented."""
    return "\n".join(textwrap.wrap(clean(sentence, None), TABLE_WIDTH, subsequent_indent="  "))


def _widths(lines: Sequence[Sequence[str]], left: int) -> list[int]:
    """Columns for each column: all that it wants, or what its longest word and its cells need."""
    wanted = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    room = TABLE_WIDTH - len(_GAP) * (len(wanted) - 1)
    if sum(wanted) <= room:
        return wanted
    needed = [
        max([*map(cell_len, head.split()), *map(cell_len, cells), 1]) for head, *cells in zip(*lines, strict=True)
    ]
    while sum(needed) > room and max(needed[:left], default=0) > NARROWEST:
        widest = max(range(left), key=lambda number: needed[number])
        needed[widest] -= 1
    return needed


def _printed(line: Sequence[str], widths: Sequence[int], left: int, *, top: bool) -> list[str]:
    """One row in as many lines as its tallest cell takes; heads stand at the bottom, cells at the `top`."""
    cells = [_broken(cell, width) for cell, width in zip(line, widths, strict=True)]
    height = max(map(len, cells))
    filled = [cell + [""] * (height - len(cell)) if top else [""] * (height - len(cell)) + cell for cell in cells]
    return [_joined([cell[number] for cell in filled], widths, left) for number in range(height)]


def _joined(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        set_cell_size(cell, width) if number < left else " " * (width - cell_len(cell)) + cell
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return _GAP.join(padded).rstrip()


def _broken(cell: str, width: int) -> list[str]:
    if cell_len(cell) <= width:
        return [cell]
    console = Console(width=width, color_system=None, legacy_windows=False)
    return [line.plain.rstrip() for line in Text(cell).wrap(console, width, overflow="fold")]
