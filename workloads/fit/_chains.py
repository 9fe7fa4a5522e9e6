"""Sessions of a trace as chains of prompts: how much of the prompt before each one begins with, too.

A trace without sessions, but with the names of blocks, has them by its prefix tree: a request follows the last one that
holds the deepest of its leading blocks that came before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from workloads.trace_rows import alike, conversations

if TYPE_CHECKING:
    from workloads.traces import Trace

COMMON_SHARE = 0.01
"""Leading blocks of at least this share of the prompts (10 or more) belong to no session: a system prompt, say."""
COMMON_LEAST = 10


@dataclass(frozen=True, slots=True)
class Chains:
    """Requests of whole sessions (N,), session after session, in order of time in each; sub-agents are left out.

    `rows` are those of `table`, `begins` where a session starts, `kept` the leading blocks that the prompt before
    begins with (0 at a start), `common` those that sessions share. `found` tells sessions that the prefix tree
    made from those that the trace names.
    """

    table: pa.Table
    block_tokens: int
    rows: np.ndarray
    begins: np.ndarray
    kept: np.ndarray
    common: np.ndarray
    prompts: list[np.ndarray]
    found: bool

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """(N,) numbers of a column; NaN where it is null."""
        values = self.table[name].take(pa.array(self.rows))
        return np.asarray(values if not values.null_count else values.cast(pa.float64()).fill_null(np.nan))

    @property
    def session(self) -> np.ndarray:
        """(N,) number of the session of each row, from 0."""
        return np.asarray(np.cumsum(self.begins) - 1)

    @property
    def turn(self) -> np.ndarray:
        """(N,) number of each row in its session, from 0."""
        starts = np.flatnonzero(self.begins)
        return np.asarray(np.arange(len(self)) - starts[self.session])

    @property
    def blocks(self) -> np.ndarray:
        """(N,) blocks that each prompt names."""
        return np.array([len(prompt) for prompt in self.prompts], np.int64)


def of(trace: Trace) -> Chains | None:
    """The sessions of a trace; None where no prompt names blocks."""
    table = trace.table
    if "prefix_ids" not in table.column_names:
        return None
    lists = table["prefix_ids"].combine_chunks()
    blocks = np.asarray(lists.flatten().dictionary_encode().indices)  # numbers from 0, in order of first use
    if not len(blocks):
        return None
    ids = np.split(blocks, np.cumsum(lists.value_lengths().fill_null(0))[:-1])
    rows = np.arange(len(table))
    if "agent" in table.column_names:
        rows = np.flatnonzero(~np.asarray(table["agent"].is_valid()))
    named = "session" in table.column_names and table["session"].null_count < len(table)
    if named:
        session = conversations(table)[0][rows]
        _, first, session = np.unique(session, return_index=True, return_inverse=True)
        common = _common([ids[row] for row in rows[first]])[session]
    else:
        own = [ids[row] for row in rows]
        common = _common(own)
        session = _linked(own, common)
    order = np.argsort(session, kind="stable")
    rows, session = rows[order], session[order]
    begins = np.append(True, session[1:] != session[:-1])
    prompts = [ids[row] for row in rows]
    kept = [0 if new else alike(prompts[i], prompts[i - 1]) for i, new in enumerate(begins)]
    return Chains(trace.table, trace.block_tokens, rows, begins, np.array(kept), common[order], prompts, not named)


def _common(prompts: list[np.ndarray]) -> np.ndarray:
    """(P,) leading blocks of each prompt that at least 1 % of all have."""
    often = np.bincount(np.concatenate(prompts)) >= max(COMMON_SHARE * len(prompts), COMMON_LEAST)
    return np.array([_leading(often[prompt]) for prompt in prompts], np.int64)


def _linked(prompts: list[np.ndarray], common: np.ndarray) -> np.ndarray:
    """(P,) number of the session of each prompt, by the last one that holds the deepest block that came before."""
    holder = np.full(1 + max(int(prompt.max(initial=-1)) for prompt in prompts), -1)  # session of each block
    session = np.empty(len(prompts), np.int64)
    made = 0
    for row, prompt in enumerate(prompts):
        size = _leading(holder[prompt] >= 0)
        if size > common[row]:
            session[row] = holder[prompt[size - 1]]
        else:
            session[row], made = made, made + 1
        holder[prompt] = session[row]
    return session


def _leading(values: np.ndarray) -> int:
    """How many values are true before the first that is not."""
    return len(values) if values.all() else int(np.argmin(values))
