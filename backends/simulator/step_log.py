"""The log of steps that a driver keeps while it runs, and the `steps` table that it becomes.

A leap is one entry here and is spread into its steps later, many entries in one vectorised pass.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from backends.serving.batch import Batch
from backends.serving.cluster import Member
from backends.serving.decodes import Decodes
from backends.serving.speculation import Drafts
from harness.api import PartsOfSteps, StepLoads, StepParts
from harness.data.records import STEPS

SPREAD: Final = 1 << 14  # steps that are part of leaps at one time; older ones are rows of a table
ENTRY: Final = Struct("=8qd")  # its steps, columns of whole numbers, how many of `_pieces` it has; start
"""How an entry is kept: as bytes, because objects that live until the table is made would leave the caches."""
PACK: Final = ENTRY.pack

STARTS: Final = "starts"
"""Beside the columns of rows that are put in order: when the leap of each starts, which orders them."""


class StepLog:
    """Executed batches, in order.

    Leaps of several replicas are appended when they end, and are then put in order of their starts: as if each ended
    with the step during which a request arrives anywhere (`alone`: such a step is a leap of its own).
    """

    __slots__ = ("_arrived_s", "_end_s", "_entries", "_instances", "_lanes", "_members", "_pieces", "_rows",
                 "_taken", "alone")  # fmt: skip

    def __init__(self, members: Sequence[Member] = ()) -> None:
        """`members` know the parts of steps."""
        self._members = members
        self._rows: list[dict[str, np.ndarray]] = []  # columns of rows, by parts
        self._arrived_s: array[float] | None = None
        self.alone = False
        self._clear()

    def _clear(self) -> None:
        self._entries = bytearray()
        self._pieces: list[int] = []  # of prompts: their new tokens and those that are stored
        self._end_s: array[float] = array("d")  # of steps
        self._taken = array("q")  # blocks that steps took which are not the first of a leap
        self._lanes = array("q")  # of each entry, where replicas have lanes; none is a leap
        self._instances = array("q")  # of each entry, where groups of them run a step

    def append(self, batch: Batch, end_s: list[float], decoding: Decodes | Drafts) -> None:
        """A batch in flight will end at `end_s`; call it before `commit`."""
        count, loads = len(end_s), batch.loads
        if batch.lane is not None:
            self._lanes.append(batch.lane)
            if batch.instances is not None:
                self._instances.append(batch.instances)
        self._end_s.fromlist(end_s)
        if count > 1:
            assert isinstance(decoding, Decodes)  # drafts do not leap
            self._taken.fromlist(decoding.taken(count))
        for piece in loads:
            self._pieces.extend(piece)
        self._entries += PACK(
            count, batch.replica, batch.decode_seqs, batch.context_tokens, batch.waiting, batch.running,
            batch.free_blocks, len(loads), batch.start_s,
        )  # fmt: skip
        if len(self._end_s) >= SPREAD:
            self._spread()

    def put_in_order(self) -> Callable[[float], None]:
        """Rows are put in order from now on, by the arrivals that are given to what this returns."""
        self._arrived_s = array("d")
        return self._arrived_s.append

    def table(self, until_s: float = inf) -> pa.Table:
        """All that was logged as the `steps` table, one row per step; the log is empty afterwards.

        Where rows are put in order, those of leaps that start at `until_s` or later, as batches in flight did, stay.
        """
        self._spread()
        columns = {name: np.concatenate([rows[name] for rows in self._rows]) for name in self._rows[0]}
        self._rows = []
        if self._arrived_s is not None:
            order = np.lexsort((columns["replica"], columns[STARTS]))
            columns = {name: column[order] for name, column in columns.items()}
            past = int(np.searchsorted(columns[STARTS], until_s))
            self._rows = [{name: column[past:] for name, column in columns.items()}]
            columns = {name: column[:past] for name, column in columns.items()}
            del self._arrived_s[: bisect_right(self._arrived_s, until_s)]
        count = len(columns["replica"])
        arrays = [pa.array(columns[f.name], from_pandas=f.nullable) if f.name in columns else pa.nulls(count, f.type)
                  for f in STEPS]  # fmt: skip
        return pa.Table.from_arrays(arrays, schema=STEPS)

    def _spread(self) -> None:
        entries = np.frombuffer(self._entries, np.int64).reshape(-1, ENTRY.size // 8)
        whole = np.ascontiguousarray(entries[:, :-1].T)  # `np.repeat` is many times slower over strides
        count, replica, seqs, context, waiting, running, free, pieces = whole
        first = np.cumsum(count) - count  # (entries,) index of an entry's first step
        end_s = np.array(self._end_s)
        nth = np.arange(len(end_s)) - np.repeat(first, count)  # (steps,) place within its leap
        start_s = np.empty(len(end_s))
        start_s[1:] = end_s[:-1]
        start_s[first] = entries[:, -1].view(np.float64)
        new, stored = np.array(array("q", self._pieces)).reshape(-1, 2).T
        step, decodes = np.repeat(first, pieces), np.repeat(seqs, count)
        taken = np.zeros(len(end_s), np.int64)
        taken[nth > 0] = self._taken
        taken = np.cumsum(taken)
        columns = {
            "replica": np.repeat(replica, count),
            "start_s": start_s,
            "end_s": end_s,
            "prefill_tokens": np.bincount(step, new, len(end_s)),
            "decode_seqs": decodes,
            "context_tokens": np.repeat(context, count) + nth * decodes,
            "waiting": np.repeat(waiting, count),
            "running": np.repeat(running, count),
            "free_blocks": np.repeat(free + taken[first], count) - taken,
        }
        if self._lanes:
            columns["lane"] = np.array(self._lanes)
        if self._instances:
            columns["instances"] = np.array(self._instances)
        if self._members:
            loads = StepLoads(decodes, columns["context_tokens"], step, new, stored)
            columns |= _columns_of_parts(columns["replica"], loads, self._members)
        types = {field.name: field.type.to_pandas_dtype() for field in STEPS}
        columns = {name: column.astype(types[name], copy=False) for name, column in columns.items()}
        if self._arrived_s is not None:
            columns[STARTS] = self._starts(start_s, end_s, first, np.frombuffer(self._arrived_s))
        self._rows.append(columns)
        self._clear()

    def _starts(self, start_s: np.ndarray, end_s: np.ndarray, first: np.ndarray, arrived_s: np.ndarray) -> np.ndarray:
        """(steps,) start of the leap of each step, had it ended when requests arrived."""
        cut = np.searchsorted(arrived_s, end_s, "right") > np.searchsorted(arrived_s, start_s, "right")
        begins = cut & self.alone
        begins[first] = True
        begins[1:] |= cut[:-1]
        starts: np.ndarray = start_s[np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))]
        return starts


def _columns_of_parts(replica: np.ndarray, every: StepLoads, members: Sequence[Member]) -> dict[str, np.ndarray]:
    """(steps,) seconds of each part, NaN where the latency model of the replica does not know them.

    Computed when the table is made, not while the run goes on.
    """
    seconds = np.full((len(StepParts._fields), len(replica)), np.nan)
    models = [member.model for member in members]
    different = {id(model): model for model in models}
    for model in different.values():
        if not isinstance(model, PartsOfSteps):
            continue
        rows: slice | np.ndarray = slice(None)
        some = every
        if len(different) > 1:
            rows = np.flatnonzero(np.array([other is model for other in models])[replica])
            some = _only(every, rows)
        if len(some.decode_seqs) and (parts := model.step_parts(some)) is not None:
            seconds[:, rows] = parts
    return dict(zip(StepParts._fields, seconds, strict=True))


def _only(loads: StepLoads, steps: np.ndarray) -> StepLoads:
    place = np.full(len(loads.decode_seqs), -1)
    place[steps] = np.arange(len(steps))
    inside = place[loads.step] >= 0
    pieces = (column[inside] for column in (place[loads.step], loads.new_tokens, loads.stored_tokens))
    return StepLoads(loads.decode_seqs[steps], loads.context_tokens[steps], *pieces)
