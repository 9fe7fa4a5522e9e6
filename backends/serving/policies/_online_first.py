"""Online before offline: what policies have in common that serve requests which no one waits for beside others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.replica import Replica


@dataclass(slots=True)
class OnlineFirst:
    """Keeps the queue of a replica in order, online requests first, and takes memory from offline ones first."""

    _last: int = field(default=-1, init=False)  # order of the last arrival that is sorted in

    def sort(self, replica: Replica, *, again: bool = False) -> None:
        """Online requests go before offline ones; only new arrivals are looked at, all with `again`."""
        last, online = self._last, again
        for seq in reversed(replica.waiting):
            if seq.order <= last:
                break  # a queue may be long, and what is sorted stays so
            self._last = max(self._last, seq.order)
            online |= not offline(seq)
        if online:
            replica.order_waiting(offline)

    def evict(self, replica: Replica, batch: Batch) -> bool:
        """Take the memory of the offline request admitted last, and queue it; False where there is none."""
        victim = max((seq for seq in replica.holders() if offline(seq)), key=_admitted, default=None)
        if victim is None:
            return False
        replica.preempt(batch, victim)
        self.sort(replica, again=True)
        return True

    def make_room(self, replica: Replica, batch: Batch) -> None:
        """Evict offline requests until what runs can go on."""
        if replica.drafts is not None:
            replica.drafts.plan(len(replica.decoding), replica.blocks.free)
        while self._growth(replica) > replica.blocks.free and self.evict(replica, batch):
            pass

    @staticmethod
    def _growth(replica: Replica) -> int:
        prompts = sum([replica.blocks_to_grow(seq, seq.need()) for seq in replica.prefilling])
        return replica.decoding.blocks_needed() + prompts


def offline(seq: Sequence) -> bool:
    """Whether no one waits for its answer."""
    return seq.request.offline


def _admitted(seq: Sequence) -> int:
    return seq.admitted
