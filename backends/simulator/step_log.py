"""The log of steps that a driver keeps while it runs, and the `steps` table that it becomes.

A leap is one entry here and is spread into its steps later, many entries in one vectorised pass.
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import inf, lcm
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from backends.serving.batch import Batch
from backends.serving.cluster import Member
from backends.serving.decodes import Decodes
from backends.serving.speculation import Drafts
from harness.api import PartsOfSteps, StepLoads, StepParts
from harness.data.records import STEPS, nulls

SPREAD: Final = 4096  # entries that are leaps at one time; older ones are rows of a table
ENTRY: Final = Struct("=9qd")  # its steps, the columns of whole numbers, its pieces of prompts, its start
"""How an entry is kept: as bytes, because objects that live until the table is made would leave the caches."""

STARTS: Final = "starts"
"""Beside the columns of rows that are put in order: when the leap of each starts, which orders them."""


class StepLog:
    """Executed batches, in order.

    Leaps of several replicas are appended when they end, and are then put in order of their starts: as if each ended
    with the step during which a request arrives anywhere (`alone`: such a step is a leap of its own).
    """

    __slots__ = ("_arrived_s", "_count", "_end_s", "_entries", "_lanes", "_leaps", "_members", "_phases", "_pieces",
                 "_rows", "_size", "_timed", "alone")  # fmt: skip

    def __init__(self, block_tokens: Iterable[int], members: Sequence[Member] = ()) -> None:
        """`block_tokens` are the sizes of the blocks of all replicas, which may differ; `members` know the parts."""
        self._members = members
        self._size = lcm(*block_tokens)
        self._rows: list[dict[str, np.ndarray]] = []  # columns of rows, by parts
        self._arrived_s: array[float] | None = None
        self.alone = False
        self._entries = bytearray(SPREAD * ENTRY.size)
        self._clear()

    def _clear(self) -> None:
        self._count = 0  # entries
        self._pieces = array("q")  # of prompts: their new tokens and those that are stored
        self._end_s = array("d")
        self._timed = False  # whether a policy timed a step, whose parts no model knows then
        self._lanes = array("q")  # of each entry, where replicas have lanes; none is a leap
        self._leaps = array("q")  # entry and tick of each leap of several steps
        self._phases = array("q")  # per leap: members that need a block, by tick mod block size

    def append(self, batch: Batch, end_s: list[float], decoding: Decodes | Drafts) -> None:
        """A batch in flight will end at `end_s`; call it before `commit`."""
        count = len(end_s)
        if count == 1:
            self._end_s.append(end_s[0])
            if batch.lane is not None:
                self._lanes.append(batch.lane)
            if batch.takes_s is not None:
                self._timed = True
        else:
            self._end_s.extend(end_s)
            if (phases := decoding.phases) is not None:
                self._leaps.extend((self._count, decoding.tick))
                self._phases.extend(phases if len(phases) == self._size else phases * (self._size // len(phases)))
        loads = batch.loads
        for piece in loads:
            self._pieces.extend(piece)
        ENTRY.pack_into(
            self._entries, self._count * ENTRY.size,
            count, batch.replica, batch.prefill_tokens if loads else 0, batch.decode_seqs, batch.context_tokens,
            batch.waiting, batch.running, batch.free_blocks, len(loads), batch.start_s,
        )  # fmt: skip
        self._count += 1
        if self._count >= SPREAD:
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
        arrays = [pa.array(columns[f.name], from_pandas=f.nullable) if f.name in columns else nulls(count, f.type)
                  for f in STEPS]  # fmt: skip
        return pa.Table.from_arrays(arrays, schema=STEPS)

    def _spread(self) -> None:
        entries = np.frombuffer(self._entries, np.int64).reshape(SPREAD, -1)[: self._count]
        numbers = entries[:, :-1].T
        count, decodes = numbers[0], np.repeat(numbers[3], numbers[0])
        ends = np.cumsum(count)
        first = ends - count  # (entries,) index of an entry's first step
        row = np.repeat(np.arange(len(count)), count)  # (steps,) entry of a step
        nth = np.arange(len(row)) - first[row]  # (steps,) place within its leap
        end_s = np.frombuffer(self._end_s)
        start_s = np.empty(len(row))
        start_s[1:] = end_s[:-1]
        start_s[first] = entries[:, -1].view(np.float64)
        columns = {
            "replica": np.repeat(numbers[1], count),
            "start_s": start_s,
            "end_s": end_s,
            "prefill_tokens": np.repeat(numbers[2], count),
            "decode_seqs": decodes,
            "context_tokens": np.repeat(numbers[4], count) + nth * decodes,
            "waiting": np.repeat(numbers[5], count),
            "running": np.repeat(numbers[6], count),
            "free_blocks": np.repeat(numbers[7], count) - self._taken(row, nth, first),
        }
        if self._lanes:  # lanes slow one another down, so that no model of steps knows the parts
            columns["lane"] = np.array(self._lanes)
        elif self._members and not self._timed:
            step, pieces = np.repeat(first, numbers[8]), np.array(self._pieces).reshape(-1, 2).T
            loads = StepLoads(decodes, columns["context_tokens"], step, *pieces)
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

    def _taken(self, row: np.ndarray, nth: np.ndarray, first: np.ndarray) -> np.ndarray:
        """(steps,) blocks taken since the first step of the same leap."""
        blocks = np.zeros(len(row), np.int64)
        if self._leaps:
            phases = np.frombuffer(self._phases, np.int64).reshape(-1, self._size)
            entry, tick = np.frombuffer(self._leaps, np.int64).reshape(-1, 2).T
            leap = np.full(len(first), -1)  # (entries,) index of the leap, -1 for a single step
            leap[entry] = np.arange(len(entry))
            inside = np.flatnonzero((nth > 0) & (leap[row] >= 0))
            which = leap[row[inside]]
            blocks[inside] = phases[which, (tick[which] + nth[inside]) % self._size]
        total: np.ndarray = np.cumsum(blocks)
        since: np.ndarray = total - total[first[row]]  # nothing is taken at a leap's own first step
        return since


def _columns_of_parts(replica: np.ndarray, every: StepLoads, members: Sequence[Member]) -> dict[str, np.ndarray]:
    """(steps,) seconds of each part, NaN where the latency model of the replica does not know them.

    Computed when the table is made, not while the run goes on.
    """
    seconds = np.full((len(StepParts._fields), len(replica)), np.nan)
    models = [member.model for member in members]
    for model in {id(other): other for other in models}.values():
        if not isinstance(model, PartsOfSteps):
            continue
        if all(other is model for other in models):
            rows, some = np.arange(len(every.decode_seqs)), every
        else:
            rows = np.flatnonzero(np.array([other is model for other in models])[replica])
            some = _only(every, rows)
        if len(rows) and (parts := model.step_parts(some)) is not None:
            seconds[:, rows] = parts
    return dict(zip(StepParts._fields, seconds, strict=True))


def _only(loads: StepLoads, steps: np.ndarray) -> StepLoads:
    place = np.full(len(loads.decode_seqs), -1)
    place[steps] = np.arange(len(steps))
    inside = place[loads.step] >= 0
    return StepLoads(
        loads.decode_seqs[steps],
        loads.context_tokens[steps],
        place[loads.step][inside],
        loads.new_tokens[inside],
        loads.stored_tokens[inside],
    )
