"""Rows of a trace with named columns, converted a column at once, and cell by cell only where one is odd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.lists import Floats, Ints
from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._cells import SECOND_NS, BadRow, shown

Cells = Any  # a pyarrow array of text or numbers, or the list of what JSON gave
_T = TypeVar("_T")
LONGEST_WHOLE = 18  # digits that are surely no more than 64 bits
HEAD = 20  # first rows, which tell whether a column holds dates, and in which unit
EXACT = 1e15  # whole floats up to here are exact
MISSING: Any = type("Missing", (), {"__repr__": lambda _: "nothing"})()
"""What stands where a JSON object lacks a key."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file. `where(i)` is 'line 17' for row i; `first` holds the first cells of each column of the file.

    `places` gives the first byte of each row and how many it has, (n, 2), for what is written as JSON. `bad` takes the
    rows that cannot be used, for which anything may stand.
    """

    file: Path
    columns: tuple[str, ...]
    size: int
    cells: Callable[[str], Cells]
    identity: Callable[[], pa.Table]
    where: Callable[[int], str]
    first: Mapping[str, list[object]] = field(default_factory=dict)
    start: int = 0  # number of row 0 in the file
    places: Callable[[], Ints] | None = None
    bad: dict[int, BadRow] = field(default_factory=dict)
    most_tokens: int = _cells.LARGEST_TOKENS

    def behind(self, size_bytes: int) -> Block:
        """The same, where so many bytes of other files come first."""
        places = self.places
        return self if places is None else replace(self, places=lambda: places() + np.array([size_bytes, 0]))

    def fail(self, row: int, column: str | None, message: str) -> NoReturn:
        """Raise BadRow naming file, line and column."""
        raise self.refusal(row, column, message)

    def refusal(self, row: int, column: str | None, message: str) -> BadRow:
        """The error of a row that cannot be used."""
        place, column_text = self.where(row), f", column {shown(column)}" if column else ""
        return BadRow(f"Trace '{self.file}', {place}{column_text}: {message}.", column, f"{place}: {message}")

    def leave_out(self, row: int, column: str | None, message: str) -> None:
        """Note that a row cannot be used."""
        self.bad.setdefault(row, self.refusal(row, column, message))

    def has(self, column: str) -> bool:
        """Whether the file has the column (JSON: whether its first object has it)."""
        return column in self.columns

    def tokens(self, column: str) -> Ints:
        """Token counts of 0 or more."""
        cells = self.cells(column)
        fast = _whole(cells)
        most = self.most_tokens
        if fast is not None and (not fast.size or (fast.min() >= 0 and fast.max() <= most)):
            return fast

        plain = _cells.ungrouped(_listed(cells))

        def tokens(cell: object, refuse: _cells.Fail) -> int:
            count = _cells.tokens(plain.get(cell, cell) if isinstance(cell, str) else cell, refuse)
            if count > most:
                refuse(f"more than {most:,} tokens{_lines.more('max_tokens')}, got {shown(cell)}")
            return count

        return np.array(self.each(column, tokens, blank=0), np.int64)

    def numbers(self, column: str, expected: str = "a finite number") -> Ints | Floats:
        """Finite numbers of 0 or more; whole numbers where all of them are. `expected` is what a refusal asks for."""
        cells = self.cells(column)
        integers = _whole(cells)
        fast: Ints | Floats | None = _real(cells) if integers is None else integers
        if fast is not None and (not fast.size or fast.min() >= 0):
            return fast
        number = partial(_cells.number, expected=expected)
        return np.array(self.each(column, number, blank=0.0), np.float64)

    def stamps_ns(self, column: str) -> Ints:
        """Nanoseconds since 1970 of dates; all have a time zone or none has, as the first row of the file."""
        cells = self.cells(column)
        if isinstance(cells, pa.Array) and pa.types.is_timestamp(cells.type):
            return self._typed_ns(column, cells)
        dates = [cell for cell in self.first[column] if _cells.may_be_timestamp(cell)]
        zoned = bool(dates) and _cells.has_zone(dates[0])
        if isinstance(cells, pa.Array) and pa.types.is_string(cells.type):
            try:
                return _ints(pc.cast(cells, pa.timestamp("ns", "UTC" if zoned else None)))
            except pa.ArrowInvalid:
                pass  # some stamp is odd: look at each

        day_first = self._day_first(column, _listed(cells))

        def stamp(cell: object, refuse: _cells.Fail) -> int:
            at_ns, has_zone = _cells.stamp_ns(cell, refuse, day_first)
            if has_zone != zoned:
                refuse(f"{shown(cell)} and the first row differ in having a time zone")
            return at_ns

        return np.array(self.each(column, stamp, blank=0), np.int64)

    def _day_first(self, column: str, cells: list[object]) -> bool:
        """Whether dates such as 05/10/2024 begin with the day: what the first block tells is that of the file.

        Raises UsageError where nothing tells and there are several; of a single one the time of day alone counts.
        """
        dates, first = _cells.local_dates(cells), _cells.local_dates(self.first[column])
        day_first = _cells.day_first(first if self.start else dates)
        if day_first is None and (first != dates or len(dates) > 1):
            date = next(cell for cell in (*self.first[column], *cells) if _cells.local_dates([cell]))
            raise UsageError(
                f"Trace '{self.file}', column {shown(column)}: {shown(date)} begins with the day or with the month, "
                "and the rows do not tell which; write the year first (2024-05-10)."
            )
        return bool(day_first)

    def _typed_ns(self, column: str, cells: pa.Array) -> Ints:
        for row in np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False)).tolist():
            self.leave_out(row, column, "a stamp is missing")
        cells = cells.fill_null(pa.scalar(0, pa.int64()).cast(cells.type)) if cells.null_count else cells
        per_ns = {"s": SECOND_NS, "ms": 10**6, "us": 10**3, "ns": 1}[cells.type.unit]
        stamps = _ints(cells)
        largest = np.iinfo(np.int64).max // per_ns
        for row in np.flatnonzero((stamps > largest) | (stamps < -largest)).tolist():
            self.leave_out(row, column, "a stamp is outside of what 64-bit nanoseconds hold")
        return stamps * per_ns

    def names(self, column: str, *, optional: bool = False) -> pa.Array:
        """Text without the blanks around it, null where there is none; an `optional` one may lack in a JSON object."""
        cells = self.cells(column)
        if not isinstance(cells, pa.Array):
            return pa.array(self.each(column, _cells.name_of, optional=optional, blank=None), pa.string())
        if pa.types.is_integer(cells.type):
            return cells.cast(pa.string())
        if not pa.types.is_string(cells.type):
            return pa.array(self.each(column, _cells.name_of, blank=None), pa.string())
        text = pc.utf8_trim_whitespace(cells)
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)

    def id_lists(self, column: str) -> pa.ListArray:
        """Lists of ids from 0 to 2**63 - 1."""
        cells = self.cells(column)
        listed = isinstance(cells, pa.Array) and pa.types.is_list(cells.type) and not cells.null_count
        if listed and pa.types.is_integer(cells.type.value_type):
            ids = cells.cast(pa.list_(pa.int64()))
            if not ids.flatten().null_count and (pc.min(ids.flatten()).as_py() or 0) >= 0:
                return ids
        cells = _listed(cells)
        for row, cell in enumerate(cells):
            if not isinstance(cell, list):
                what = "missing" if cell is MISSING else f"a list of ids expected, got {shown(cell)}"
                self.leave_out(row, column, what)
                cells[row] = []
            elif not (set(map(type, cell)) <= {int} and (not cell or (min(cell) >= 0 and max(cell) < 1 << 63))):
                bad = next(v for v in cell if type(v) is not int or not 0 <= v < 1 << 63)
                self.leave_out(row, column, f"an id must be a whole number from 0 to 2**63 - 1, got {shown(bad)}")
                cells[row] = []
        return pa.array(cells, pa.list_(pa.int64()))

    def each(
        self, column: str, check: Callable[[object, _cells.Fail], _T], *, blank: _T, optional: bool = False
    ) -> list[_T]:  # fmt: skip
        """Cell by cell: right for every odd cell; `blank` stands for a bad one, and an `optional` one may lack."""
        cells = _listed(self.cells(column))

        def read(row: int) -> _T:
            refuse = partial(self.fail, row, column)
            if cells[row] is MISSING and not optional:
                refuse("missing")
            return check(None if cells[row] is MISSING else cells[row], refuse)

        return self.each_row(read, lambda _: blank)

    def each_row(self, read: Callable[[int], _T], blank: Callable[[int], _T]) -> list[_T]:
        """What is read of each row, by its number; `blank` makes what stands for one that raises BadRow."""
        values = []
        for row in range(self.size):
            try:
                values.append(read(row))
            except BadRow as error:
                self.bad.setdefault(row, error)
                values.append(blank(row))
        return values


def headed(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows, each block with the first cells of the file and the columns of its first block."""
    first: dict[str, list[object]] | None = None
    for block in blocks:
        if first is None:
            columns, first = block.columns, {column: _first_cells(block.cells(column)) for column in block.columns}
        yield replace(block, first=first, columns=columns)


def _first_cells(cells: Cells) -> list[object]:
    """The filled ones of the first rows, else of all; none where Arrow's type is neither text nor number."""
    kinds = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating)
    if isinstance(cells, pa.Array) and not any(is_one(cells.type) for is_one in kinds):
        return []
    return _cells.filled(_listed(cells[:HEAD])) or _cells.filled(_listed(cells))[:HEAD]


def _listed(cells: Cells) -> list[object]:
    return cells.to_pylist() if isinstance(cells, pa.Array) else list(cells)


def _whole(cells: Cells) -> Ints | None:
    """The cells as whole numbers, None where that takes a look at each."""
    if isinstance(cells, list):
        try:
            return np.array(cells, np.int64) if set(map(type, cells)) <= {int} else None
        except OverflowError:
            return None
    kind = cells.type
    if cells.null_count:
        return None
    if pa.types.is_string(kind):
        longest = pc.max(pc.binary_length(cells)).as_py() or 0
        plain = longest <= LONGEST_WHOLE and pc.all(pc.ascii_is_decimal(cells), min_count=0).as_py()
        return _ints(cells) if plain else _whole_of_real(_real(cells))
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return _ints(cells)
    return _whole_of_real(_real(cells))


def _whole_of_real(values: Floats | None) -> Ints | None:
    if values is None or not (np.abs(values) < EXACT).all() or not (values == np.floor(values)).all():
        return None
    return values.astype(np.int64)


def _real(cells: Cells) -> Floats | None:
    """The cells as finite numbers, None where that takes a look at each."""
    if isinstance(cells, list):
        if not set(map(type, cells)) <= {int, float}:
            return None
        try:
            values = np.array(cells, np.float64)
        except OverflowError:
            return None
    elif cells.null_count or not (pa.types.is_string(cells.type) or pa.types.is_floating(cells.type)):
        return None
    else:
        try:
            values = pc.cast(cells, pa.float64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return None
    return values if (np.abs(values) < _cells.LARGEST_NUMBER).all() else None


def _ints(array: pa.Array) -> Ints:
    numbers: Ints = pc.cast(array, pa.int64()).to_numpy(zero_copy_only=False)
    return numbers
