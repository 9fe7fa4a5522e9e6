"""A copy of a trace that is later by some time, what passes the end starting again at 0."""

import numpy as np
import pyarrow as pa

from workloads._trace_rows import above, cut_links, mapped, with_columns, with_strange_prefixes


def turned_copy(table: pa.Table, copy: int, period_s: float, shift_s: float) -> pa.Table:
    """The rows `shift_s` later on a circle of `period_s`, as the `copy`-th other one (from 1), in their old order.

    No copy has the conversations or prefix ids of another; a conversation that passes the end becomes two.
    """
    later = np.asarray(table["at_s"]) + shift_s
    wrapped = later >= period_s
    columns: dict[str, np.ndarray | pa.Array] = {"at_s": np.where(wrapped, later - period_s, later)}
    if "session" in table.column_names:
        beyond = above(table["session"])
        number = 2 * copy + wrapped  # of each half of each copy
        columns["session"] = mapped(table["session"], lambda session: session + beyond * number)
    if "parent" in table.column_names:
        columns["parent"] = cut_links(table["parent"], wrapped)
    table = with_columns(table, columns)
    if "prefix_ids" not in table.column_names:
        return table
    return with_strange_prefixes(table, copy * above(table["prefix_ids"].combine_chunks().flatten()))
