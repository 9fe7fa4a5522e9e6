"""The result for the terminal: percentiles with bounds, attainment, goodput, errors, fidelity, verdict, what next."""

import io
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich import text as styled
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from harness.data.folder import Run
from reports import _scaled, _view
from reports._format import clean
from reports._rows import Row
from reports.document.curve import ROOM, drawn

WIDTH, NARROWEST = 100, 40
"""Columns: a line is never longer, except for what is to be copied; and a window is never taken as narrower."""


@dataclass(frozen=True, slots=True)
class Line:
    """A text with its name before it; `copied`, a path or a command, follows it and is never broken."""

    name: str
    text: str
    style: str = "bold"
    copied: str = ""


FLOOR = "client floor"
HEADS = ("", "unit", "mean", "p50", "p90", "p99", "bound", "within", FLOOR)
LEFT_OUT = ((), ("mean",), ("mean", "p90"), ("mean", "p90", "p50"), ("mean", "p90", "p50", FLOOR))
"""Columns that a narrow window does without, first choice first."""


@dataclass(frozen=True, slots=True)
class Text:
    """The summary; with `color` for a terminal, without it plain text that a file or a pipe can take.

    With `curve` attainment against the SLO scale is drawn too, with `ascii` in ASCII alone.
    Texts are broken at `width` columns: by default those of the terminal (or COLUMNS), at most 100. A path and a
    command that can be copied are never broken.
    """

    color: bool = False
    width: int | None = None
    curve: bool = False
    ascii: bool = False

    def render(self, run: Run) -> str:
        """The text, ending with a newline; the last lines are the verdict and what to do next."""
        file = io.StringIO()
        width = shutil.get_terminal_size((WIDTH, 24)).columns if self.width is None else self.width
        console = Console(
            file=file, width=min(max(width, NARROWEST), WIDTH), color_system="standard" if self.color else None,
            force_terminal=self.color, no_color=not self.color, highlight=False, markup=False, emoji=False,
            legacy_windows=False, _environ={},
        )  # fmt: skip
        for block in _blocks(_view.view(run), run, console, self):
            console.print(block, soft_wrap=not isinstance(block, Table))
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _blocks(view: _view.View, run: Run, console: Console, form: Text) -> Iterator[styled.Text | Table]:
    yield from styled.Text(view.title, "bold").wrap(console, console.width)
    yield from styled.Text(view.traffic).wrap(console, console.width)
    yield styled.Text()
    yield _fitting(view, console, form)
    yield styled.Text()
    if form.curve and console.width >= ROOM and (curve := _scaled.curve(run)) is not None:
        yield styled.Text(f"{drawn(curve, blocks=not form.ascii)}\n")
    cautions = [Line("warning", f"{warning.message} {warning.remedy}".strip()) for warning in view.warnings]
    yield from _named([*_lines(view), *cautions], console)
    yield styled.Text()
    yield from _named(list(_end(view, run)), console)


def _fitting(view: _view.View, console: Console, form: Text) -> Table:
    """The widest table that the window holds; a name or a verdict that is still too long is broken."""
    endless = console.options.update(max_width=10 * WIDTH)  # else the width that is asked for is cut to the window
    for left_out in LEFT_OUT:
        for gap in (2, 1):
            table = _table(view, left_out, gap, form)
            if console.measure(table, options=endless).maximum <= console.width:
                return table
    return _table(view, LEFT_OUT[-1], 1, form, broken=True)


def _table(view: _view.View, left_out: tuple[str, ...], gap: int, form: Text, *, broken: bool = False) -> Table:
    lines = box.SIMPLE_HEAD if form.color and not form.ascii else None
    table = Table(box=lines, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False)
    shown = [i for i, head in enumerate(HEADS) if head not in left_out and (view.floors or head != FLOOR)]
    for i in shown:
        whole = not (broken and HEADS[i] in ("", "within"))
        table.add_column(HEADS[i], justify="left" if i < 2 else "right", no_wrap=whole, overflow="fold")
    for row in view.rows:
        cells = _cells(row)
        table.add_row(*(styled.Text(cells[i]) for i in shown), style="red" if row.missed and form.color else None)
    if view.bounded:
        cells = ("all bounds", *[""] * 5, view.goal, view.met, "")
        table.add_row(*(cells[i] for i in shown), style=_style(view.kept) if form.color else None)
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (row.name, row.unit, row.mean, row.p50, row.p90, row.p99, row.bound, row.met, row.floor)


def _lines(view: _view.View) -> Iterator[Line]:
    heads = dict(view.heads)
    yield Line("system", heads["System"])
    yield Line("SLO", heads["SLO"])
    if "Rate" in heads:
        yield Line("rate", heads["Rate"])
    if "Warm-up" in heads:
        yield Line("warm-up", heads["Warm-up"])
    yield Line("flow", view.flow)
    if view.interval:
        yield Line("interval", view.interval)
    yield Line("requests", ", ".join(f"{count} {status}" for status, count, _ in view.counts))
    for error in view.errors:
        yield Line("error", f"{error.count} x {error.status}: {error.text}" if error.status else error.text)
    yield Line("sending", view.fidelity)
    if view.client_line:
        yield Line("client", view.client_line)
        yield Line("server", view.server_line)


def _end(view: _view.View, run: Run) -> Iterator[Line]:
    report = run.path / "report.html"
    yield Line("report", "", copied=clean(report if report.exists() else f"bench report {run.path}", None))
    told = f"{view.answer} {view.verdict}".strip()
    if view.qualified:
        yield Line(f"{view.word},", f"{view.qualified}: {told}")
    else:
        yield Line(view.word, told, "bold" if view.word == _view.VALID else _style(False))
    yield Line("next", f"{view.next.text}:", copied=view.next.command)


def _named(lines: Sequence[Line], console: Console) -> Iterator[styled.Text]:
    """Names in a column of their own; long texts break at spaces and stay in theirs."""
    column = max(8, *(cell_len(line.name) for line in lines)) + 2
    for line in lines:
        name = styled.Text.assemble((line.name, line.style), " " * (column - cell_len(line.name)))
        for i, rest in enumerate(_broken(line, console, console.width - column)):
            yield (name if i == 0 else styled.Text(" " * column)) + rest


def _broken(line: Line, console: Console, width: int) -> list[styled.Text]:
    """The text in lines of `width`; what is to be copied stands behind it, or below it where it would not fit."""
    copied = styled.Text(line.copied)
    whole = styled.Text(" ").join(part for part in (styled.Text(line.text), copied) if part)
    if line.copied and (whole.cell_len <= width or not line.text):
        return [whole]
    return [*styled.Text(line.text).wrap(console, width), *([copied] if line.copied else [])]


def _style(good: bool) -> str:
    return "bold green" if good else "bold red"
