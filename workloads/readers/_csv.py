"""Rows of a CSV file in blocks: read as a whole by Arrow, line by line where a block has something odd in it."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._collect import Block
from workloads.readers._lines import Lines

_BEFORE_CELL, _AFTER_CELL = [ord(c) for c in ",\n"], [ord(c) for c in ",\r\n"]
_RETURN = "a carriage return within the line"
_BYTES_A_ROW = 32  # about; of blocks of rows with quotes


def header(file: Path, line: int, text: str) -> tuple[str, ...]:
    """Column names from the first line."""
    _no_other_format(file, line, text)
    try:
        names = next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise _not_a_row(file, line, str(error)) from None
    columns = tuple(c.strip() for c in names)
    if len(columns) > untrusted.MOST_COLUMNS:
        what = f"{len(columns):,} columns, and at most {untrusted.MOST_COLUMNS:,} are read"
        raise UsageError(f"Trace '{file}', line {line}: {what}.")
    repeated = [c for c in columns if columns.count(c) > 1]
    if repeated:
        raise UsageError(f"Trace '{file}', line {line}: column {_cells.shown(repeated[0])} appears twice.")
    return columns


def _no_other_format(file: Path, line: int, text: str) -> None:
    """Raises UsageError where the first line shows a file that is no table with commas and a header."""
    if re.fullmatch(r"chunk-\d+-trace\.csv", file.name):
        raise UsageError(
            f"Trace '{file}' is a client of a ServeGen pool, which has rates and no requests; "
            f"draw from the pool with --arrivals servegen:{file.parent}."
        )
    for sign, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if text.count(sign) > 1 > text.count(",") - 1:  # two commas at least part time, prompt and output
            raise UsageError(
                f"Trace '{file}', line {line}: {name} stand between the columns; a CSV has commas here, so change them."
            )


def blocks(file: Path, columns: tuple[str, ...], runs: Iterator[Lines], size: int) -> Iterator[Block]:
    """The rows under the header; raises UsageError naming the line, after the rows before it."""
    rows = _Rows(file, columns)
    for run in runs:
        bare = _unquoted(run)
        if bare is None:  # from here on a line end may be part of a cell
            yield from rows.by_record(chain([run], runs), max(1, size // _BYTES_A_ROW))
            return
        table = _arrow(bare.data, len(columns))
        if table is None:
            yield from rows.by_line(bare)
        elif table.num_rows:
            yield rows.block(table.columns, table.num_rows, _line_finder(bare, table.num_rows))


def _unquoted(run: Lines) -> Lines | None:
    """The same cells without quotes; None where a quoted cell holds a comma, a line end or a quote, or is odd."""
    data = run.data
    if b'"' not in data:
        return run
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return None
    marks = np.flatnonzero((text == ord(",")) | (text == ord("\n")) | (text == ord("\r")))
    before = text[opening - 1][opening > 0]
    after = text[np.minimum(closing + 1, len(text) - 1)][closing + 1 < len(text)]
    whole = np.array_equal(np.searchsorted(marks, opening), np.searchsorted(marks, closing))
    if not whole or not np.isin(before, _BEFORE_CELL).all() or not np.isin(after, _AFTER_CELL).all():
        return None
    return Lines(run.first, data.replace(b'"', b""))


def _arrow(data: bytes, columns: int) -> pa.Table | None:
    """The cells as text, None where a line is odd: then each is looked at."""
    lone_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    odd = lone_return or columns < 2 or data.startswith(_lines.BOM) or not data.strip()
    if odd or not _lines.is_text(data):
        return None
    names = [str(i) for i in range(columns)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
            arrow_csv.ParseOptions(quote_char=False),
            arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    return table.combine_chunks()


def _line_finder(run: Lines, rows: int) -> Callable[[int], int]:
    def line(row: int) -> int:
        if rows == run.data.count(b"\n") + (not run.data.endswith(b"\n")):
            return run.first + row
        filled = (number for number, text in enumerate(run.data.split(b"\n"), run.first) if text.strip(b"\r"))
        return next(number for i, number in enumerate(filled) if i == row)

    return line


class _Rows:
    """Makes blocks of one file; holds its first row."""

    def __init__(self, file: Path, columns: tuple[str, ...]) -> None:
        self._file, self._columns = file, columns
        self._first: dict[str, object] = {}
        self._start = 0

    def block(self, cells: Sequence[pa.ChunkedArray | pa.Array], size: int, line: Callable[[int], int]) -> Block:
        """A block of columns of text."""
        arrays = [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in cells]
        named = dict(zip(self._columns, arrays, strict=True))
        self._first = self._first or {c: a[0].as_py() for c, a in named.items()}
        start, self._start = self._start, self._start + size
        return Block(
            self._file,
            self._columns,
            size,
            named.__getitem__,
            lambda: pa.table(dict(zip(map(str, range(len(arrays))), arrays, strict=True))),
            lambda row: f"line {line(row)}",
            self._first,
            start,
        )

    def by_line(self, run: Lines) -> Iterator[Block]:
        """Line by line, none of which has a quote."""
        found: list[list[str]] = []
        lines: list[int] = []
        failure = None
        for number, raw in enumerate(run.data.split(b"\n"), run.first):
            try:
                blank = not _lines.text_of(raw, self._file, number)
                text = raw.decode().rstrip("\r")
                if "\r" in text:
                    raise _not_a_row(self._file, number, _RETURN)
                if not blank:
                    found.append(self._checked(number, text.split(",")))
                    lines.append(number)
            except UsageError as error:
                failure = error
                break
        yield from self._listed(found, lines)
        if failure:
            raise failure

    def by_record(self, runs: Iterator[Lines], rows: int) -> Iterator[Block]:
        """Record by record: quoted cells may hold commas and line ends."""
        csv.field_size_limit(_lines.LONGEST_LINE_BYTES)
        start = next(runs)
        records = csv.reader(_texts(self._file, chain([start], runs)), strict=True)
        found: list[list[str]] = []
        lines: list[int] = []
        failure = None
        line = start.first
        while not failure:
            try:
                values = next(records)
                if len(values) > 1 or (values and values[0].strip()):
                    found.append(self._checked(line, values))
                    lines.append(line)
            except StopIteration:
                break
            except csv.Error as error:
                failure = _not_a_row(self._file, line, str(error))
            except UsageError as error:
                failure = error
            line = start.first + records.line_num
            if len(found) >= rows:
                yield from self._listed(found, lines)
                found, lines = [], []
        yield from self._listed(found, lines)
        if failure:
            raise failure

    def _checked(self, number: int, values: list[str]) -> list[str]:
        if len(values) != len(self._columns):
            what = f"{len(self._columns)} columns expected, got {len(values)}"
            _cells.fail(self._file, f"line {number}", None, what, 0)
        return values

    def _listed(self, found: list[list[str]], lines: list[int]) -> Iterator[Block]:
        if found:
            cells = [pa.array(column, pa.string()) for column in zip(*found, strict=True)]
            yield self.block(cells, len(found), lines.__getitem__)


def _not_a_row(file: Path, line: int, why: str) -> UsageError:
    return UsageError(f"Trace '{file}', line {line}: not a CSV row ({_RETURN if 'new-line' in why else why}).")


def _texts(file: Path, runs: Iterator[Lines]) -> Iterator[str]:
    for first, data, _ in runs:
        if _lines.is_text(data):
            yield from io.StringIO(data.decode(), newline="\n")
            continue
        for number, line in enumerate(data.split(b"\n"), first):
            _lines.text_of(line, file, number)
            yield line.decode() + "\n"
