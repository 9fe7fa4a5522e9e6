"""Rows of a trace with named columns, converted a column at once, and cell by cell only where one is odd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from workloads.readers import _cells

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Cells = Any  # a pyarrow array of text or numbers, or the list of what JSON gave
_T = TypeVar("_T")

LONGEST_WHOLE = 18  # digits that are surely no more than 64 bits
EXACT = 1e15  # whole floats up to here are exact


class _Missing:
    """What stands where a JSON object lacks a key."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file. `first` holds the cells of the file's first row, `where(i)` is 'line 17' for row i."""

    file: Path
    columns: tuple[str, ...]
    size: int
    cells: Callable[[str], Cells]
    identity: Callable[[], pa.Table]
    where: Callable[[int], str]
    first: Mapping[str, object]
    start: int = 0  # number of row 0 in the file

    def head(self, size: int) -> Block:
        """The first rows."""
        cells, identity = self.cells, self.identity
        return replace(self, size=size, cells=lambda c: cells(c)[:size], identity=lambda: identity().slice(0, size))

    def row(self, row: int) -> Block:
        """One row alone."""
        cells, where = self.cells, self.where
        return replace(self, size=1, cells=lambda c: cells(c)[row : row + 1], where=lambda _: where(row))

    def fail(self, row: int, column: str | None, message: str) -> NoReturn:
        """Raise UsageError naming file, line and column."""
        _cells.fail(self.file, self.where(row), column, message, row)

    def has(self, column: str) -> bool:
        """Whether the file has the column (JSON: whether its first object has it)."""
        return column in self.columns

    def tokens(self, column: str) -> Ints:
        """Token counts of 0 or more."""
        cells = self.cells(column)
        fast = _whole(cells)
        if fast is not None and (not fast.size or (fast.min() >= 0 and fast.max() < _cells.LARGEST_TOKENS)):
            return fast
        return np.array(self.each(column, _cells.tokens), np.int64)

    def numbers(self, column: str) -> Ints | Floats:
        """Finite numbers of 0 or more; whole numbers where all of them are."""
        cells = self.cells(column)
        whole = _whole(cells)
        fast: Ints | Floats | None = _real(cells) if whole is None else whole
        if fast is not None and (not fast.size or fast.min() >= 0):
            return fast
        return np.array(self.each(column, _cells.number), np.float64)

    def stamps_ns(self, column: str) -> Ints:
        """Nanoseconds since 1970 of dates; all have a time zone or none has, as the first row of the file."""
        cells = self.cells(column)
        if isinstance(cells, pa.Array) and pa.types.is_timestamp(cells.type):
            return self._typed_ns(column, cells)
        zoned = _cells.stamp_ns(self.first[column], lambda m: self.fail(0, column, m))[1]
        if isinstance(cells, pa.Array) and pa.types.is_string(cells.type):
            try:
                return _ints(pc.cast(cells, pa.timestamp("ns", "UTC" if zoned else None)))
            except pa.ArrowInvalid:
                pass  # some stamp is odd: look at each

        def stamp(cell: object, refuse: _cells.Fail) -> int:
            at_ns, has_zone = _cells.stamp_ns(cell, refuse)
            if has_zone != zoned:
                refuse(f"{_cells.shown(cell)} and the first row differ in having a time zone")
            return at_ns

        return np.array(self.each(column, stamp), np.int64)

    def _typed_ns(self, column: str, cells: pa.Array) -> Ints:
        if cells.null_count:
            self.fail(int(np.argmax(cells.is_null().to_numpy(zero_copy_only=False))), column, "a stamp is missing")
        try:
            return _ints(cells.cast(pa.timestamp("ns", cells.type.tz)))
        except pa.ArrowInvalid:
            self.fail(0, column, "a stamp is outside of what 64-bit nanoseconds hold")

    def names(self, column: str, *, optional: bool = False) -> pa.Array:
        """Text without the blanks around it, null where there is none; an `optional` one may lack in a JSON object."""
        cells = self.cells(column)
        if not isinstance(cells, pa.Array):
            there = replace(self, cells=lambda _: [None if c is MISSING else c for c in cells]) if optional else self
            return pa.array(there.each(column, _cells.name_of), pa.string())
        if pa.types.is_integer(cells.type):
            return cells.cast(pa.string())
        if not pa.types.is_string(cells.type):
            return pa.array(self.each(column, _cells.name_of), pa.string())
        text = pc.utf8_trim_whitespace(cells)
        return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)

    def id_lists(self, column: str) -> pa.ListArray:
        """Lists of ids from 0 to 2**63 - 1."""
        cells = self.cells(column)
        if isinstance(cells, pa.Array):
            if pa.types.is_list(cells.type) and pa.types.is_integer(cells.type.value_type) and not cells.null_count:
                ids = cells.cast(pa.list_(pa.int64()))
                if not ids.flatten().null_count and (pc.min(ids.flatten()).as_py() or 0) >= 0:
                    return ids
            cells = cells.to_pylist()
        for row, cell in enumerate(cells):
            if not isinstance(cell, list):
                self.fail(row, column, "missing" if cell is MISSING else f"a list of ids expected, got {_shown(cell)}")
            if not (set(map(type, cell)) <= {int} and (not cell or (min(cell) >= 0 and max(cell) < 1 << 63))):
                bad = next(v for v in cell if type(v) is not int or not 0 <= v < 1 << 63)
                self.fail(row, column, f"an id must be a whole number from 0 to 2**63 - 1, got {_shown(bad)}")
        return pa.array(cells, pa.list_(pa.int64()))

    def each(self, column: str, check: Callable[[object, _cells.Fail], _T]) -> list[_T]:
        """Cell by cell: right for every odd cell, and names the first bad one."""
        cells: Iterable[object] = self.cells(column)
        if isinstance(cells, pa.Array):
            cells = cells.to_pylist()
        row = 0

        def refuse(message: str) -> NoReturn:
            self.fail(row, column, message)

        found = []
        for row, cell in enumerate(cells):  # noqa: B007  # refuse() reads it
            if cell is MISSING:
                refuse("missing")
            found.append(check(cell, refuse))
        return found


_shown = _cells.shown


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
