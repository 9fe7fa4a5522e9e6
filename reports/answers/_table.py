"""Tables of an answer, for a terminal and in markdown, from the same rows."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reports._clean import clean, in_markdown

WIDTH = 100
"""Columns: a line is never longer where it need not be."""


def text(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The rows under their heads, the first `left` columns to the left and the others to the right; no box."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="")
    for number, head in enumerate(heads):
        table.add_column(Text(clean(head)), justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, highlight=False, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The same as a markdown table; foreign text cannot break out of its cell."""
    marks = ["---" if number < left else "---:" for number in range(len(heads))]
    cells = [[in_markdown(cell) for cell in line] for line in (heads, *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (cells[0], marks, *cells[1:]))
