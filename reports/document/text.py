"""A document for a terminal, a file or a pipe, at most 100 columns wide, with the findings and what to do next last."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.containers import Lines
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from reports._format import clean
from reports.document import Cell, Command, Document, Section, Table

WIDTH = 100
"""Columns: no line is longer, except for commands, which are never broken."""
NARROWEST = 40
"""A window is never taken as narrower."""
NAME = 8
"""Columns that are left to a name, however many numbers stand beside it."""
_RULE = "    \n    \n {0}{0} \n    \n    \n    \n    \n    \n"
_TONES = {None: "bold", True: "bold green", False: "bold red"}
Line: TypeAlias = "RenderableType | Table"


@dataclass(frozen=True, slots=True)
class Look:
    """How text is shown: with `color`, in ASCII alone where not `blocks`.

    `width` is in columns, at least 40 and at most 100.
    """

    color: bool = False
    blocks: bool = True
    width: int = WIDTH


def render(document: Document, look: Look | None = None) -> str:
    """The document as text that ends with a newline; figures and sections of detail are left out."""
    look = look or Look()
    file = io.StringIO()
    console = Console(
        file=file, width=min(max(look.width, NARROWEST), WIDTH), force_terminal=look.color,
        color_system="standard" if look.color else None,
        no_color=not look.color, highlight=False, markup=False, emoji=False, legacy_windows=False, _environ={},
    )  # fmt: skip
    for number, block in enumerate(_blocks(document)):
        if number:
            console.print()
        for line in block:
            printed = _fitting(line, console, look) if isinstance(line, Table) else line
            console.print(printed, crop=False, soft_wrap=isinstance(line, str))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _fitting(block: Table, console: Console, look: Look) -> Grid:
    """The table with as many columns as the window holds."""
    endless = console.options.update(max_width=10 * WIDTH)  # else the wanted width is cut to the window
    columns = list(range(len(block.heads)))  # by number, as heads may be equal
    grid = table(block, look)
    for head in block.narrow:
        if console.measure(grid, options=endless).maximum <= console.width:
            break
        columns = [number for number in columns if block.heads[number] != head]
        left_aligned = sum(number < block.left for number in columns)
        heads = tuple(block.heads[number] for number in columns)
        rows = tuple(tuple(row[number] for number in columns) for row in block.rows)
        grid = table(replace(block, heads=heads, rows=rows, left=left_aligned), look)
    return grid


def _blocks(document: Document) -> Iterator[list[Line]]:
    """What stands between empty lines. A plain string is printed as it is, everything else is fitted to the width."""
    yield [Text(document.title, "bold"), *([Text(document.subtitle)] if document.subtitle else [])]
    if document.key_facts:
        yield [_named(document.key_facts)]
    for section in document.sections:
        if not section.detail:
            yield from _section(section)
    if document.warnings:
        yield [_named([("warning", f"{warning.message} {warning.remedy}".strip()) for warning in document.warnings])]
    if document.findings:
        lines: list[Line] = []
        for finding in document.findings:
            lines.append(Text(finding.text, _TONES[finding.good]))
            lines += [Padding(Text(note), (0, 0, 0, 2), expand=False) for note in finding.notes]
        yield lines
    if document.next is not None:
        yield [*_command(document.next, "next  ")]


def _section(section: Section) -> Iterator[list[Line]]:
    for block in section.blocks:
        if isinstance(block, str):
            yield [Text(block)]
        elif isinstance(block, Table):
            yield [*([Text(block.caption, "bold")] if block.caption else []), block]
        elif isinstance(block, Command):
            yield [*_command(block)]


def table(block: Table, look: Look) -> Grid:
    """The table without a box. Heads and remarks in brackets break between words, then names; a number never does."""
    rule = box.Box(_RULE.format("─" if look.blocks else "-"))
    grid = Grid(box=rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    cells = [[_Value(clean(cell.text if isinstance(cell, Cell) else cell, None)) for cell in row] for row in block.rows]
    for number, head in enumerate(block.heads):
        halves = [row[number].plain.partition(" (") for row in cells]
        column = [cell_len(part) for value, _, remark in halves for part in (value, *remark.split())]
        words = max(map(cell_len, head.split()), default=1)
        if block.left <= number < len(block.heads) - block.words:
            grid.add_column(Text(head), justify="right", min_width=max([words, *column]), overflow="fold")
        else:
            widest = max([words, *column])
            grid.add_column(Text(head), min_width=min(widest, max(words, NAME)), overflow="fold")
    for row, texts in zip(block.rows, cells, strict=True):
        good = next((cell.good for cell in row if isinstance(cell, Cell) and cell.good is not None), None)
        grid.add_row(*texts, style=None if good is None else _TONES[good])
    return grid


class _Value(Text):
    """A text whose words that are too long for their column end behind a comma, as specs and SLOs have them."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """Return its lines."""
        words = [_at_commas(word, width) if cell_len(word) > width else word for word in self.plain.split(" ")]
        return Text(" ".join(words), self.style).wrap(console, width, **how)


def _at_commas(word: str, width: int) -> str:
    lines = [""]
    for part in re.findall(r"[^,]+,?|,", word):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _named(facts: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Grid:
    """Names in a column of their own; a long text stays in its column."""
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(Text(name), _Value(text))
    return grid


def _command(command: Command, name: str = "") -> Iterator[RenderableType]:
    """What a command is for, and the command over several lines that a shell takes as one."""
    yield Text.assemble((name, "bold"), f"{command.text}:")
    lines = [""]
    for option in re.split(r" (?=--)", command.command):
        if lines[-1] and len(lines[-1]) + len(option) > WIDTH - 8:
            lines.append(option)
        else:
            lines[-1] = f"{lines[-1]} {option}".strip()
    yield "  " + " \\\n    ".join(lines)
