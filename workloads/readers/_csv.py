"""Rows of a CSV file in blocks: read as a whole by Arrow, line by line where a block has something odd in it."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from harness import untrusted
from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._block import Block
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


def _ungrouped(runs: Iterator[Lines], sign: str) -> Iterator[Lines]:
    """The same, where 1.000 is 1000 as Excel writes it beside 0,5: in a table with another separator than commas."""
    if sign == ",":
        yield from runs
        return
    grouped: bool | None = None
    for run in runs:
        if grouped is None:
            grouped = _DECIMAL_COMMA.search(run.data) is not None
        yield run._replace(data=_GROUPED.sub(lambda number: number[0].replace(b".", b""), run.data)) if grouped else run


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
            f"draw from the pool with --workload servegen:{file.parent}."
        )


def blocks(file: Path, columns: tuple[str, ...], runs: Iterator[Lines], size: int, sign: str = ",") -> Iterator[Block]:
    """The rows under the header, which `sign` parts into columns."""
    start = 0
    runs = _ungrouped(runs, sign)
    for run in runs:
        bare = _bare(run, sign)
        table = None if bare is None else _arrow(bare.data, len(columns))
        if bare is not None and table is not None:
            if table.num_rows:
                cells = [column.chunk(0) for column in table.columns]
                yield _block(file, columns, cells, _line_finder(bare, table.num_rows), start, {})
            start += table.num_rows
            continue
        # From an odd quote on, each line end of the file may be part of a cell.
        records = _records(file, chain([run], runs), sign) if bare is None else _records(file, iter([bare]), ",")
        for block in _listed(file, columns, records, size, start):
            yield block
            start += block.size


def _bare(run: Lines, sign: str) -> Lines | None:
    """The same cells with commas between them and without quotes; None where that takes a look at each record.

    0,5 is 0.5 in a table with another separator. Every place in the file stays where it is but for quotes.
    """
    if sign == ",":
        return _unquoted(run)
    return None if b'"' in run.data else run._replace(data=run.data.replace(b",", b".").replace(sign.encode(), b","))


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
    # Equal places among the separators: none stands between an opening quote and its closing one.
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
    @cache
    def lines() -> Sequence[int]:  # once: all rows may be odd
        if rows == run.data.count(b"\n") + (not run.data.endswith(b"\n")):
            return range(run.first, run.first + rows)
        return [number for number, text in enumerate(run.data.split(b"\n"), run.first) if text.strip(b"\r")]

    return lambda row: lines()[row]


def _block(
    file: Path, columns: tuple[str, ...], cells: Sequence[pa.Array], line: Callable[[int], int], start: int,
    bad: dict[int, _cells.BadRow],
) -> Block:  # fmt: skip
    """A block of columns of text."""
    return Block(
        file,
        columns,
        len(cells[0]),
        dict(zip(columns, cells, strict=True)).__getitem__,
        lambda: pa.table(dict(zip(map(str, range(len(cells))), cells, strict=True))),
        lambda row: f"line {line(row)}",
        start=start,
        bad=bad,
    )


def _records(file: Path, runs: Iterator[Lines], sign: str) -> Iterator[tuple[int, list[str] | UsageError]]:
    """Each record that is not blank with its first line, or why it is no row.

    A cell in quotes may hold separators and line ends.
    """
    csv.field_size_limit(_lines.LONGEST_LINE_BYTES)
    first = next(runs)
    line, no_text = first.first, list[UsageError]()
    records = csv.reader(_texts(file, chain([first], runs), no_text), strict=True, delimiter=sign)
    while True:
        try:
            values = next(records, None)
            if values is None:
                return
            if no_text:
                yield line, no_text[0]
            elif len(values) > 1 or (values and values[0].strip()):
                yield line, values if sign == "," else [cell.replace(",", ".") for cell in values]
        except csv.Error as error:
            yield line, no_text[0] if no_text else _not_a_row(file, line, str(error))
        no_text.clear()
        line = first.first + records.line_num


def _texts(file: Path, runs: Iterator[Lines], no_text: list[UsageError]) -> Iterator[str]:
    """The lines; those that are no text are noted, and stand there with signs in place of what cannot be read."""
    for first, data, _ in runs:
        if _lines.is_text(data):
            yield from io.StringIO(data.decode(), newline="\n")
            continue
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), first):
            try:
                _lines.text_of(line, file, number)
            except UsageError as error:
                no_text.append(error)
            yield line.decode(errors="replace") + "\n"


def _listed(
    file: Path, columns: tuple[str, ...], records: Iterator[tuple[int, list[str] | UsageError]], size: int, start: int
) -> Iterator[Block]:
    """Records as blocks of about `size` bytes; one that is no row stands there blank."""
    while batch := list(islice(records, max(1, size // _BYTES_A_ROW))):
        bad: dict[int, _cells.BadRow] = {}
        rows: list[list[str]] = []
        for row, (line, values) in enumerate(batch):
            if isinstance(values, list) and len(values) != len(columns):
                what = f"{len(columns)} columns expected, got {len(values)}"
                values = UsageError(f"Trace '{file}', line {line}: {what}.")
            if isinstance(values, UsageError):
                bad[row] = _lines.no_row(values)
            rows.append(values if isinstance(values, list) else [""] * len(columns))
        cells = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
        yield _block(file, columns, cells, [line for line, _ in batch].__getitem__, start, bad)
        start += len(batch)


def _not_a_row(file: Path, line: int, why: str) -> UsageError:
    return UsageError(f"Trace '{file}', line {line}: not a CSV row ({_RETURN if 'new-line' in why else why}).")
