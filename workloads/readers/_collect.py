"""Takes the rows of a slice out of what a reader gives, block after block, and keeps account of every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from workloads.readers._cells import SECOND_NS, BadRow
from workloads.readers._oddities import Oddities
from workloads.readers._sessions import ByParent, ByRow, BySession

if TYPE_CHECKING:
    from workloads.readers._block import Block, Floats, Mask
    from workloads.readers._requests import Reader, Requests

BEFORE = "before the slice"
_ORPHANS = "the turn before is not in the file"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Rows from `start_s` up to but without `stop_s` seconds after the first row, at most `limit` requests."""

    start_s: float | None = None
    stop_s: float | None = None
    limit: int | None = None


def parsed(blocks: Iterator[Block], reader: Reader) -> Iterator[tuple[Block, Requests]]:
    """Each block with its requests; a bad row is raised after the rows before it, whatever column it is in."""
    for block in blocks:
        good, failure = block, None
        while good.size:
            try:
                requests = reader.requests(good)
            except BadRow as error:
                good, failure = good.head(error.row), error
                continue
            yield good, requests
            break
        if failure:
            raise failure


class Collector:
    """Makes tables of the kept rows; `done` once the slice ends before the file."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.oddities = Oddities()
        self.dropped: Counter[str] = Counter()
        self.kept = 0
        self.done = False
        self.last_s: float | None = None
        self.zero_s = bounds.start_s
        self._first: int | float | None = None
        self._sessions, self._trees, self._rows = BySession(), ByParent(), ByRow()

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
            block.fail(fall, requests.stamp, f"{what}; 'bench trace convert --sort' orders them")

    def _end(self, at_s: Floats, requests: Requests) -> int:
        """How many rows belong to the slice, those before its start included."""
        bounds = self._bounds
        end = len(at_s)
        if bounds.stop_s is not None:
            end = int(np.searchsorted(at_s, bounds.stop_s))
            self.done = end < len(at_s)
        if bounds.limit is not None:
            kept = self._live(requests)[:end] & (at_s[:end] >= (bounds.start_s or 0))
            places = np.flatnonzero(kept)[: bounds.limit - self.kept]
            if len(places) == bounds.limit - self.kept:
                self.done = True
                end = int(places[-1]) + 1
        return end

    @staticmethod
    def _live(requests: Requests) -> Mask:
        live = np.ones(len(requests), np.bool_)
        for _, mask in requests.drops:
            live &= ~mask
        return live

    def _kept_rows(self, block: Block, requests: Requests, at_s: Floats) -> pa.Table:
        live = self._live(requests)
        inside = at_s >= (self._bounds.start_s or 0)
        kept = live & inside
        self._count(requests, inside)
        self._watch(block, requests, at_s, inside)
        columns = self._columns(requests, at_s, live, kept)
        self.kept += int(kept.sum())
        return pa.table(columns)

    def _count(self, requests: Requests, inside: Mask) -> None:
        self.dropped[BEFORE] += int((~inside).sum())
        left = inside
        for reason, mask in requests.drops:
            self.dropped[reason] += int((left & mask).sum())
            left = left & ~mask
        for text, mask in requests.notes:
            self.oddities.note(text, int((left & mask).sum()))

    def _watch(self, block: Block, requests: Requests, at_s: Floats, inside: Mask) -> None:
        from_row = int(len(inside) - inside.sum())  # stamps do not fall, so those inside are the last
        rows = slice(from_row, None)
        at, first, per_s = requests.at[rows], self._first, requests.per_s
        offset_ns = None  # since the first row, where the stamps are whole numbers
        if at.dtype.kind == "i" and isinstance(first, int) and not (len(at) and (at[-1] - first) / per_s > 9e9):
            offset_ns = (at.astype(np.int64) - first) * int(SECOND_NS // per_s)
        size = len(requests) - from_row

        def identity() -> pa.Table:
            return (requests.values() if requests.expanded else block.identity()).slice(from_row, size)

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
        if requests.tag is not None:
            columns["tag"] = keep(requests.tag)
        return columns

    def _linked(self, requests: Requests, live: Mask, kept: Mask) -> dict[str, object]:
        if requests.chat is not None:
            orphans = self._trees.orphans
            links = self._trees.links(requests.chat, requests.parent, requests.turn, live, kept, self.kept)
            self.oddities.note(_ORPHANS, self._trees.orphans - orphans)
        elif requests.session is not None:
            links = self._sessions.links(requests.session, live, kept, self.kept)
        else:
            return {}
        turn, parent = links.turn, links.parent
        if requests.turn is not None and requests.chat is None:
            turn = requests.turn[kept]
        if requests.parent_row is not None:
            parent, wrong = self._rows.parents(requests.parent_row, kept, self.kept)
            self.oddities.note("the turn before is no row before", int(wrong.sum()))
        return {"session": links.session, "turn": pa.array(turn, pa.int32()), "parent": parent}


def _fall(at_s: Floats, last_s: float | None) -> int | None:
    """The first row whose stamp is before that of the row before it."""
    if last_s is not None and at_s[0] < last_s:
        return 0
    falls = np.flatnonzero(at_s[1:] < at_s[:-1])
    return int(falls[0]) + 1 if len(falls) else None
