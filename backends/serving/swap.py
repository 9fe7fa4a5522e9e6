"""Host memory of a replica: where preempted sequences keep their KV until there is room for it again.

While any sequence is swapped out no request is admitted; they come back in the order in which they left. Only sequences
that decode are swapped: what a half-computed prompt has stored is computed again, as is everything once host memory
is full. The driver makes the copies and charges for them.
Source: Kwon et al., vLLM, SOSP 2023, section 4.5 (swapping; no admission meanwhile).
"""

from collections import deque
from collections.abc import Iterator

from backends.serving.batch import Batch, Phase, Sequence
from backends.serving.replica import Replica


class Swap:
    """Room for `total` blocks; `closed`: no request may be admitted in the step being formed.

    `block_s` is what a driver charges for copying one block, `moved` the blocks copied before the step being formed.
    """

    __slots__ = ("_held", "_queue", "block_s", "closed", "copied", "free", "moved", "total")

    def __init__(self, total: int, block_s: float = 0.0) -> None:
        if total < 0:
            raise ValueError(f"host memory must be at least 0 blocks, got {total}")
        self.total = total
        self.block_s = block_s
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
        queue = self._queue
        self.closed = bool(queue)
        self.copied += self.moved
        self.moved = 0
        while queue:
            seq = queue[0]
            want = self._held[seq]
            if want > replica.blocks.free or (replica.running and replica.room() < want + 1):
                return
            queue.popleft()
            del self._held[seq]
            self.free += want
            replica.resume(seq, want)
            batch.swaps = [*batch.swaps, (seq, None)]
            self.moved += want

    def total_copied(self) -> int:
        """Blocks that were copied so far, both ways."""
        return self.copied + self.moved

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
