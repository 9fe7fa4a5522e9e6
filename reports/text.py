"""The result for the terminal: percentiles with bounds, attainment, goodput, errors, fidelity, verdict, what next."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich import text as styled
from rich.console import Console
from rich.table import Table

from reports import _view
from reports._clean import clean

if TYPE_CHECKING:
    from harness.folder import Run
    from reports._rows import Row

WIDTH = 100
Line = tuple[str, str, str]
"""Name, text, and the style of the name."""

HEADS = ("", "unit", "mean", "p50", "p90", "p99", "bound", "within")


@dataclass(frozen=True, slots=True)
class Text:
    """At most 100 columns; with `color` for a terminal, without it plain text that a file or a pipe can take."""

    color: bool = False

    def render(self, run: Run) -> str:
        """The text, ending with a newline; the last lines are the verdict and what to do next."""
        file = io.StringIO()
        console = Console(
            file=file, width=WIDTH, color_system="standard" if self.color else None, force_terminal=self.color,
            no_color=not self.color, highlight=False, markup=False, emoji=False, legacy_windows=False, _environ={},
        )  # fmt: skip
        for block in _blocks(_view.view(run), run, color=self.color):
            console.print(block)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _blocks(view: _view.View, run: Run, *, color: bool) -> Iterator[styled.Text | Table | str]:
    yield styled.Text(view.title, "bold")
    yield styled.Text(view.traffic)
    yield ""
    yield _table(view, color=color)
    yield ""
    yield _named([*_lines(view), *_cautions(view)])
    yield ""
    yield _named(_end(view, run))


def _table(view: _view.View, *, color: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if color else None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for i, head in enumerate(HEADS):
        table.add_column(head, justify="left" if i < 2 else "right", no_wrap=True, overflow="ellipsis")
    for row in view.rows:
        table.add_row(*_cells(row), style="red" if row.missed and color else None)
    if view.bounded:
        table.add_row("all bounds", *[""] * 5, view.goal, view.met, style=_style(view.kept) if color else None)
    return table


def _cells(row: Row) -> tuple[styled.Text, ...]:
    return tuple(
        styled.Text(cell) for cell in (row.name, row.unit, row.mean, row.p50, row.p90, row.p99, row.bound, row.met)
    )


def _lines(view: _view.View) -> Iterator[Line]:
    heads = dict(view.heads)
    if "System" in heads:
        yield "system", heads["System"], ""
    yield "SLO", heads.get("SLO", "none given"), ""
    if "Rate" in heads:
        yield "rate", heads["Rate"], ""
    yield "flow", view.flow, ""
    yield "requests", ", ".join(f"{count} {status}" for status, count, _ in view.counts), ""
    for error in view.errors[:3]:
        yield "error", f"{error.count} x {error.status}: {error.text}", ""
    yield "sending", view.fidelity, ""


def _cautions(view: _view.View) -> Iterator[Line]:
    for warning in view.warnings:
        yield "warning", f"{warning.message} {warning.remedy}".strip(), ""


def _end(view: _view.View, run: Run) -> Iterator[Line]:
    report = run.path / "report.html"
    yield "report", clean(report if report.exists() else f"bench report {run.path}", None), ""
    yield view.word, f"{view.answer} {view.verdict}".strip(), _style(view.good)
    yield "next", view.next, ""


def _named(lines: Iterable[Line]) -> Table:
    """Names in a column of their own; long texts break at spaces and stay in theirs."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=8, no_wrap=True)
    table.add_column(overflow="fold")
    for name, text, style in lines:
        table.add_row(styled.Text(name, style or "bold"), styled.Text(text))
    return table


def _style(good: bool) -> str:
    return "bold green" if good else "bold red"
