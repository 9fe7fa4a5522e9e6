"""Tables too large to be held: they grow in files without a name, and a column is in memory only while it is used.

The files are where the system has its temporary ones (TMPDIR).
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
import pyarrow as pa

SAME = 1 << 15
"""Rows of a chunk that stands for many in a column of one value."""

HELD = 2 * SAME
"""Rows up to which a table that grows is in memory."""

Read: TypeAlias = Callable[[], pa.ChunkedArray]


def release(rows: int) -> None:
    """Give free memory back where it held so many rows; of fewer it is used again, which is faster than new memory."""
    if rows > HELD:
        pa.default_memory_pool().release_unused()


@contextmanager
def _with_room() -> Iterator[None]:
    """Name the folder in the OSError of a system that takes no more temporary files; NumPy gives it no number."""
    try:
        yield
    except OSError as error:
        number = error.errno or errno.ENOSPC
        raise OSError(number, os.strerror(number), tempfile.gettempdir()) from None


class Mapped:
    """What is used like a `pa.Table`, and reads a column whenever it is used."""

    def __init__(self, schema: pa.Schema, read: Mapping[str, Read], start: int, rows: int) -> None:
        self.schema, self._read, self._start, self.num_rows = schema, read, start, rows
        self.column_names: list[str] = schema.names

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, key: str | slice) -> Any:
        if isinstance(key, str):
            release(self.num_rows)  # the column takes the place of what is free
            return self._read[key]().slice(self._start, self.num_rows)
        start, stop, _ = key.indices(self.num_rows)
        return Mapped(self.schema, self._read, self._start + start, max(0, stop - start))

    def __getattr__(self, name: str) -> Any:
        """What else a table has, of the whole table in memory."""
        return getattr(self.held(), name)

    def held(self) -> pa.Table:
        """The table with all its columns, in memory once they are used."""
        return pa.Table.from_arrays([self[name] for name in self.column_names], schema=self.schema)

    def filter(self, mask: Any) -> Any:
        """The rows in `mask`, in a new file where they are many."""
        if self.num_rows <= HELD:
            return self.held().filter(mask)
        grown = Growing(self.schema)
        for start in range(0, self.num_rows, HELD):
            grown.add(self[start : start + HELD].held().filter(mask[start : start + HELD]))
        return grown.table()


class Growing:
    """A table that grows: in memory, and in files once it has more than `HELD` rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._columns: dict[str, _Column] = {}
        self._table: pa.Table | Mapped | None = None

    def add(self, table: pa.Table) -> None:
        """Take the next rows."""
        self.rows += len(table)
        self._waiting.append(table)
        if sum(map(len, self._waiting)) > HELD:
            self._write()

    @_with_room()
    def table(self) -> pa.Table | Mapped:
        """All of them: no more are taken after this."""
        if self._table is None and not self._columns:
            self._table = self._taken()
        elif self._table is None:
            self._write()
            read = {name: self._columns.pop(name).finished() for name in self._schema.names}
            self._table = Mapped(self._schema, read, 0, self.rows)
            release(self.rows)
        return self._table

    def _taken(self) -> pa.Table:
        waiting, self._waiting = pa.concat_tables([self._schema.empty_table(), *self._waiting]), []
        return waiting.combine_chunks()

    @_with_room()
    def _write(self) -> None:
        table = self._taken()
        for field in self._schema:
            self._columns.setdefault(field.name, _Column(field.type)).add(table[field.name])


class _File:
    """A file without a name, which goes with this object."""

    def __init__(self) -> None:
        self.handle = tempfile.TemporaryFile()  # noqa: SIM115  it is open as long as this object is
        finalize(self, self.handle.close)

    def view(self) -> mmap.mmap:
        """Its bytes, whose pages leave memory when nothing refers to the view any more."""
        self.handle.flush()
        return mmap.mmap(self.handle.fileno(), 0, access=mmap.ACCESS_READ)


class _Column:
    """A column that grows in a file; one of a single value takes none."""

    def __init__(self, kind: pa.DataType) -> None:
        self._schema = pa.schema([pa.field("", kind)])
        self._rows = 0
        self._same: pa.Array | None = None
        self._file: _File | None = None
        self._writer: Any = None

    def add(self, column: pa.ChunkedArray) -> None:
        if self._same is None:
            self._same = pa.repeat(column[0], SAME)
        if self._file is None and not column.equals(_repeated(self._same, len(column))):
            self._file = _File()
            self._writer = pa.ipc.new_stream(self._file.handle, self._schema)
            self._writer.write_table(pa.table([_repeated(self._same, self._rows)], self._schema))
        if self._file is not None:
            self._writer.write_table(pa.table([column], self._schema))
        self._rows += len(column)

    def finished(self) -> Read:
        """What reads the column: in one chunk, but lists as they came, because they are read piece by piece."""
        if self._file is None:
            return partial(_repeated, self._same, self._rows)
        self._writer.close()
        if pa.types.is_list(self._schema.field(0).type):
            return partial(_read, self._file)
        whole = _File()
        with pa.ipc.new_stream(whole.handle, self._schema) as writer:
            writer.write_table(pa.table([_read(self._file)], self._schema).combine_chunks())
        return partial(_read, whole)


@_with_room()
def stored(values: np.ndarray) -> Callable[[], np.ndarray]:
    """What gives the values (n,) again, which many are in memory only while they are used; do not change them."""
    if len(values) <= HELD:
        return lambda: values
    file, kind = _File(), values.dtype
    values.tofile(file.handle)
    return lambda: np.frombuffer(file.view(), kind)


def _repeated(same: pa.Array, rows: int) -> pa.ChunkedArray:
    return pa.chunked_array([*[same] * (rows // len(same)), same[: rows % len(same)]], same.type)


def _read(file: _File) -> pa.ChunkedArray:
    return pa.ipc.open_stream(pa.py_buffer(file.view())).read_all()[0]
