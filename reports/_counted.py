"""What is too much to hold of a large run, counted in one pass: all gaps between token events, and all steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.data.folder import Aggregate, Run
from harness.data.lists import BLOCK, Lists, gap_lists, lists, number, row_max
from harness.data.mapped import Growing
from harness.metrics.measure import succeeded

TIMES = 240
"""Stretches of time, at most, in which gaps are counted."""

_SHIFT = 47
"""Of the 52 bits of a double's fraction the upper five tell its bin: a bin is 1/32 to 1/64 of its value wide."""
_SMALLEST_S, _LARGEST_S = 2.0**-17, 2.0**14
_FIRST, _LAST = (int(np.float64(v).view(np.int64)) >> _SHIFT for v in (_SMALLEST_S, _LARGEST_S))

_ROWS = 4096
"""Steps of a large run that are counted together."""

_TOGETHER = 512
"""Stretches, each an object, that are put together into one object."""

PARTS = {
    "attention_s": "attention", "linear_s": "matrices", "experts_s": "experts", "communication_s": "communication",
    "host_s": "host",
}  # fmt: skip
"""Columns of the steps with the seconds of their parts, and their names."""

_STEPS = ("prefill_tokens", "decode_seqs", "context_tokens", "waiting", "running", "free_blocks")


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """Every gap between neighbouring token events of a request that ended well, counted.

    `counts` (stretches, bins): `edges_s` (stretches + 1,) are the times at which gaps ended, `bins_s` (bins + 1,) their
    lengths, from the shortest to the longest bin that holds one; a gap g is in the bin with `bins_s[i] <= g <
    bins_s[i + 1]`. The counts are exact; bins are at most 3.2% wide, and what is below 8 us is in a bin from 0.
    """

    edges_s: np.ndarray
    bins_s: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """So many `steps` of the replicas in stretches of equally many: least and greatest of each column, and its `total`,
    the sum over the steps of its value times their seconds.

    `start_s` and `time_s` (stretches,): when each begins, and the time spent in its steps; requests waited during
    `waited_s` of the whole. `parts_s` (stretches,) are the seconds of each part of the steps, all 0 where the latency
    model does not know them.
    """

    steps: int
    start_s: np.ndarray
    time_s: np.ndarray
    waited_s: float
    least: dict[str, np.ndarray]
    greatest: dict[str, np.ndarray]
    total: dict[str, np.ndarray]
    parts_s: dict[str, np.ndarray]

    @property
    def busy_s(self) -> float:
        """The time spent in all steps."""
        return max(float(self.time_s.sum()), 1e-12)

    def mean(self, column: str) -> np.ndarray:
        """(stretches,) the mean over time: by number, many short steps would outvote the long ones that fill it."""
        means: np.ndarray = self.total[column] / np.maximum(self.time_s, 1e-12)
        return means


class GapCounts(Aggregate):
    """The gaps of requests, counted as they pass: how many of each length ended when, and the largest of each."""

    def __init__(self) -> None:
        self._width_s = 2.0**-20  # of a stretch: doubled whenever the last one ends too early
        self._counts = np.zeros((TIMES, _LAST - _FIRST + 1), np.int64)
        self._largest = Growing(pa.schema([("largest_s", pa.float64())]))

    def add(self, piece: pa.Table) -> None:
        """Count those of the next requests."""
        rows = lists(piece, "token_s")
        gap_rows = gap_lists(rows)
        self._largest.add(pa.table({"largest_s": row_max(gap_rows)}))
        ended_s, lasted_s = _of_answered(rows, gap_rows, succeeded(piece))
        if not len(ended_s):
            return
        while ended_s.max() >= TIMES * self._width_s:
            self._width_s *= 2
            pairs = self._counts.reshape(TIMES // 2, 2, -1).sum(axis=1)
            self._counts = np.concatenate([pairs, np.zeros_like(pairs)])
        bins = self._counts.shape[1]
        cell = np.empty(len(ended_s), np.int64)
        for start in range(0, len(cell), BLOCK):
            # the bits of positive doubles rise as their values do: a shift finds the bin without a logarithm
            bin_ = (lasted_s[start : start + BLOCK].view(np.int64) >> _SHIFT) - _FIRST
            time_ = (ended_s[start : start + BLOCK] / self._width_s).astype(np.int64)
            cell[start : start + BLOCK] = time_ * bins + np.clip(bin_, 0, bins - 1)
        flat = self._counts.ravel()
        flat += np.bincount(cell, minlength=len(flat))

    def largest(self) -> np.ndarray:
        """(requests,) the largest gap of each, NaN without one."""
        return number(self._largest.table(), "largest_s")

    def gaps(self) -> Gaps:
        """The counts of the stretches and bins from the first to the last that holds a gap."""
        bins_s = (np.arange(_FIRST, _LAST + 2, dtype=np.int64) << _SHIFT).view(np.float64)
        held, times = (np.flatnonzero(self._counts.any(axis=axis)) for axis in (0, 1))
        low, high = (held[0], held[-1] + 1) if len(held) else (0, 1)
        bins_s = bins_s[low : high + 1].copy()
        if low == 0:
            bins_s[0] = 0.0
        until = times[-1] + 1 if len(times) else 1
        return Gaps(self._width_s * np.arange(until + 1), bins_s, self._counts[:until, low:high])


def _of_answered(rows: Lists, found: Lists, ok: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When each gap ended and how long it lasted, of the requests that ended well."""
    later = np.ones(len(rows.values), bool)
    later[rows.offsets[:-1][np.diff(rows.offsets) > 0]] = False
    ended_s = rows.values[later]
    if ok.all():
        return ended_s, found.values
    answered = np.repeat(ok, np.diff(found.offsets))
    return ended_s[answered], found.values[answered]


class StepStretches(Aggregate):
    """The steps in stretches, as they pass, the same in whatever pieces they come."""

    table = "steps"
    columns = ("replica", "start_s", "end_s", *_STEPS, *PARTS)

    def __init__(self) -> None:
        self._full: list[Stretches] = []
        self._rest: list[pa.Table] = []  # fewer than a stretch has

    def add(self, piece: pa.Table) -> None:
        """Take in the next steps."""
        steps = pa.concat_tables([*self._rest, piece])
        full = steps.num_rows - steps.num_rows % _ROWS
        self._full += [_reduced(steps[start : start + _ROWS], _ROWS) for start in range(0, full, _ROWS)]
        self._rest = [steps[full:]]
        if len(self._full) >= _TOGETHER:
            merged = _merged(self._full, sum(len(part.start_s) for part in self._full))
            self._full = [] if merged is None else [merged]

    def parts(self) -> list[Stretches]:
        """Those of all steps."""
        return [*self._full, *(_reduced(rest, _ROWS) for rest in self._rest if rest.num_rows)]


PAGE_AGGREGATES = (GapCounts, StepStretches)
"""What the page of a large run needs of all its gaps and steps."""


def steps(run: Run, most: int) -> Stretches | None:
    """The steps of a run in at most `most` stretches; None where it has none."""
    if run.steps is not None:
        rows = run.steps.num_rows
        return _merged([_reduced(run.steps, max(1, -(-rows // most)))] if rows else [], most)
    if run.whole is None or run.whole.steps is None:
        return None
    return _merged(run.aggregate(StepStretches).parts(), most)


def _reduced(steps: pa.Table, rows: int) -> Stretches:
    """Stretches of `rows` steps, in the order of their start."""
    start_s = steps["start_s"].to_numpy()
    # steps of one replica are in order already, and sorting millions of them again would cost more than all the rest
    order = slice(None) if np.all(start_s[1:] >= start_s[:-1]) else np.argsort(start_s, kind="stable")
    start_s = start_s[order]
    span_s = steps["end_s"].to_numpy()[order] - start_s
    first = np.arange(0, len(start_s), rows)
    values = {name: steps[name].to_numpy()[order] for name in _STEPS}
    return Stretches(
        steps=len(start_s),
        start_s=start_s[first],
        time_s=np.add.reduceat(span_s, first),
        waited_s=float(span_s[values["waiting"] > 0].sum()),
        least={name: np.minimum.reduceat(column, first) for name, column in values.items()},
        greatest={name: np.maximum.reduceat(column, first) for name, column in values.items()},
        total={name: np.add.reduceat(column * span_s, first) for name, column in values.items()},
        parts_s={name: np.add.reduceat(_seconds(steps, name)[order], first) for name in PARTS},
    )


def _seconds(steps: pa.Table, part: str) -> np.ndarray:
    """(steps,) seconds of a part, 0 where they are not known."""
    seconds: np.ndarray = np.nan_to_num(steps[part].to_numpy())
    return seconds


def _merged(parts: Sequence[Stretches], most: int) -> Stretches | None:
    """The parts one after the other, neighbours together so that at most `most` are left."""
    if not parts:
        return None
    start_s = np.concatenate([part.start_s for part in parts])
    order = np.argsort(start_s, kind="stable")
    first = np.unique(np.linspace(0, len(order), min(most, len(order)) + 1).astype(np.int64)[:-1])

    def column(of: str, name: str) -> np.ndarray:
        return np.concatenate([getattr(part, of)[name] for part in parts])[order]

    return Stretches(
        steps=sum(part.steps for part in parts),
        start_s=start_s[order][first],
        time_s=np.add.reduceat(np.concatenate([part.time_s for part in parts])[order], first),
        waited_s=sum(part.waited_s for part in parts),
        least={name: np.minimum.reduceat(column("least", name), first) for name in _STEPS},
        greatest={name: np.maximum.reduceat(column("greatest", name), first) for name in _STEPS},
        total={name: np.add.reduceat(column("total", name), first) for name in _STEPS},
        parts_s={name: np.add.reduceat(column("parts_s", name), first) for name in PARTS},
    )
