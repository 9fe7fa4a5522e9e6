"""A drawn schedule as a trace: what would have been recorded had every answer come at once."""

import math

import numpy as np
import pyarrow as pa

from harness.schedule import links


def trace_table(schedule: pa.Table) -> pa.Table:
    """The columns of a trace from those of a schedule (`harness.records.SCHEDULE`).

    Columns that say nothing (no session, no tag, no prefix) are left out. A request that comes after several is told
    as coming after the last of them.
    """
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "at_s": schedule["scheduled_s"],
        "prompt_tokens": schedule["prompt_tokens"],
        "output_tokens": schedule["output_tokens"],
    }
    if schedule["prefix_ids"].combine_chunks().flatten():
        columns["prefix_ids"] = _in_blocks(schedule, block_tokens(schedule))
    if schedule["session"].null_count < len(schedule):
        columns |= {"session": schedule["session"], "turn": schedule["turn"], "parent": _parents(schedule)}
    if schedule["tag"].null_count < len(schedule):
        columns["tag"] = schedule["tag"]
    return pa.table(columns)


def block_tokens(schedule: pa.Table) -> int:
    """Size of the blocks that a trace of the schedule names: a file has one, classes may have several."""
    sizes = np.asarray(schedule["prefix_block_tokens"])
    named = sizes[_blocks(schedule) > 0]
    return math.gcd(*(named if len(named) else sizes[:1]).tolist())


def _blocks(schedule: pa.Table) -> np.ndarray:
    """How many blocks each request names."""
    lists = schedule["prefix_ids"].combine_chunks()
    return np.asarray(lists.value_lengths().fill_null(0))


def _in_blocks(schedule: pa.Table, tokens: int) -> pa.Array | pa.ChunkedArray:
    """The prefix ids, a larger block as several of `tokens` tokens: read at another size, it would share too little."""
    counts, parts = _blocks(schedule), np.asarray(schedule["prefix_block_tokens"]) // tokens
    if (parts[counts > 0] == 1).all():
        return schedule["prefix_ids"]
    ids = np.asarray(schedule["prefix_ids"].combine_chunks().flatten()).astype(np.uint64)
    each = np.repeat(parts, counts)  # how many small blocks come of each large one
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    names = _mixed(np.repeat(ids, each) + _mixed(number.astype(np.uint64) + np.uint64(1)))
    offsets = np.concatenate([[0], np.cumsum(counts * parts)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array((names >> np.uint64(1)).astype(np.int64)))


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: equal values stay equal, others get names that hardly ever meet."""
    found: np.ndarray = values
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        found = (found ^ (found >> np.uint64(shift))) * np.uint64(factor)
    found ^= found >> np.uint64(31)
    return found


def _parents(schedule: pa.Table) -> pa.Array:
    """Row number of the last request that each row comes after, null for none."""
    child, parent = links(schedule)
    last = np.full(len(schedule), len(schedule))
    order = np.lexsort((parent, child))
    last[child[order]] = parent[order]  # the last one written stays
    return pa.array(last, pa.int64(), mask=last == len(schedule))
