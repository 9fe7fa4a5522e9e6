"""Decodes: the sequences of a replica that advance by one token together, kept so that a step costs O(1).

All members take part in every decode step, so one counter (`tick`) moves them all: what a sequence has computed
and emitted, when it ends and when it crosses a block boundary follow from the tick at which it joined. A leap of k
steps is `tick += k`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from heapq import heappop, heappush

from backends.serving.batch import Phase, Sequence

TRIM = 1 << 16  # ticks no member has lived through are forgotten in pieces of this many


class Decodes:
    """The decoding sequences of one replica, in the order in which they joined."""

    __slots__ = ("_end_s", "_ends", "_past", "_phases", "_size", "context", "fresh", "members", "padded_context",
                 "padded_rows", "rows", "tick")  # fmt: skip

    def __init__(self, block_size: int | None) -> None:
        """`block_size` None: memory was reserved at admission, so decoding takes no blocks."""
        self._size = block_size or 1
        # A member needs a block every `size` ticks, always at the same tick modulo `size`. A count per phase therefore
        # gives the blocks of any tick without a walk over the members: _phases[tick % size].
        self._phases = [0] * self._size if block_size else None
        self.members: dict[Sequence, None] = {}  # in the order in which they joined
        self._ends: list[tuple[int, int, Sequence]] = []  # heap of (tick of the last token, order, sequence)
        self._end_s: array[float] = array("d")  # end of tick number _past + i
        self._past = 0
        self.fresh: list[Sequence] = []  # joined since the last tick began
        self.tick = 0
        self.rows = 0  # answers of the members
        self.context = 0  # KV entries that the next step reads: sum of `computed` of the rows
        self.padded_rows = 0  # finished rows that are still in a padded batch
        self.padded_context = 0

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.members)

    def join(self, seq: Sequence) -> None:
        """A sequence whose prompt is computed starts to decode at the next tick."""
        tick = self.tick
        computed, rows = seq._computed, seq.answers
        seq.group = self
        seq.joined_tick = tick
        seq.phase = Phase.DECODE
        self.members[seq] = None
        self.fresh.append(seq)
        self.rows += rows
        self.context += rows * computed
        if self._phases is not None:
            self._phases[(tick - computed) % self._size] += rows
        seq._end_tick = end = tick + seq._output - seq._emitted
        heappush(self._ends, (end, seq.order, seq))

    def leave(self, seq: Sequence) -> None:
        """A member stops decoding (it ended or lost its memory); its stamps and counts become its own."""
        del self.members[seq]
        joined, tick = seq.joined_tick, self.tick
        ran = tick - joined
        if ran:
            past = self._past
            seq.token_s += self._end_s[joined - past : tick - past]
        computed, rows = seq._computed, seq.answers
        if self._phases is not None:
            # A member's blocks are not counted step by step: what it holds follows from how far it has come.
            size = self._size
            self._phases[(joined - computed) % size] -= rows
            seq.blocks = (computed + ran + size - 1) // size if rows == 1 else seq.blocks_for(computed + ran, size)
        seq._computed = computed = computed + ran
        seq._emitted += ran
        seq.group = None
        seq._end_tick = 0
        self.rows -= rows
        self.context -= rows * computed

    def blocks_needed(self) -> int:
        """Blocks that the next tick takes."""
        return 0 if self._phases is None else self._phases[self.tick % self._size]

    def advance(self, end_s: ListOf[float]) -> int:
        """All members produced a token at each of `end_s`. Returns the blocks that the ticks after the first took."""
        count = len(end_s)
        if count == 1:
            blocks = 0
            self._end_s.append(end_s[0])
        else:
            blocks = self.blocks_after_first(count)
            self._end_s.fromlist(list(end_s))  # three times as fast as `extend`
        self.tick += count
        self.context += count * self.rows
        if self.padded_rows:
            self.padded_context += count * self.padded_rows
        return blocks

    def taken(self, count: int) -> list[int]:
        """Blocks that each of the next `count` ticks (at least 1) takes but the first of them."""
        phases, size = self._phases, self._size
        if phases is None:
            return [0] * (count - 1)
        start = (self.tick + 1) % size
        end = start + count - 1
        return phases[start:end] if end <= size else (phases * (end // size + 1))[start:end]

    def blocks_after_first(self, count: int) -> int:
        """Blocks that the next `count` ticks (at least 1) take but for the first of them."""
        return sum(self.taken(count))

    def _steps_ahead(self, free: int) -> int:
        """Ticks that fit before a member ends, the first being paid for and `free` blocks left for the others."""
        ends, phases = self._ends, self._phases
        while ends[0][2]._end_tick != ends[0][0] or ends[0][2].group is not self:
            heappop(ends)  # stale: the sequence left when it was preempted, and leaving does not search the heap
        steps = ends[0][0] - self.tick  # at least 1
        # upper bound first: each row takes at most one block per `size` ticks, and most leaps fit even then
        if phases is None or self.rows * ((steps + self._size - 2) // self._size) <= free:
            return steps
        return self._steps_within(steps, free, phases)

    def _steps_within(self, steps: int, free: int, phases: list[int]) -> int:
        size, rows = self._size, self.rows
        # In `size` ticks every row takes one block: whole cycles need no walk, only the rest does.
        cycles = free // rows
        fit, free = 1 + cycles * size, free - cycles * rows
        while fit < steps and phases[(self.tick + fit) % size] <= free:
            free -= phases[(self.tick + fit) % size]
            fit += 1
        return min(fit, steps)

    def ended(self) -> list[Sequence]:
        """Members whose last token came out at the tick just passed; they have left the group."""
        ends, tick = self._ends, self.tick
        done = []
        while ends and ends[0][0] <= tick:
            end, _, seq = heappop(ends)
            if seq._end_tick == end and seq.group is self:
                self.leave(seq)
                done.append(seq)
        if done and tick - self._past > 2 * TRIM:
            self._trim()
        return done

    def _trim(self) -> None:
        # The stamps are those of all members, so they are kept from the tick at which the oldest joined.
        oldest = min((seq.joined_tick for seq in self.members), default=self.tick)
        if oldest - self._past > TRIM:
            del self._end_s[: oldest - self._past]
            self._past = oldest

    def check(self) -> None:
        """Integrity of the derived sums."""
        assert self.rows == sum(seq.answers for seq in self.members)
        assert self.context == sum(seq.answers * seq.computed for seq in self.members)
        assert all(seq.group is self and seq.computed == seq.prompt + seq.emitted - 1 for seq in self.members)
        if self._phases is not None:
            assert sum(self._phases) == self.rows

    def __repr__(self) -> str:
        return f"<Decodes {len(self.members)} at tick {self.tick}, {self.context} tokens of context>"
