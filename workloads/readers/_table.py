"""A trace file as rows with named columns, and the checks of single cells."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, NoReturn, Protocol

from harness.errors import UsageError
from workloads.readers._lines import numbered

Form = Literal["csv", "json"]
Extra = Literal["prefix_ids", "sessions", "tags"]
LARGEST_TOKENS = 1 << 31
_LONGEST_SHOWN = 40
_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


class Row(NamedTuple):
    """One row of a trace; `at_s` counts from the first row of the file.

    `dropped` tells why the row is no request, e.g. because it records a failure; None if it is one.
    """

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    session: str | None = None
    tag: str | None = None
    dropped: str | None = None


class Reader(Protocol):
    """Reads one format of trace by column name; `extras` are what it knows beyond stamps and lengths."""

    form: ClassVar[Form]
    needs: ClassVar[tuple[str, ...]]
    stamp: ClassVar[str]
    extras: ClassVar[tuple[Extra, ...]]
    facts: ClassVar[Mapping[str, str]]

    def rows(self, table: Table) -> Iterator[Row]:
        """Every row in file order; raises UsageError naming line and column for a bad one."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """A file with its columns; `cells` yields (line, cell by column name)."""

    file: Path
    form: Form
    columns: tuple[str, ...]

    def fail(self, line: int, column: str | None, message: str) -> NoReturn:
        """Raise UsageError naming file, line and column."""
        where = f", column '{column}'" if column else ""
        raise UsageError(f"Trace '{self.file}', line {line}{where}: {message}.")

    def require(self, needs: tuple[str, ...], reader: str, form: Form) -> None:
        """Raise UsageError unless every column that the reader needs is there."""
        if form != self.form:
            self.fail(1, None, f"reader '{reader}' needs {_FORM[form]}, this looks like {_FORM[self.form]}")
        missing = [n for n in needs if n not in self.columns]
        if missing:
            what = f"missing column '{missing[0]}'; found: {shown_columns(self.columns)}"
            self.fail(1, None, f"{what}; reader '{reader}' needs {', '.join(needs)}")

    def cells(self) -> Iterator[tuple[int, dict[str, str]]]:
        """The CSV rows under the header."""
        lines = numbered(self.file)
        next(lines)  # the header
        count, columns = len(self.columns), self.columns
        for line, text in lines:
            values = self._split(line, text)
            if len(values) != count:
                self.fail(line, None, f"{count} columns expected, got {len(values)}")
            yield line, dict(zip(columns, values, strict=True))

    def objects(self) -> Iterator[tuple[int, dict[str, object]]]:
        """The JSON lines."""
        for line, text in numbered(self.file):
            yield line, parse_object(self.file, line, text)

    def _split(self, line: int, text: str) -> list[str]:
        if '"' not in text:
            return text.split(",")
        try:
            return next(csv.reader([text], strict=True))
        except csv.Error as error:
            self.fail(line, None, f"not a CSV row ({error})")

    def tokens(self, line: int, column: str, cell: object) -> int:
        """A token count of 0 or more from text or JSON."""
        if type(cell) is int:
            value: float = cell
        elif isinstance(cell, str) and cell.isdigit() and cell.isascii() and len(cell) < 16:
            value = int(cell)
        else:
            value = self.number(line, column, cell)
        if value != int(value):
            self.fail(line, column, f"a token count must be a whole number, got {shown(cell)}")
        if not 0 <= value < LARGEST_TOKENS:
            self.fail(line, column, f"a token count must be between 0 and {LARGEST_TOKENS - 1}, got {shown(cell)}")
        return int(value)

    def number(self, line: int, column: str, cell: object) -> float:
        """A finite number of 0 or more from text or JSON."""
        if isinstance(cell, str):
            if not cell.strip():
                self.fail(line, column, "a number is missing")
            value = float(cell) if _DECIMAL.fullmatch(cell.strip()) else math.nan
        elif isinstance(cell, int | float) and not isinstance(cell, bool):
            value = float(cell) if abs(cell) < 1e300 else math.inf
        else:
            value = math.nan
        if not math.isfinite(value):
            self.fail(line, column, f"a finite number expected, got {shown(cell)}")
        if value < 0:
            self.fail(line, column, f"must not be negative, got {shown(cell)}")
        return value


_FORM = {"csv": "CSV with a header line", "json": "JSON lines"}


def open_table(file: Path) -> Table:
    """The table of a file, CSV or JSON lines as its first line tells; raises UsageError for an empty one."""
    first = next(numbered(file), None)
    if first is None:
        raise UsageError(f"Trace '{file}' holds only blank lines; a trace is CSV or JSON lines, plain or gzip.")
    line, text = first
    if text.startswith("{"):
        return Table(file, "json", tuple(parse_object(file, line, text)))
    columns = tuple(c.strip().strip('"') for c in text.split(","))
    repeated = [c for c in columns if columns.count(c) > 1]
    if repeated:
        raise UsageError(f"Trace '{file}', line {line}: column {shown(repeated[0])} is there twice.")
    return Table(file, "csv", columns)


def parse_object(file: Path, line: int, text: str) -> dict[str, object]:
    """The JSON object of one line; raises UsageError naming the line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"Trace '{file}', line {line}: not complete JSON ({error.msg} at character {error.pos + 1})."
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(f"Trace '{file}', line {line}: not JSON of a trace.") from None
    if not isinstance(value, dict):
        raise UsageError(f"Trace '{file}', line {line}: a JSON object expected, got {shown(value)}.")
    return value


def shown(cell: object) -> str:
    """A cell as it may be printed in one line: quoted, escaped, cut."""
    try:
        text = repr(cell)
    except ValueError:  # an int of more digits than Python prints
        return "a very large number"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def shown_columns(columns: tuple[str, ...]) -> str:
    """Column names as they may be printed in one line."""
    names = ", ".join(shown(c)[1:-1] for c in columns[:12])
    return f"{names}, ..." if len(columns) > 12 else names
