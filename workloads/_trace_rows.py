"""Rows of a trace table taken, reordered, renumbered and joined; what points to a row (`parent`) moves with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from workloads.traces import Trace

SMALL_IDS = 1 << 40
"""Prefix ids below this leave room for a million copies with ids of their own; larger ones are numbered anew."""


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array | np.ndarray]) -> pa.Table:
    """The table with other values in some columns, in their types."""
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        made = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
        table = table.set_column(index, field, made)
    return table


def rows_of(trace: Trace, rows: np.ndarray) -> Trace:
    """Some rows, in order; a turn whose predecessor is gone follows the nearest one before that is still there."""
    table = trace.table
    if "parent" in table.column_names:
        kept = np.zeros(table.num_rows, bool)
        kept[rows] = True
        table = with_columns(table, {"parent": _nearest_kept(table["parent"], kept)})
    return dataclasses.replace(trace, table=reordered(table, rows))


def _nearest_kept(parents: pa.ChunkedArray, kept: np.ndarray) -> pa.Array:
    """Parents (row numbers), those that are not kept replaced by their own parents, as long as it takes."""
    none = len(kept)
    up = np.asarray(parents.fill_null(none))
    stays = np.append(kept, True)
    found = up.copy()
    while len(gone := np.flatnonzero(~stays[found])):
        found[gone] = up[found[gone]]
    return pa.array(found, pa.int64(), mask=found == none)


def reordered(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The rows in that order; a parent must be among them."""
    taken = table.take(pa.array(rows))
    if "parent" not in table.column_names:
        return taken
    place = np.zeros(table.num_rows, np.int64)
    place[rows] = np.arange(len(rows))
    return with_columns(taken, {"parent": mapped(taken["parent"], lambda parent: place[parent])})


def mapped(values: pa.ChunkedArray, change: Callable[[np.ndarray], np.ndarray]) -> pa.Array:
    """Whole numbers changed by a function of all of them; null stays null."""
    known = np.asarray(values.is_valid())
    return pa.array(change(np.asarray(values.fill_null(0))), pa.int64(), mask=~known)


def cut_links(parents: pa.ChunkedArray, apart: np.ndarray) -> pa.Array:
    """The parents (row numbers) without those from which `apart` (N,) parts a row."""
    parent = np.asarray(parents.fill_null(0))
    cut = ~np.asarray(parents.is_valid()) | (apart[parent] != apart)
    return pa.array(parent, pa.int64(), mask=cut)


def conversations(table: pa.Table) -> tuple[np.ndarray, int]:
    """(N,) number of the conversation of each row, and how many there are; a row without a session is one itself."""
    rows = table.num_rows
    if "session" not in table.column_names:
        return np.arange(rows), rows
    alone = ~np.asarray(table["session"].is_valid())
    key = np.where(alone, np.arange(rows) + above(table["session"]), np.asarray(table["session"].fill_null(0)))
    numbers, unit = np.unique(key, return_inverse=True)
    return unit, len(numbers)


def above(values: pa.Array | pa.ChunkedArray) -> int:
    """The number after the largest value; 0 where there is none."""
    most = pc.max(values).as_py()
    return 0 if most is None else int(most) + 1


def with_small_ids(table: pa.Table) -> pa.Table:
    """The table with prefix ids that leave room above them: hashes are numbered anew, equal ids stay equal."""
    if "prefix_ids" not in table.column_names:
        return table
    ids = table["prefix_ids"].combine_chunks().flatten()
    if above(ids) <= SMALL_IDS:
        return table
    codes = ids.dictionary_encode().indices.cast(pa.int64())
    return with_columns(table, {"prefix_ids": _relisted(table["prefix_ids"], np.asarray(codes))})


def with_strange_prefixes(table: pa.Table, shift: int) -> pa.Table:
    """The table with every prefix id `shift` higher."""
    if "prefix_ids" not in table.column_names:
        return table
    ids = np.asarray(table["prefix_ids"].combine_chunks().flatten()) + shift
    return with_columns(table, {"prefix_ids": _relisted(table["prefix_ids"], ids)})


def _relisted(lists: pa.ChunkedArray, items: np.ndarray) -> pa.Array:
    """Lists of the same lengths with other items."""
    whole = lists.combine_chunks()
    counts = np.asarray(whole.value_lengths().fill_null(0))
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(items), type=whole.type)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables one below the other; parents count the rows of the whole."""
    if "parent" not in tables[0].column_names:
        return pa.concat_tables(tables)
    moved, over = [], 0
    for table in tables:
        moved.append(with_columns(table, {"parent": mapped(table["parent"], partial(np.add, over))}))
        over += table.num_rows
    return pa.concat_tables(moved)
