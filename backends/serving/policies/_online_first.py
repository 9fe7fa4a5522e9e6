"""Online before offline: what policies have in common that serve requests which no one waits for beside others."""

from dataclasses import dataclass, field
from itertools import takewhile

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica


@dataclass(slots=True)
class OnlineFirst:
    """Keeps the queue of a replica in order, online requests first, and takes memory from offline ones first."""

    _last: int = field(default=-1, init=False)  # order of the last arrival that is sorted in

    def sort(self, replica: Replica) -> None:
        """Let online requests that are new in the queue pass the offline ones in it; it may be long, so only the new
        ones are looked at."""
        waiting = replica.waiting
        new: list[Sequence] = []
        while waiting and waiting[-1].order > self._last:
            new.append(waiting.pop())
        if not new:
            return
        self._last = max(seq.order for seq in new)
        first = _online_ahead(replica)
        for seq in reversed(new):
            if offline(seq):
                waiting.append(seq)
            else:
                waiting.insert(first, seq)
                first += 1

    def preempt(self, replica: Replica, batch: Batch, seq: Sequence) -> None:
        """Take the memory of an offline request; it queues behind online ones and before other offline ones."""
        replica.preempt(batch, seq)
        waiting = replica.waiting
        if waiting and waiting[0] is seq:
            waiting.popleft()
            waiting.insert(_online_ahead(replica), seq)

    def evict(self, replica: Replica, batch: Batch) -> bool:
        """Preempt the offline request admitted last; False where there is none."""
        victim = max((seq for seq in replica.holders() if offline(seq)), key=_admitted, default=None)
        if victim is not None:
            self.preempt(replica, batch, victim)
        return victim is not None

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


def _online_ahead(replica: Replica) -> int:
    return sum(1 for _ in takewhile(lambda seq: not offline(seq), replica.waiting))


def offline(seq: Sequence) -> bool:
    """Whether no one waits for its answer."""
    return seq.request.offline


def _admitted(seq: Sequence) -> int:
    return seq.admitted
