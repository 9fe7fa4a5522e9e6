"""Rows of a CSV file in blocks: read as a whole by Arrow, line by line where a block has something odd in it."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._collect import HEAD, Block
from workloads.readers._lines import Lines

_BEFORE_CELL, _AFTER_CELL = [ord(c) for c in ",\n"], [ord(c) for c in ",\r\n"]
_RETURN = "a carriage return within the line"
_BYTES_A_ROW = 32  # about; of blocks of rows with quotes


SEPARATORS = (";", "\t", "|")
_DECIMAL_COMMA = re.compile(rb"(?<![^;\t|\n\"])-?\d+,\d+(?![^;\t|\r\n\"])")
_GROUPED = re.compile(rb"(?<![^;\t|\n\"])\d{1,3}(?:\.\d{3})+(?![^;\t|\r\n,\"])")


def separator(text: str) -> str:
    """What stands between the columns, by the first line; two at least part time, prompt and output."""
    return next((sign for sign in SEPARATORS if text.count(sign) > 1 > text.count(",") - 1), ",")


def names_columns(names: str, row: str, sign: str) -> bool:
    """Whether a comment names the columns of a row of values."""
    if re.match(r"\[?\s*\{", row):  # JSON; Apache's dates begin with [
        return False
    rows = csv.reader([names, row], delimiter=sign, skipinitialspace=True)
    try:
        columns, cells = ([cell.strip() for cell in line] for line in rows)
    except (csv.Error, ValueError):  # a quote that goes on in the next line
        return False
    is_header = len(set(columns)) == len(columns) == len(cells) > 2 and not any(map(_cells.is_number, columns))
    return is_header and any(cell[:1].isdigit() for cell in cells[1:])


def with_commas(runs: Iterator[Lines], sign: str) -> Iterator[Lines]:
    """The rows of a table with another separator as they are with commas; 0,5 is 0.5 in it, and so may 1.000 be 1000.

    Every place in the file stays where it is. Rows with quotes keep their separator: see `_Rows.by_record`.
    """
    if sign == ",":
        yield from runs
        return
    grouped: bool | None = None
    for first, data, at_byte in runs:
        if grouped is None:  # as Excel writes numbers where the decimal sign is a comma
            grouped = _DECIMAL_COMMA.search(data) is not None
        if grouped:
            data = _GROUPED.sub(lambda number: number[0].replace(b".", b""), data)
        if b'"' not in data:
            data = data.replace(b",", b".").replace(sign.encode(), b",")
        yield Lines(first, data, at_byte)


def header(file: Path, line: int, text: str, sign: str) -> tuple[str, ...]:
    """Column names from the first line."""
    _no_other_format(file)
    try:
        names = next(csv.reader([text], strict=True, skipinitialspace=True, delimiter=sign))
    except csv.Error as error:
        raise _not_a_row(file, line, str(error)) from None
    columns = tuple(c.strip() for c in names)
    if len(columns) > untrusted.MOST_COLUMNS:
        what = f"{len(columns):,} columns, and at most {untrusted.MOST_COLUMNS:,} are read"
        raise UsageError(f"Trace '{file}', line {line}: {what}.")
    repeated = [c for c in columns if c and columns.count(c) > 1]
    if repeated:
        raise UsageError(f"Trace '{file}', line {line}: column {_cells.shown(repeated[0])} appears twice.")
    return columns


def _no_other_format(file: Path) -> None:
    """Raises UsageError where the name shows a file that has no header."""
    if re.fullmatch(r"chunk-\d+-trace\.csv", file.name):
        raise UsageError(
            f"Trace '{file}' is a client of a ServeGen pool, which has rates and no requests; "
            f"draw from the pool with --arrivals servegen:{file.parent}."
        )


def blocks(file: Path, columns: tuple[str, ...], runs: Iterator[Lines], size: int, sign: str = ",") -> Iterator[Block]:
    """The rows under the header, which `sign` parts into columns."""
    rows = _Rows(file, columns, sign)
    runs = with_commas(runs, sign)
    for run in runs:
        bare = _unquoted(run) if sign == "," or b'"' not in run.data else None
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
    intact = np.array_equal(np.searchsorted(marks, opening), np.searchsorted(marks, closing))
    if not intact or not np.isin(before, _BEFORE_CELL).all() or not np.isin(after, _AFTER_CELL).all():
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

    def __init__(self, file: Path, columns: tuple[str, ...], sign: str) -> None:
        self._file, self._columns, self._sign = file, columns, sign
        self._first: dict[str, list[object]] = {}
        self._start = 0

    def block(
        self, cells: Sequence[pa.ChunkedArray | pa.Array], size: int, line: Callable[[int], int],
        bad: dict[int, _cells.BadRow] | None = None,
    ) -> Block:  # fmt: skip
        """A block of columns of text."""
        arrays = [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in cells]
        by_name = dict(zip(self._columns, arrays, strict=True))
        self._first = self._first or {
            c: _cells.first_filled((cell.as_py() for cell in a), HEAD) for c, a in by_name.items()
        }
        start, self._start = self._start, self._start + size
        return Block(
            self._file,
            self._columns,
            size,
            by_name.__getitem__,
            lambda: pa.table(dict(zip(map(str, range(len(arrays))), arrays, strict=True))),
            lambda row: f"line {line(row)}",
            self._first,
            start,
            bad=bad,
        )

    def by_line(self, run: Lines) -> Iterator[Block]:
        """Line by line, none of which has a quote."""
        records = (
            (number, self._cells_of_line(number, raw)) for number, raw in enumerate(run.data.split(b"\n"), run.first)
        )
        yield from self._listed(records)

    def _cells_of_line(self, number: int, raw: bytes) -> list[str] | UsageError | None:
        """The cells, None for a blank line, or why it is no row."""
        try:
            if not _lines.text_of(raw, self._file, number):
                return None
        except UsageError as error:
            return error
        text = raw.decode().rstrip("\r")
        return _not_a_row(self._file, number, _RETURN) if "\r" in text else text.split(",")

    def by_record(self, runs: Iterator[Lines], rows: int) -> Iterator[Block]:
        """Record by record: quoted cells may hold commas and line ends."""
        csv.field_size_limit(_lines.LONGEST_LINE_BYTES)
        start = next(runs)
        records = csv.reader(_texts(self._file, chain([start], runs)), strict=True, delimiter=self._sign)

        def read() -> Iterator[tuple[int, list[str] | UsageError | None]]:
            line = start.first
            while True:
                try:
                    values = next(records)
                    if self._sign != ",":
                        values = [cell.replace(",", ".") for cell in values]
                    yield line, values if len(values) > 1 or (values and values[0].strip()) else None
                except StopIteration:
                    return
                except csv.Error as error:
                    yield line, _not_a_row(self._file, line, str(error))
                line = start.first + records.line_num

        numbered = read()
        while batch := list(islice(numbered, rows)):
            yield from self._listed(batch)

    def _listed(self, records: Iterable[tuple[int, list[str] | UsageError | None]]) -> Iterator[Block]:
        """Records as a block; one that is no row stands there blank."""
        rows: list[list[str]] = []
        lines: list[int] = []
        bad: dict[int, _cells.BadRow] = {}
        for line, values in records:
            if values is None:
                continue
            if isinstance(values, list) and len(values) != len(self._columns):
                what = f"{len(self._columns)} columns expected, got {len(values)}"
                values = UsageError(f"Trace '{self._file}', line {line}: {what}.")
            if isinstance(values, UsageError):
                bad[len(rows)] = _lines.no_row(values, len(rows))
                values = [""] * len(self._columns)
            rows.append(values)
            lines.append(line)
        if rows:
            cells = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
            yield self.block(cells, len(rows), lines.__getitem__, bad)


def _not_a_row(file: Path, line: int, why: str) -> UsageError:
    return UsageError(f"Trace '{file}', line {line}: not a CSV row ({_RETURN if 'new-line' in why else why}).")


def _texts(file: Path, runs: Iterator[Lines]) -> Iterator[str]:
    for first, data, _ in runs:
        if _lines.is_text(data):
            yield from io.StringIO(data.decode(), newline="\n")
            continue
        for number, line in enumerate(data.split(b"\n"), first):
            _lines.text_of(line, file, number)  # a quoted cell may go on behind such a line, so nothing can be left out
            yield line.decode() + "\n"
