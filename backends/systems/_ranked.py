"""Seats for the best: what policies have in common that rank sequences and let the best ones run.

Every `interval` steps all are ranked anew and the best `max_seqs` get a seat; others that decode sit out with their
memory until it is needed. In between, a seat that falls free goes to the best of those without one. Prompts run in
chunks, and one that has begun goes on.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import chain

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, check

Rank = tuple[float, int]
"""The lowest goes first; the second is `Sequence.order`, so that no two are equal."""
Ranks = dict["Sequence", Rank]
Choose = Callable[[Ranks, int], ListOf["Sequence"]]
"""Who of all that are ranked gets one of so many seats."""


def best(ranks: Ranks, seats: int) -> ListOf[Sequence]:
    """The first in rank."""
    return sorted(ranks, key=ranks.__getitem__)[:seats]


@dataclass(slots=True)
class Seats:
    """At most `max_seqs` sequences run in a step of `budget` tokens, and `max_evicted` lose their memory to others."""

    budget: AtLeastOne
    max_seqs: AtLeastOne
    interval: AtLeastOne
    max_evicted: int = 8
    steps: int = field(default=0, init=False)  # since all were ranked
    ranks: Ranks = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        check(self)
        if self.max_seqs > self.budget:
            raise ValueError(f"max_seqs {self.max_seqs} must not exceed budget {self.budget}: a decode is one token")

    def fill(
        self, replica: Replica, batch: Batch, rank: Callable[[ListOf[Sequence]], Ranks], choose: Choose = best
    ) -> None:
        """Fill the batch; `rank` ranks sequences, all of them or those that are new."""
        self._seat(replica, rank, choose)
        self._make_room(replica, batch)
        self._fill_seats(replica, batch)
        preempted = len(batch.preempted)
        if replica.decoding.members:
            replica.decode(batch, self.budget)
        budget_left = replica.run_chunks(batch, max(0, self.budget - batch.decode_seqs))
        if len(batch.preempted) > preempted:
            return
        while budget_left and replica.waiting and self._free(replica) and replica.admissible():
            tokens = min(replica.waiting[0].need(), budget_left)
            replica.admit(batch, tokens)
            budget_left -= tokens
        settled = not batch.preempted and not (replica.parked and self._free(replica))
        batch.repeats = self.interval - self.steps if settled else False

    def _free(self, replica: Replica) -> int:
        return self.max_seqs - len(replica.prefilling) - len(replica.decoding)

    def _seat(self, replica: Replica, rank: Callable[[ListOf[Sequence]], Ranks], choose: Choose) -> None:
        """Rank all, or those that are new; of those that decode the ones without a seat sit out."""
        decoding = replica.decoding
        if self.steps >= self.interval:
            self.steps = 0
            self.ranks = rank([*decoding, *replica.parked, *replica.waiting])
            seated = dict.fromkeys(choose(self.ranks, max(0, self.max_seqs - len(replica.prefilling))))
            for seq in [seq for seq in decoding if seq not in seated]:
                replica.park(seq)
            for seq in [seq for seq in seated if seq in replica.parked]:
                replica.unpark(seq)
            replica.order_waiting(self.ranks.__getitem__)
            return
        ranks = self.ranks
        new = [seq for seq in chain(decoding, replica.parked, replica.waiting) if seq not in ranks]
        if new:
            ranks |= rank(new)
            replica.order_waiting(ranks.__getitem__)
        if self._free(replica) < 0:  # some came from another replica, or from the host
            for seq in sorted(decoding, key=ranks.__getitem__)[self._free(replica) :]:
                replica.park(seq)

    def _make_room(self, replica: Replica, batch: Batch) -> None:
        """Take memory from the last in rank, those that sit out before those that decode, until the decodes fit."""
        decoding, blocks, ranks = replica.decoding, replica.blocks, self.ranks
        if replica.drafts is not None:
            replica.drafts.plan(len(decoding), blocks.free)  # drafts never preempt
        while decoding.blocks_needed() > blocks.free:
            replica.preempt(batch, max(replica.parked or decoding, key=ranks.__getitem__))
            replica.order_waiting(ranks.__getitem__)

    def _fill_seats(self, replica: Replica, batch: Batch) -> None:
        """Free seats go to those that sit out and rank before the queue; to all of them where it cannot be admitted."""
        parked, waiting, ranks = replica.parked, replica.waiting, self.ranks
        if not parked:
            return
        ranked = sorted(parked, key=ranks.__getitem__)
        for seq in [seq for seq in ranked if not waiting or ranks[seq] < ranks[waiting[0]]][: self._free(replica)]:
            replica.unpark(seq)
        if parked and self._free(replica) and not self._head_fits(replica, batch):
            for seq in sorted(parked, key=ranks.__getitem__)[: self._free(replica)]:
                replica.unpark(seq)

    def _head_fits(self, replica: Replica, batch: Batch) -> bool:
        """Whether the head of the queue is admissible, once those that sit out and rank after it have lost memory."""
        ranks, waiting = self.ranks, replica.waiting
        for _ in range(self.max_evicted):
            last = max(replica.parked, key=ranks.__getitem__, default=None)
            if replica.admissible() or last is None or ranks[last] < ranks[waiting[0]]:
                break
            if replica.swap is not None and len([*replica.holders()]) == 1:
                break  # who is swapped out comes back in a later step, and there would be none
            replica.preempt(batch, last)
            replica.order_waiting(ranks.__getitem__)
        return replica.admissible()
