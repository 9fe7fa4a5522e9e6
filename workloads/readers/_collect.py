"""Takes the rows of a slice out of what a reader gives, block after block, and keeps account of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness.bounds import AtLeastOne, NotNegative, check
from harness.data.lists import Floats, Mask
from harness.errors import UsageError
from workloads.readers import _cells
from workloads.readers._anomalies import Anomalies
from workloads.readers._block import Block
from workloads.readers._cells import SECOND_NS
from workloads.readers._requests import Requests
from workloads.readers._sessions import ByParent, ByRow

BEFORE = "before the slice"
_ORPHANS = "the turn before is not in the file"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a trace: rows from `start_s` up to but without `stop_s`, at most `limit` requests.

    Seconds count from the first row of the file.
    """

    start_s: NotNegative | None = None
    stop_s: float | None = None
    limit: AtLeastOne | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.stop_s is not None and not self.stop_s > (self.start_s or 0):
            raise ValueError(f"stop_s must be above start_s = {self.start_s or 0:g}, got {self.stop_s:g}.")


class FallingStamps(UsageError):
    """A row is earlier than the one before it."""


class Collector:
    """Makes tables of the kept rows; `done` once the slice ends before the file."""

    def __init__(self, part: Slice) -> None:
        self._part = part
        self.oddities = Anomalies()
        self.dropped: Counter[str] = Counter()
        self.kept = 0
        self.rows = 0  # of the file
        self.done = False
        self.last_s: float | None = None
        self.zero_s = part.start_s
        self._first: int | float | None = None
        self._trees, self._rows = ByParent(), ByRow()

    def left_out(self) -> dict[str, int]:
        """How many rows each reason left out, the most frequent first."""
        counts = sorted(self.dropped.items(), key=lambda item: (-item[1], item[0]))
        return {reason: count for reason, count in counts if count}

    def take(self, block: Block, requests: Requests) -> Iterator[pa.Table]:
        """The kept rows of a block, if there are any; raises UsageError where stamps fall within the slice."""
        if not len(requests):
            return
        if self._first is None:
            self._first = requests.at[0].item()
        at_s = (requests.at - self._first) / requests.per_s
        fall = _fall(at_s, self.last_s)
        if fall is not None:
            at_s = at_s[:fall]
        before_s = self.last_s
        end = self._end(at_s, requests)
        if end:
            self.last_s = float(at_s[end - 1])
            table = self._kept_rows(block, requests.head(end), at_s[:end])
            if table.num_rows:
                yield table
        if fall is not None and not self.done:
            latest_s = float(at_s[-1]) if fall else before_s or 0.0
            earlier_s = latest_s - (requests.at[fall].item() - self._first) / requests.per_s
            what = f"stamps must not fall, this one is {earlier_s:g} s earlier"
            row = fall if requests.rows is None else int(requests.rows[fall])
            remedy = "'bench trace convert' orders them"
            if any(map(_cells.is_clock, block.first.get(requests.stamp or "", ()))):
                what = f"these are times of day without their date, this one is {earlier_s:g} s earlier"
                remedy = f"write the date before each, or where they count from the start, {remedy}"
                block.fail(row, requests.stamp, f"{what}; {remedy}")
            raise FallingStamps(str(block.refusal(row, requests.stamp, f"{what}; {remedy}")))

    def _end(self, at_s: Floats, requests: Requests) -> int:
        """How many rows belong to the slice, those before its start included."""
        part = self._part
        end = len(at_s)
        if part.stop_s is not None:
            end = int(np.searchsorted(at_s, part.stop_s))
            self.done = end < len(at_s)
        if part.limit is not None:
            selected = requests.live[:end] & (at_s[:end] >= (part.start_s or 0))
            # The slice ends with the last row that it keeps: rows left out behind it are not of it.
            places = np.flatnonzero(selected)[: part.limit - self.kept]
            if len(places) == part.limit - self.kept:
                self.done = True
                end = int(places[-1]) + 1
        return end

    def _kept_rows(self, block: Block, requests: Requests, at_s: Floats) -> pa.Table:
        live = requests.live
        inside = at_s >= (self._part.start_s or 0)
        selected = live & inside
        self._count(block, requests, inside)
        self._watch(block, requests, at_s, selected)
        columns = self._columns(requests, at_s, live, selected)
        self.kept += int(selected.sum())
        return pa.table(columns)

    def _count(self, block: Block, requests: Requests, inside: Mask) -> None:
        self.rows += block.size if requests.expanded else int(inside.sum())
        self.dropped[BEFORE] += int((~inside).sum())
        remaining = inside
        for reason, mask in requests.drops:
            self.dropped[reason] += int((remaining & mask).sum())
            remaining = remaining & ~mask
        for text, mask in requests.notes:
            self.oddities.note(text, int((remaining & mask).sum()))

    def _watch(self, block: Block, requests: Requests, at_s: Floats, rows: Mask) -> None:
        # Rows that are left out are no traffic: the stamp of one that cannot be used is that of the row before.
        raw, first, per_s = requests.at[rows], self._first, requests.per_s
        offset_ns = None  # since the first row, where the stamps are whole numbers
        if raw.dtype.kind == "i" and isinstance(first, int) and not (len(raw) and (raw[-1] - first) / per_s > 9e9):
            offset_ns = (raw.astype(np.int64) - first) * int(SECOND_NS // per_s)

        def identity() -> pa.Table:
            table = requests.values() if requests.expanded else block.identity().slice(0, len(requests))
            return table.filter(pa.array(rows))

        self.oddities.take(at_s[rows], offset_ns, requests.prompt_tokens[rows], identity)

    def _columns(self, requests: Requests, at_s: Floats, live: Mask, kept: Mask) -> Mapping[str, object]:
        if self.zero_s is None and kept.any():
            self.zero_s = float(at_s[kept][0])
        columns: dict[str, object] = {
            "at_s": at_s[kept] - (self.zero_s or 0.0),
            "prompt_tokens": requests.prompt_tokens[kept],
            "output_tokens": requests.output_tokens[kept],
        }

        def keep(column: pa.Array) -> pa.Array:
            return column if kept.all() else column.filter(pa.array(kept))

        if requests.prefix_ids is not None:
            columns["prefix_ids"] = keep(requests.prefix_ids)
        columns |= self._linked(requests, live, kept)
        columns |= {name: keep(column) for name, column in requests.more.items()}
        if requests.tag is not None:
            columns["tag"] = keep(requests.tag)
        return columns

    def _linked(self, requests: Requests, live: Mask, kept: Mask) -> dict[str, object]:
        if requests.chat is not None:
            orphans = self._trees.orphans
            links = self._trees.links(requests.chat, requests.parent, requests.turn, live, kept, self.kept)
            self.oddities.note(_ORPHANS, self._trees.orphans - orphans)
        elif requests.session is not None:
            links = self._trees.links(requests.session, requests.session, None, live, kept, self.kept)
        else:
            return {}
        turn, parent = links.turn, links.parent
        if requests.turn is not None and requests.chat is None:
            turn = requests.turn[kept]
        joins = {}
        if requests.parent_row is not None:
            parent, wrong = self._rows.parents(requests.parent_row, kept, self.kept)
            self.oddities.note("the turn before is no row before", int(wrong.sum()))
            if requests.joins is not None:
                joins = {"joins": self._rows.joins(requests.joins, kept)}
        return {"session": links.session, "turn": pa.array(turn, pa.int32()), "parent": parent, **joins}


def _fall(at_s: Floats, last_s: float | None) -> int | None:
    """The first row whose stamp is before that of the row before it."""
    if last_s is not None and at_s[0] < last_s:
        return 0
    falls = np.flatnonzero(at_s[1:] < at_s[:-1])
    return int(falls[0]) + 1 if len(falls) else None
