"""Finds anomalies in the rows of a trace: grids, gaps, equal rows, an idle head."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from harness.data.lists import Floats, Ints
from workloads.readers._cells import counted

LONG_GAP_S = 3600.0
LARGE_PROMPT_TOKENS = 1_000_000
_COARSE_S = 0.01  # a grid at least this wide is reported
_STEPS = 1 << 16  # that the search for ticks reads, the first of the file
_SAMPLES = 1 << 12  # of the curve of rows over time
_HEAD = 0.05  # share of rows that is the head,
_IDLE = 5.0  # which is idle where it takes this many times its share of the time
_MOST_AT_ONE_STAMP = 1_000_000  # equal rows are looked for among no more


class Anomalies:
    """Statistics of bounded size, whatever the number of rows; they do not depend on where blocks end."""

    def __init__(self) -> None:
        self.rows = 0
        self.distinct = 0
        self.duplicates = 0
        self._notes: Counter[str] = Counter()
        self._grid_ns = 0
        self._steps = np.empty(0)
        self._samples: list[float] = []
        self._every = 1
        self._first_s = self._last_s = math.nan
        self._long_gaps = 0
        self._longest_gap_s = 0.0
        self._large_prompts = 0
        self._largest_prompt = 0
        self._last_rows: pa.Table | None = None
        self._all_compared = True

    def take(self, at_s: Floats, offset_ns: Ints | None, prompts: Ints, identity: Callable[[], pa.Table]) -> None:
        """Some more rows: seconds from the first row of the file, the same as exact nanoseconds, prompt tokens."""
        if not len(at_s):
            return
        self._equal_rows(at_s, identity)
        self._curve(at_s)
        steps = np.diff(at_s, prepend=at_s[0] if math.isnan(self._last_s) else self._last_s)
        self.distinct += int((steps > 0).sum()) + math.isnan(self._last_s)
        self._long_gaps += int((steps > LONG_GAP_S).sum())
        self._longest_gap_s = max(self._longest_gap_s, float(steps.max()))
        if len(self._steps) < _STEPS:
            self._steps = np.concatenate((self._steps, steps[steps > 0][: _STEPS - len(self._steps)]))
        self._grid(at_s, offset_ns)
        self._large_prompts += int((prompts > LARGE_PROMPT_TOKENS).sum())
        self._largest_prompt = max(self._largest_prompt, int(prompts.max()))
        self._first_s = float(at_s[0]) if math.isnan(self._first_s) else self._first_s
        self._last_s = float(at_s[-1])
        self.rows += len(at_s)

    def note(self, text: str, rows: int) -> None:
        """Rows with a note of the reader."""
        if rows:
            self._notes[text] += rows

    def _equal_rows(self, at_s: Floats, identity: Callable[[], pa.Table]) -> None:
        if not self._all_compared:
            return
        # Equal rows share a stamp, so others are not held; those at the last stamp may go on in the next block.
        same = at_s[1:] == at_s[:-1]
        compared = np.concatenate((same, [True])) | np.concatenate(([False], same))
        compared |= at_s == self._last_s
        rows = identity().filter(pa.array(compared))
        if self._last_rows is not None and at_s[0] == self._last_s:
            rows = pa.concat_tables([self._last_rows, rows])
        last = pa.array(np.concatenate((np.full(len(rows) - compared.sum(), at_s[0]), at_s[compared])) == at_s[-1])
        if compared.sum() > 1 or len(rows) > 1:
            self.duplicates += len(rows) - len(_distinct(rows))
        self._last_rows = _distinct(rows.filter(last))
        if len(self._last_rows) > _MOST_AT_ONE_STAMP:
            self._all_compared, self._last_rows = False, None

    def _curve(self, at_s: Floats) -> None:
        ahead = -self.rows % self._every
        self._samples.extend(at_s[ahead :: self._every].tolist())
        while len(self._samples) > _SAMPLES:
            self._samples = self._samples[::2]
            self._every *= 2

    def _grid(self, at_s: Floats, offset_ns: Ints | None) -> None:
        if self._grid_ns == 1:
            return
        if offset_ns is None:
            micros = at_s * 1e6
            rounded = np.round(micros)
            if at_s[-1] > 1e9 or (np.abs(micros - rounded) > 0.02).any():  # finer than a microsecond
                self._grid_ns = 1
                return
            offset_ns = rounded.astype(np.int64) * 1000
        self._grid_ns = math.gcd(self._grid_ns, int(np.gcd.reduce(offset_ns)))

    @property
    def resolution_s(self) -> float | None:
        """The widest grid that every stamp sits on; None where all are equal."""
        return self._grid_ns / 1e9 if self._grid_ns else None

    @property
    def tick_s(self) -> float | None:
        """The usual step of stamps that come at nearly regular ticks, several requests at each; None without ticks."""
        steps, resolution_s = self._steps, self.resolution_s
        if len(steps) < 20 or not resolution_s or self.rows < 1.5 * self.distinct:
            return None
        low = np.quantile(steps, 0.01, method="lower")  # one of them, so that the next line finds some
        tick = float(np.median(steps[(steps >= low) & (steps <= 1.5 * low)]))
        off = np.abs(steps - np.maximum(np.round(steps / tick), 1) * tick)
        return tick if tick > 20 * resolution_s and (off <= 0.05 * tick).mean() >= 0.98 else None

    @property
    def grain_s(self) -> float | None:
        """How coarse the stamps are: the tick, else the grid; None where all are equal."""
        return self.tick_s or self.resolution_s

    def sentences(self) -> list[str]:
        """What is odd, one sentence each."""
        notes = [f"{text}: {counted(rows)}." for text, rows in sorted(self._notes.items())]
        notes += self._of_stamps()
        if self.duplicates:
            least = "" if self._all_compared else "at least "
            notes.append(f"equal to another row in every column, and kept: {least}{counted(self.duplicates)}.")
        if self._long_gaps:
            gaps = counted(self._long_gaps, "gap")
            notes.append(f"{gaps} of more than an hour, the longest of {self._longest_gap_s:,.0f} s.")
        if self._large_prompts:
            prompts = counted(self._large_prompts, "prompt")
            notes.append(f"{prompts} of more than 1,000,000 tokens, the largest of {self._largest_prompt:,}.")
        return notes

    def _of_stamps(self) -> list[str]:
        shared = self.rows - self.distinct
        per_stamp = f"{self.rows / self.distinct:.1f} rows at each" if self.distinct else ""
        if not self.resolution_s:
            return [f"all {counted(self.rows)} have the same stamp."] if self.rows > 1 else []
        notes = []
        if tick_s := self.tick_s:
            notes.append(f"stamps come at ticks about {tick_s:g} s apart, {per_stamp}; replayed as they are.")
        elif self.resolution_s >= _COARSE_S:
            note = f"stamps are multiples of {self.resolution_s:g} s"
            notes.append(f"{note}; {counted(shared)} at the stamp of the row before.")
        head = self._samples[: int(_HEAD * len(self._samples)) + 1]
        span_s = self._last_s - self._first_s
        if len(self._samples) >= 100 and head[-1] - self._first_s > _IDLE * _HEAD * span_s:
            share = (head[-1] - self._first_s) / span_s
            notes.append(f"the first {_HEAD:.0%} of rows take {share:.0%} of the time: the head is nearly idle.")
        return notes


def _distinct(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names, use_threads=False).aggregate([])
