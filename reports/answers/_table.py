"""Tables of an answer, for a terminal and in markdown, from the same rows."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from reports._clean import clean, in_markdown
from reports.answers._look import PLAIN, Look

WIDTH = 100
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
    return "\n".join(textwrap.wrap(clean(sentence, None), WIDTH, subsequent_indent="  "))


def _widths(lines: Sequence[Sequence[str]], left: int) -> list[int]:
    """Columns for each column: all that it wants, or what its longest word and its cells need."""
    wanted = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    room = WIDTH - len(_GAP) * (len(wanted) - 1)
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
