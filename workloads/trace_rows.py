"""Rows of a trace table taken, reordered, renumbered and joined; what points to a row (`parent`) moves with it.

A copy of a trace that is later by some time, what passes the end starting again at 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import Extra
from harness.data.records import EXTRA, listed
from harness.errors import UsageError
from workloads.readers._requests import with_items

if TYPE_CHECKING:
    import pyarrow as pa

    from workloads.traces import Trace

OFFLINE = "offline"
"""The tag of rows that are offline requests."""
SMALL_IDS = 1 << 40
"""Prefix ids below this leave room for a million copies with ids of their own; larger ones are numbered anew."""


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array | np.ndarray]) -> pa.Table:
    """The table with other values in some columns, in their types."""
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
        table = table.set_column(index, field, column)
    return table


def rows_of(trace: Trace, rows: np.ndarray) -> Trace:
    """Some rows, in order; what waits for one that is gone waits for the nearest turn before it that is still there."""
    table = trace.table
    if "parent" in table.column_names:
        none = table.num_rows
        stays = np.zeros(none + 1, bool)
        stays[rows] = stays[none] = True
        up = np.append(np.asarray(table["parent"].fill_null(none)), none)
        nearest = np.arange(none + 1)
        while len(gone := np.flatnonzero(~stays[nearest])):
            nearest[gone] = up[nearest[gone]]
        table = with_links(table, lambda numbers: np.where(nearest[numbers] < none, nearest[numbers], -1))
    return dataclasses.replace(trace, table=reordered(table, rows))


def with_links(table: pa.Table, change: Callable[[np.ndarray], np.ndarray]) -> pa.Table:
    """The table with other row numbers in `parent` and `joins`; -1 is none."""
    parents = mapped(table["parent"], change)
    rows = np.asarray(parents.fill_null(-1))
    columns: dict[str, pa.Array | np.ndarray] = {"parent": pa.array(rows, pa.int64(), mask=rows < 0)}
    if "joins" in table.column_names:
        lists = table["joins"].combine_chunks()
        numbers = change(np.asarray(lists.flatten()))
        of_row = np.repeat(np.arange(len(table)), np.asarray(lists.value_lengths()))[numbers >= 0]
        columns["joins"] = listed(np.bincount(of_row, minlength=len(table)), numbers[numbers >= 0], lists.type)
    return with_columns(table, columns)


def reordered(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """The rows in that order; what they wait for must be among them."""
    moved = table.take(pa.array(rows))
    if "parent" not in table.column_names:
        return moved
    place = np.zeros(table.num_rows, np.int64)
    place[rows] = np.arange(len(rows))
    return with_links(moved, lambda numbers: place[numbers])


def mapped(values: pa.ChunkedArray, change: Callable[[np.ndarray], np.ndarray]) -> pa.Array:
    """Whole numbers changed by a function of all of them; null stays null."""
    valid = np.asarray(values.is_valid())
    return pa.array(change(np.asarray(values.fill_null(0))), pa.int64(), mask=~valid)


def series(trace: Trace) -> dict[str, Any]:
    """What pictures of a trace are drawn from (some keys of `reports.answers.trace.page`)."""
    lengths = {name: np.asarray(trace.table[name]) for name in ("prompt_tokens", "output_tokens")}
    return {"name": "recorded", "times_s": trace.at_s, **lengths}


def brought(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The bounds and priorities of single requests, as the schedule has them; when a whole answer is due is `extra`."""
    names = ("slo_ttft_s", "slo_tpot_s", "slo_task_s", "priority")
    return {name: table[name] for name in names if name in table.column_names}


def extras(table: pa.Table, tag: pa.Array | pa.ChunkedArray | None) -> pa.Array | None:
    """(n,) the `extra` of the requests of a schedule: what is offline, the tokens of images, how many answers, its
    model, and when a whole answer is due; None for nothing."""
    extra: dict[str, np.ndarray | pa.Array] = {}
    if tag is not None and pc.any(offline := pc.equal(tag, OFFLINE)).as_py():
        extra["offline"] = np.asarray(offline.fill_null(False))
    if "image_tokens" in table.column_names:
        extra["image_tokens"] = np.asarray(table["image_tokens"].fill_null(0))
    if "n" in table.column_names:
        extra["n"] = np.maximum(np.asarray(table["n"].fill_null(1)), 1)
    if "model" in table.column_names:
        extra["model"] = table["model"].combine_chunks()
    if "slo_e2e_s" in table.column_names:
        due_s, columns = table["slo_e2e_s"].combine_chunks(), [*EXTRA.field("slo").type]
        values = [due_s if f.name == "e2e_s" else pa.nulls(len(due_s), f.type) for f in columns]
        extra["slo"] = pa.StructArray.from_arrays(values, fields=columns, mask=due_s.is_null())
    return extra_columns(len(table), extra) if extra else None


def extra_columns(rows: int, known: Mapping[str, np.ndarray | pa.Array]) -> pa.Array:
    """(rows,) an `extra` with these fields, null where all of them are null or as usual."""
    usual = asdict(Extra())
    arrays = [
        pa.array(known[f.name], f.type) if f.name in known else pa.repeat(pa.scalar(usual[f.name], f.type), rows)
        for f in EXTRA
    ]
    filled = [v.is_valid() if isinstance(v, pa.Array) else v != usual[name] for name, v in known.items()]
    nothing = ~np.any([np.asarray(mask) for mask in filled], axis=0)
    return pa.StructArray.from_arrays(arrays, fields=list(EXTRA), mask=pa.array(nothing))


def conversations(table: pa.Table) -> tuple[np.ndarray, int]:
    """(N,) number of the conversation of each row, and how many there are; a row without a session is one itself."""
    rows = table.num_rows
    if "session" not in table.column_names:
        return np.arange(rows), rows
    single = ~np.asarray(table["session"].is_valid())
    key = np.where(single, np.arange(rows) + above(table["session"]), np.asarray(table["session"].fill_null(0)))
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
    codes = ids.dictionary_encode().indices
    return with_columns(table, {"prefix_ids": with_items(table["prefix_ids"].combine_chunks(), codes)})


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables one below the other; parents count the rows of the whole."""
    if "parent" not in tables[0].column_names:
        return pa.concat_tables(tables)
    moved, over = [], 0
    for table in tables:
        moved.append(with_links(table, partial(np.add, over)))
        over += table.num_rows
    return pa.concat_tables(moved)


def turned_copy(table: pa.Table, copy: int, period_s: float, shift_s: float) -> pa.Table:
    """The rows `shift_s` later on a circle of `period_s`, as the `copy`-th other one (from 1), in their old order.

    No copy has the conversations or prefix ids of another; a conversation that passes the end becomes two.
    """
    later = np.asarray(table["at_s"]) + shift_s
    wrapped = later >= period_s
    columns: dict[str, np.ndarray | pa.Array] = {"at_s": np.where(wrapped, later - period_s, later)}
    if "session" in table.column_names:
        beyond = above(table["session"])
        # Two numbers a copy: a conversation that passes the end has its later turns before its earlier ones.
        number = 2 * copy + wrapped  # of each half of each copy
        columns["session"] = mapped(table["session"], lambda session: session + beyond * number)
    if "parent" in table.column_names:
        parent = np.asarray(table["parent"].fill_null(0))
        cut = ~np.asarray(table["parent"].is_valid()) | (wrapped[parent] != wrapped)
        columns["parent"] = pa.array(parent, pa.int64(), mask=cut)
    if "joins" in table.column_names:
        raise UsageError("superpose does not go with sub-agents: give more users, --arrivals closed:users=N.")
    if "prefix_ids" in table.column_names:
        ids = table["prefix_ids"].combine_chunks().flatten()
        columns["prefix_ids"] = with_items(table["prefix_ids"].combine_chunks(), np.asarray(ids) + copy * above(ids))
    return with_columns(table, columns)


def alike(one: np.ndarray, other: np.ndarray) -> int:
    """How many leading blocks two prompts have in common."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size
