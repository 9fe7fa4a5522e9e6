"""Numbers the conversations of a trace, counts their turns and finds the turn before, block after block."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from harness.data.lists import Ints, Mask
from harness.data.records import listed
from workloads.readers._block import Block
from workloads.readers._requests import Requests

LOCAL = 1 << 59
"""Bit of the ids of blocks that are known in one conversation only: then its number in the file, then its own id."""
ID_BITS = 28


class Links(NamedTuple):
    """Of the rows that are kept: number of the session, turn from 0, row number of the turn before (null: none)."""

    session: pa.Array
    turn: Ints
    parent: pa.Array


class ByParent:
    """Rows have a name and may name the turn before; a conversation is a tree, named by its root.

    Rows that name their session only are each both the turn before and the one after it. Conversations are numbered as
    they appear; memory grows with how many there are. A turn that is no request hands its own parent on to those who
    follow it. Where the turn before is not in the file, the rows that name the same one are one session, and the
    recorded turn is where they start. A row that names nothing is in no conversation.
    """

    def __init__(self) -> None:
        self._chats: dict[str, tuple[str, int, int | None]] = {}  # root, turn of the next, row kept last
        self._numbers: dict[str, int] = {}
        self.orphans = 0

    def links(self, chats: pa.Array, parents: pa.Array, turns: Ints | None, live: Mask, kept: Mask, row: int) -> Links:
        """Links of the kept rows of a block, the first of which is row `row`. A turn is a row that is `live`."""
        linked: list[tuple[int | None, int, int | None]] = []
        recorded = [0] * len(chats) if turns is None else turns.tolist()
        for i, (chat, parent) in enumerate(zip(chats.to_pylist(), parents.to_pylist(), strict=True)):
            root, turn, before = self._chats.get(parent, (parent, recorded[i], None)) if parent else (chat, 0, None)
            self.orphans += bool(parent and parent not in self._chats)
            if kept[i]:
                number = None if root is None else self._numbers.setdefault(root, len(self._numbers))
                linked.append((number, turn, before))
                before, row = row, row + 1
            if chat:
                self._chats[chat] = (root, turn + bool(live[i]), before)
        session, turn_of, parent_row = zip(*linked, strict=True) if linked else ((), (), ())
        return Links(pa.array(session, pa.int64()), np.array(turn_of, np.int64), pa.array(parent_row, pa.int64()))


class ByRow:
    """Rows give the row number of the turn before; such numbers change where rows are left out.

    A row that is left out hands its own turn before on to those that follow it.
    """

    def __init__(self) -> None:
        self._kept = np.empty(1 << 12, np.int64)
        self._rows = 0

    def parents(self, given: pa.Array, kept: Mask, row: int) -> tuple[pa.Array, Mask]:
        """Row numbers among the kept rows, and which of all rows name none before them."""
        size, start = len(given), self._rows
        while start + size > len(self._kept):
            self._kept = np.concatenate((self._kept, np.empty_like(self._kept)))
        parent_rows = given.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = (parent_rows >= start + np.arange(size)) | (parent_rows < -1)
        self._kept[start : start + size] = np.where(kept, row - 1 + np.cumsum(kept), -1)
        for place in np.flatnonzero(~kept & ~wrong & (parent_rows >= 0)).tolist():
            self._kept[start + place] = self._kept[parent_rows[place]]
        self._rows = start + size
        parent = np.where((parent_rows >= 0) & ~wrong, self._kept[np.where(wrong, 0, parent_rows)], -1)
        return pa.array(parent[kept], pa.int64(), mask=parent[kept] < 0), wrong

    def joins(self, given: pa.ListArray, kept: Mask) -> pa.ListArray:
        """The same for lists of row numbers of the block that `parents` took last; what names no row before is gone."""
        start = self._rows - len(given)
        targets = given.flatten().to_numpy(zero_copy_only=False)
        of_row = np.repeat(np.arange(len(given)), given.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
        valid = (targets >= 0) & (targets < start + of_row)
        number = np.where(valid, self._kept[np.where(valid, targets, 0)], -1)
        stays = (number >= 0) & kept[of_row]
        return listed(np.bincount(of_row[stays], minlength=len(given))[kept], number[stays])


class Turn(NamedTuple):
    """The last turn of a session so far: its stamp, the tokens of its prompt and answer, and ids of the session's own.

    `named` are the whole blocks of the first prompt that the file names.
    """

    at: float
    tokens: int
    base: int
    named: list[int]


class Conversations:
    """Makes whole prompts of what turns add to their sessions, and stamps of delays, as if answers took no time."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._last: dict[str | int, Turn] = {}
        self._names: dict[str, list[int]] = {}  # of the blocks of the last prompt of each session
        self._new_ids = count(LOCAL)

    @property
    def any(self) -> bool:
        """Whether the trace has such turns."""
        return bool(self._last)

    def take(self, block: Block, requests: Requests) -> Requests:
        """The requests with whole prompts; those of a session share their blocks. One without a start is left out."""
        if requests.session is not None and requests.shares is not None:
            return self._with_names(requests, requests.session.to_pylist(), requests.shares.tolist())
        if requests.session is None or requests.adds is None:
            return requests
        times, prompt, size = requests.at.tolist(), requests.prompt_tokens.tolist(), self._block_tokens
        delay_s = requests.more["delay_s"].to_pylist()
        ids = [[] for _ in times] if requests.prefix_ids is None else requests.prefix_ids.to_pylist()
        for row, name in enumerate(requests.session.to_pylist()):
            before = self._last.get(name) if name else None
            if before is None:
                base, delay_s[row] = LOCAL | len(self._last) << ID_BITS, 0.0
                turn = Turn(times[row], 0, base, ids[row][: prompt[row] // size])
                if math.isnan(times[row]):
                    block.leave_out(row, requests.stamp, "the first turn of a session needs a stamp")
                    times[row] = 0.0
                    continue
            else:
                turn = before
                if math.isnan(times[row]):
                    delay_s[row] = 0.0 if math.isnan(delay_s[row]) else delay_s[row]
                    times[row] = turn.at + requests.per_s * delay_s[row]
                elif math.isnan(delay_s[row]):
                    delay_s[row] = max(0.0, times[row] - turn.at) / requests.per_s
                prompt[row] += turn.tokens if requests.adds[row] else 0
            if before is not None or not ids[row]:
                new_ids = range(turn.base + len(turn.named), turn.base + prompt[row] // size)
                ids[row] = [*turn.named, *new_ids]
            tokens = prompt[row] + int(requests.output_tokens[row])
            self._last[name or len(self._last)] = turn._replace(at=times[row], tokens=tokens)
        return replace(
            requests,
            at=np.array(times, np.float64),
            prompt_tokens=np.array(prompt, np.int64),
            prefix_ids=pa.array(ids, pa.list_(pa.int64())),
            more={**requests.more, "delay_s": pa.array(delay_s, pa.float64())},
        )

    def _with_names(self, requests: Requests, sessions: list[str | None], shares: list[int]) -> Requests:
        """The requests with names of their whole blocks: those that are shared with the prompt before, and new ones."""
        names = []
        for session, shared, tokens in zip(sessions, shares, requests.prompt_tokens.tolist(), strict=True):
            whole = tokens // self._block_tokens
            kept = self._names.get(session or "", [])[: min(shared // self._block_tokens, whole)]
            names.append([*kept, *islice(self._new_ids, whole - len(kept))])
            self._names[session or ""] = names[-1] if session else []
        return replace(requests, prefix_ids=pa.array(names, pa.list_(pa.int64())), shares=None)
