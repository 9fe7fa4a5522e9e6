"""Rows of a Parquet file in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from harness.errors import UsageError
from workloads.readers import _cells, _lines
from workloads.readers._block import Block

MAGIC = b"PAR1"


def open_table(file: Path) -> parquet.ParquetFile:
    """The open file; raises UsageError where it is damaged."""
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # Arrow's errors are these
        raise UsageError(f"Trace '{file}' is no whole Parquet file: {_first(error)}.") from None


def columns(table: parquet.ParquetFile) -> tuple[str, ...]:
    """Names of the columns; raises UsageError where one is there twice."""
    return tuple(table.schema_arrow.names)


def metadata(table: parquet.ParquetFile) -> Mapping[str, str]:
    """The text that the writer left with the schema."""
    pairs = (table.schema_arrow.metadata or {}).items()
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, v in pairs if k != b"pandas"}


def blocks(file: Path, table: parquet.ParquetFile, rows: int) -> Iterator[Block]:
    """All rows; raises UsageError where the file is damaged."""
    names = columns(table)
    repeated = [c for c in names if names.count(c) > 1]
    if repeated:
        raise UsageError(f"Trace '{file}': column {_cells.shown(repeated[0])} is there twice.")
    start = 0
    first: dict[str, object] = {}
    batches = table.iter_batches(batch_size=rows, use_threads=False)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            arrays = {n: _plain(a) for n, a in zip(names, batch.columns, strict=True)}
            first = first or ({n: _cell(a) for n, a in arrays.items()} if batch.num_rows else {})
        except MemoryError:  # an ArrowException too, where Arrow has no memory
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UsageError(f"Trace '{file}' cannot be read after row {start}: {_first(error)}.") from None
        if batch.num_rows:
            yield _block(file, names, arrays, batch, first, start)
            start += batch.num_rows


def _block(
    file: Path,
    names: tuple[str, ...],
    arrays: Mapping[str, pa.Array],
    batch: pa.RecordBatch,
    first: Mapping[str, object],
    start: int,
) -> Block:
    return Block(
        file,
        names,
        batch.num_rows,
        arrays.__getitem__,
        lambda: pa.table({n: a for n, a in arrays.items() if _comparable(a.type)}),
        lambda row: f"row {start + row + 1}",
        first,
        start,
    )


def _cell(array: pa.Array) -> object:
    """The first cell, if it is text or a number."""
    return array[0].as_py() if _comparable(array.type) and not pa.types.is_timestamp(array.type) else None


def _plain(array: pa.Array) -> pa.Array:
    """Dictionaries unpacked, all text as one type."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = pc.cast(array, pa.string())
    return array


def _first(error: Exception) -> str:
    return (_lines.reason(error).splitlines() or ["no reason given"])[0].rstrip(".")[:200]


def _comparable(kind: pa.DataType) -> bool:
    """Whether rows can be told apart by such a column (lists of ids cannot)."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_timestamp)
    return any(is_one(kind) for is_one in kinds)
