"""The log of steps that a driver keeps while it runs, and the `steps` table that it becomes.

A leap is one row here and is spread into its steps only when the table is asked for, in one vectorised pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.records import STEPS

if TYPE_CHECKING:
    import pyarrow as pa

    from backends.serving.replica import Replica

FIELDS = 9  # whole numbers per row, in the order of `append`


class StepLog:
    """Rows of batches that were carried out, in order."""

    __slots__ = ("_end_s", "_phases", "_rows", "_size", "_start_s")

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._start_s = array("d")
        self._end_s = array("d")
        self._rows = array("q")  # (rows, FIELDS)
        self._phases: list[bytes] = []  # per leap of several steps: members that need a block, by tick mod size

    def __len__(self) -> int:
        return len(self._start_s)

    def append(self, replica: Replica, end_s: Sequence[float]) -> None:
        """The replica's batch in flight will end at `end_s`; call it before `commit`."""
        batch = replica.in_flight
        assert batch is not None
        leap = -1
        if len(end_s) > 1 and (phases := replica.decoding.phases) is not None:
            leap = len(self._phases)
            self._phases.append(phases.tobytes())
        self._start_s.append(batch.start_s)
        self._end_s.extend(end_s)
        self._rows.extend(
            (
                replica.index,
                len(end_s),
                batch.prefill_tokens if batch.prefills else 0,
                batch.decode_seqs,
                batch.context_tokens,
                batch.waiting,
                batch.running,
                batch.free_blocks,
                leap if leap < 0 else leap * self._size + replica.decoding.tick % self._size,
            )
        )

    def table(self) -> pa.Table:
        """All rows as the `steps` table, one row per step; the log is empty afterwards."""
        import pyarrow as pa

        rows = np.frombuffer(self._rows, np.int64).reshape(-1, FIELDS)
        replica, count, prefill, decode, context, waiting, running, free, leap = rows.T
        first = np.cumsum(count) - count  # (rows,) index of a row's first step
        row = np.repeat(np.arange(len(count)), count)  # (steps,)
        nth = np.arange(len(row)) - first[row]  # (steps,) place within its leap
        end_s = np.frombuffer(self._end_s, np.float64)
        start_s = np.empty(len(row))
        start_s[1:] = end_s[:-1]
        start_s[first] = np.frombuffer(self._start_s, np.float64)
        columns = {
            "replica": replica[row],
            "start_s": start_s,
            "end_s": end_s.copy(),
            "prefill_tokens": prefill[row],
            "decode_seqs": decode[row],
            "context_tokens": context[row] + nth * decode[row],
            "waiting": waiting[row],
            "running": running[row],
            "free_blocks": free[row] - self._taken(leap, row, nth, first),
        }
        table = pa.table([pa.array(columns[f.name]).cast(f.type) for f in STEPS], schema=STEPS)
        self.__init__(self._size)  # type: ignore[misc]  # starts again, empty
        return table

    def _taken(self, leap: np.ndarray, row: np.ndarray, nth: np.ndarray, first: np.ndarray) -> np.ndarray:
        """(steps,) blocks taken since the first step of the same leap."""
        if not self._phases:
            return np.zeros(len(row), np.int64)
        phases = np.frombuffer(b"".join(self._phases), np.int64)
        base, tick = np.divmod(leap[row], self._size)
        inside = (leap[row] >= 0) & (nth > 0)
        taken = np.where(inside, phases[base * self._size + (tick + nth) % self._size], 0)
        total: np.ndarray = np.cumsum(taken)
        since: np.ndarray = total - total[first[row]]  # nothing is taken at a leap's own first step
        return since
