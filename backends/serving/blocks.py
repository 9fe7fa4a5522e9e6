"""Blocks: the KV memory of a replica in units of a fixed number of tokens.

Counting comes first, identity later: `take` and `give` move counts, and ids are drawn from the free list only
for the block table of an executor. So a step of the simulator costs no work per block, and the engine sees the same
counts with real ids. Blocks that several sequences share are those of the prefix cache. Invariant: free + held ==
total, and every id is in the pool or held. The core's hot path moves `free` itself.
Source: Kwon et al., vLLM, SOSP 2023 (block tables).

Beside them what lies in host memory until there is room: the KV of preempted sequences, and LoRA adapters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from backends.serving.batch import Batch, Phase, Sequence

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

    from backends.serving.replica import Replica


class Blocks:
    """`total` blocks of `size` tokens; `free` of them are unowned."""

    __slots__ = ("_ids", "_named", "_order", "free", "size", "total")

    def __init__(self, total: int, size: int, order: Iterable[int] | None = None) -> None:
        """`order` is the order in which ids are handed out, default 0, 1, 2, ..."""
        if total < 1 or size < 1:
            raise ValueError(f"blocks and their size must be at least 1, got {total} blocks of {size} tokens")
        self.total = total
        self.size = size
        self.free = total
        self._order: Iterable[int] = range(total) if order is None else order
        self._ids: list[int] | None = None  # made when the first one is drawn: a simulator never asks for them
        self._named: set[int] = set()  # ids that an owner has

    @property
    def _pool(self) -> list[int]:
        if self._ids is None:
            self._ids = list(self._order)[::-1]
        return self._ids

    def resize(self, blocks: int) -> None:
        """So many more blocks, or fewer of those that are free; none of them has an id."""
        assert not self._named and -blocks <= self.free
        self.total += blocks
        self.free += blocks
        self._order, self._ids = range(self.total), None

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens fill, the last one perhaps partly."""
        return -(-tokens // self.size)

    def take(self, count: int) -> None:
        """Take `count` free blocks. The caller has checked `free`."""
        assert 0 <= count <= self.free, (count, self.free)
        self.free -= count

    def give(self, count: int, table: list[int]) -> None:
        """Give back `count` blocks, of which those in `table` have ids; `table` is emptied."""
        assert len(table) <= count
        self.free += count
        if table:
            self._named.difference_update(table)
            self._pool.extend(reversed(table))
            table.clear()

    def name(self, table: list[int], count: int) -> list[int]:
        """Draw ids until `table` names all `count` blocks of its owner; returns the table."""
        while len(table) < count:
            block = self._pool.pop()
            self._named.add(block)
            table.append(block)
        return table

    def check(self) -> None:
        """Integrity: free + held == total, and no id is lost or doubled."""
        assert 0 <= self.free <= len(self._pool) <= self.total  # ids in the pool are free, or owed to an owner
        assert len(self._named) + len(self._pool) == self.total
        assert not self._named & set(self._pool)
        assert len(set(self._pool)) == len(self._pool)

    def __repr__(self) -> str:
        return f"<Blocks {self.free}/{self.total} free of {self.size} tokens>"


class Swap:
    """Host memory of a replica: room for `total` blocks, where preempted sequences keep their KV until it fits again.

    While any sequence is swapped out no request is admitted (`closed`, in the step being formed); they come back in the
    order in which they left, or that of a policy. Only sequences that decode are swapped: what a half-computed prompt
    has stored is computed again, as is everything once host memory is full. `block_s` is what a driver charges for
    copying one block, `moved` the blocks copied before the step being formed; with `overlaps` they are copied beside
    the step before that one, and only what exceeds it counts.
    Source: Kwon et al., vLLM, SOSP 2023, section 4.5 (swapping; no admission meanwhile).
    """

    __slots__ = ("_held", "_queue", "block_s", "closed", "copied", "free", "moved", "overlaps", "total")

    def __init__(self, total: int, block_s: float = 0.0, *, overlaps: bool = False) -> None:
        if total < 0:
            raise ValueError(f"host memory must be at least 0 blocks, got {total}")
        self.total = total
        self.block_s = block_s
        self.overlaps = overlaps
        self.free = total
        self.closed = False
        self.moved = 0
        self.copied = 0  # blocks of all steps that are formed
        self._queue: deque[Sequence] = deque()
        self._held: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        """Whether any sequence is swapped out. Note: compiled code does not take it from the length."""
        return bool(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def order(self, key: Callable[[Sequence], SupportsRichComparison]) -> None:
        """Sort those that are swapped out, the smallest key first to come back."""
        self._queue = deque(sorted(self._queue, key=key))

    def keep(self, seq: Sequence, batch: Batch) -> bool:
        """Take the stored KV of a preempted sequence; False where host memory has no room for it."""
        stays = [(moved, table) for moved, table in batch.swaps if moved is not seq]
        if len(stays) < len(batch.swaps):  # it came back in this very step: it never left
            batch.swaps = stays
            self.moved -= seq.blocks
            self._queue.appendleft(seq)
        elif seq.blocks > self.free:
            return False
        else:
            batch.swaps = [*batch.swaps, (seq, list(seq.table))]
            self.moved += seq.blocks
            self._queue.append(seq)
        self.free -= seq.blocks
        self._held[seq] = seq.blocks
        seq.phase = Phase.SWAPPED
        self.closed = True
        return True

    def back(self, replica: Replica, batch: Batch) -> None:
        """Bring back sequences that fit, first out first in, as long as the others keep what their next step needs."""
        queue, adapters = self._queue, replica.adapters
        self.closed = bool(queue)
        self.copied += self.moved
        self.moved = 0
        while queue:
            seq = queue[0]
            want = self._held[seq]
            # A block more than it had: else its next token may send it, or another one, out again at once. Alone it
            # needs no more than its next token does: what has landed here has the rest, and runs instead.
            needed = want + 1 if replica.running else max(want, replica.blocks_to_hold(seq, 1))
            room = replica.room() if replica.running else replica.blocks.free
            if needed > room or (adapters is not None and adapters.without_slot([seq], replica.all_holders())):
                return
            queue.popleft()
            del self._held[seq]
            self.free += want
            replica.resume(seq, want)
            batch.swaps = [*batch.swaps, (seq, None)]
            self.moved += want

    def drop(self, seq: Sequence) -> None:
        """Forget a sequence that is withdrawn."""
        self._queue.remove(seq)
        self.free += self._held.pop(seq)

    def check(self) -> None:
        """Integrity: free + held == total, and all are swapped out."""
        assert self.free + sum(self._held.values()) == self.total
        assert set(self._held) == set(self._queue)
        assert all(s.phase is Phase.SWAPPED and s.blocks == 0 and not s.table for s in self._queue)

    def __repr__(self) -> str:
        return f"<Swap {len(self._queue)} sequences, {self.free}/{self.total} blocks free>"


class Adapters:
    """Slots in GPU memory for the LoRA adapters of running requests, filled from host memory.

    There are `slots` at a time; loading one takes `load_s`, and a step with any the share `step_share` more. A request
    whose adapter has no slot waits, and those behind it go first. A step waits for the adapters that it loads; the
    least recently used one that no running request needs makes room.
    Source: vllm-project/vllm, `vllm/v1/core/sched/scheduler.py` (requests beyond `max_loras` are skipped and stay in
    front) and `vllm/lora/model_manager.py` (least recently used).
    """

    __slots__ = ("load_s", "loads", "resident", "slots", "step_share")

    def __init__(self, slots: int, load_s: float = 0.0, step_share: float = 0.0) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.slots = slots
        self.load_s = load_s
        self.step_share = step_share
        self.loads = 0
        self.resident: dict[str, None] = {}  # the least recently used first

    def without_slot(self, waiting: Iterable[Sequence], running: Iterable[Sequence]) -> list[Sequence]:
        """Those that wait and would exceed the slots beside the running ones and those in front of them."""
        used = {seq.adapter for seq in running} - {None}
        late = []
        for seq in waiting:
            if seq.adapter is None or seq.adapter in used:
                continue
            if len(used) < self.slots:
                used.add(seq.adapter)
            else:
                late.append(seq)
        return late

    def load(self, running: Iterable[Sequence]) -> tuple[float, float]:
        """Give the running sequences their adapters. Returns the seconds of loading, and the factor of its time."""
        used = dict.fromkeys(seq.adapter for seq in running if seq.adapter is not None)
        assert len(used) <= self.slots
        new = [name for name in used if name not in self.resident]
        idle = [name for name in self.resident if name not in used]
        for name in idle[: max(0, len(self.resident) + len(new) - self.slots)]:
            del self.resident[name]
        for name in used:
            self.resident.pop(name, None)
            self.resident[name] = None
        self.loads += len(new)
        return len(new) * self.load_s, 1.0 + self.step_share if used else 1.0

    def __repr__(self) -> str:
        return f"<Adapters {len(self.resident)}/{self.slots} slots, {self.loads} loads>"
