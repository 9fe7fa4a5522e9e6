"""Files of a run that survive a kill: streams that grow, tables and texts that are replaced in one step."""

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.data import files
from harness.data.mapped import release
from harness.errors import UsageError

ROW_GROUP_BYTES = 16 << 20
"""Rows gather to this size before they become a Parquet row group; it bounds the memory of `ParquetFile`."""


class Stream:
    """An Arrow stream file that grows; the open file holds the lock that keeps a second writer out."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema
        self._file: IO[bytes] = path.open("ab", buffering=0)  # not "wb": another writer's rows survive this line
        try:
            _lock(self._file)
        except OSError:
            self._file.close()
            raise UsageError(f"'{path.parent}' is being written by another run; name another.") from None
        self._bytes = io.BytesIO()
        self._writer: Any = None
        self.rows = 0
        """Rows that are with the operating system."""

    def start(self) -> None:
        """Drop what the file held and write the schema."""
        self._file.truncate(0)
        self._writer = pa.ipc.new_stream(self._bytes, self.schema)
        self._append()

    def write(self, table: pa.Table) -> None:
        """Append rows; they are with the operating system when this returns, so a kill cannot take them.

        Raises OSError where it takes no more; then none of these rows is in the file.
        """
        self._writer.write_table(table)
        self._append()
        self.rows += table.num_rows

    def _append(self) -> None:
        """Bring a message to the file whole or not at all: behind a torn one nothing could be read."""
        handle, unwritten = self._file.fileno(), memoryview(self._bytes.getvalue())
        size = os.fstat(handle).st_size
        self._bytes.seek(0)
        self._bytes.truncate()
        try:
            while unwritten:
                unwritten = unwritten[os.write(handle, unwritten) :]
        except BaseException:
            os.ftruncate(handle, size)
            raise

    def convert(self, target: Path, corrected: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None) -> None:
        """Write all rows so far, each batch `corrected`, to a Parquet file."""
        rows = batches(self.path)
        write_parquet(target, self.schema, rows if corrected is None else map(corrected, rows))

    def close(self, *, remove: bool) -> None:
        """Close the file, and take it away where its rows stand elsewhere."""
        if self._file.closed:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        self._file.close()


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of a stream; a last one cut short by a kill is not whole."""
    with contextlib.suppress(pa.ArrowInvalid, OSError), pa.OSFile(str(path)) as source:
        yield from pa.ipc.open_stream(source)


def write_parquet(path: Path, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    """Write a Parquet file batch by batch, and put it in its place when it is whole."""
    file = ParquetFile(path, schema)
    for batch in rows:
        file.write(pa.Table.from_batches([batch], schema))
    file.close()


class ParquetFile:
    """A Parquet file that grows aside by row groups, and is put in its place when it is closed.

    A kill takes its rows, and a write that fails leaves none of them: what must not be lost goes through a `Stream`.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._writer: Any = None
        self._closed = False
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append rows. Raises OSError where the disk takes no more."""
        if self._size >= ROW_GROUP_BYTES:  # first, so that an interrupt meanwhile takes none of these rows
            self._write_group()
        self._waiting.append(table)
        self._size += table.nbytes
        self.rows += table.num_rows

    def close(self) -> None:
        """Put the file in its place, with all rows. Safe to call twice; raises OSError."""
        if self._closed:
            return
        if self._waiting or self._writer is None:
            self._write_group()
        with self._removed_on_error():
            self._writer.close()
            self._part.replace(self._path)
        self._closed = True
        release(self.rows)

    def _write_group(self) -> None:
        group = pa.concat_tables([self._schema.empty_table(), *self._waiting])
        with self._removed_on_error():
            if self._writer is None:
                words = [f.name for f in self._schema if pa.types.is_string(f.type)]  # stamps hardly repeat
                packed = {f.name: "DELTA_BINARY_PACKED" for f in self._schema if pa.types.is_integer(f.type)}
                self._writer = pq.ParquetWriter(
                    self._part, self._schema, compression="zstd", use_dictionary=words, column_encoding=packed
                )
            self._waiting, self._size = [], 0  # not earlier: an interrupt until now leaves them to `close`
            self._writer.write_table(group)

    @contextlib.contextmanager
    def _removed_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.rows, self._closed = 0, True
            self._part.unlink(missing_ok=True)  # what is left of it fills the disk
            error.filename = error.filename or str(self._path)
            raise


def write_json(path: Path, info: Mapping[str, Any]) -> None:
    """Write JSON that every reader takes (no NaN), and put it in its place when it is whole."""
    files.put(path, (json.dumps(info, indent=2, allow_nan=False) + "\n").encode())


@contextlib.contextmanager
def locked(folder: Path, kind: str) -> Iterator[None]:
    """A folder that is this process's own while the body runs; the lock ends with the process, however it ends.

    Raises UsageError where another process has it; `kind` is what that makes, such as 'sweep'.
    """
    if os.name != "posix":  # a folder cannot be opened there
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            _lock(handle)
        except OSError:
            raise UsageError(
                f"'{folder}' is being written by another {kind}; wait for it, or name another --out."
            ) from None
        yield
    finally:
        os.close(handle)


def _lock(file: IO[bytes] | int) -> None:
    """Lock an open file for this process; the lock ends with the process, however it ends."""
    try:
        import fcntl  # POSIX only
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
