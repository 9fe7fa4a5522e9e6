"""Infinite-LLM: the KV memory of all replicas as one; a long request uses that of others.

Source: Lin et al., Infinite-LLM, arXiv 2401.02669: blocks of KV may lie on any replica, attention is computed where
they are and merged (DistAttention); a manager with a ledger lends what is free, and who owes memory lends none. It
claims contexts 2x to 19x as long, and 1.03x to 2.4x the throughput.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from backends.serving.batch import VisibleRequest
from backends.serving.routing import (
    Action,
    ClusterView,
    Decision,
    FinishedRequest,
    Hold,
    Lend,
    Reject,
    ReplicaView,
    Requirements,
    Send,
)
from harness.api import Row
from harness.bounds import AtLeastOne, Checked, PartialShare, Positive


@dataclass(slots=True)
class PooledRouter(Checked):
    """Memory pooled over replicas: who has no room for a request borrows blocks of others, and gives them back.

    Every `tick_s` seconds a request that fits no replica (its prompt and `answer_tokens`), or the head of a queue that
    finds no room, gets what is missing from the replicas with the most free memory and no queue; none lends more than
    the share `lends` of its own memory. Others go where the fewest requests are. Each step of a debtor waits for
    attention on the others: the latency of the link once a layer, and for each row of the batch its queries and partial
    results. Reading KV costs what it costs in memory of its own.
    """

    tick_s: Positive = 0.1
    lends: PartialShare = 0.9
    answer_tokens: AtLeastOne = 1024
    report_s: float = 0.0
    _own: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # blocks by replica
    _long: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)  # request id: debtor
    _debts: dict[tuple[int, int], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def requires(self) -> Requirements:
        """Replicas alike, which can lend."""
        return Requirements("mixed", lends=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:  # noqa: ARG002
        """Where it fits and the fewest requests are; a long one waits for what it has to borrow."""
        replicas = self._seen(view)
        fits = [r for r in replicas if self._needs(request, r) <= r.total_blocks]
        if fits:
            replica = min(fits, key=lambda r: (r.requests, r.index))
            if self._needs(request, replica) > self._own[replica.index]:
                self._long[request.id] = replica.index
            return Send(replica.index)
        if not replicas or self._needs(request, replicas[0]) > max(map(self._most, replicas)):
            return Reject("its KV exceeds what all replicas lend together")
        return Hold(on_change=True)

    def tick(self, now_s: float, view: ClusterView) -> Iterator[Action]:  # noqa: ARG002  what is free decides
        """Give back what is not needed, then borrow for the first that is held, or for a queue without room."""
        replicas = {replica.index: replica for replica in self._seen(view)}
        free = {index: replica.free_blocks for index, replica in replicas.items()}
        for (index, creditor), blocks in list(self._debts.items()):
            if index in free and not replicas[index].waiting and index not in self._long.values():
                yield from self._lend(index, creditor, min(blocks, free[index]), free)
        if view.held and replicas:
            request = view.held[0]
            debtor = max(replicas.values(), key=lambda r: (r.total_blocks - r.requests, -r.index))
            yield from self._borrow(debtor, self._needs(request, debtor) - debtor.total_blocks, replicas, free)
        for debtor in replicas.values():
            if debtor.waiting and (missing := -(-debtor.head_tokens // debtor.block_tokens) - debtor.free_blocks) > 0:
                yield from self._borrow(debtor, missing, replicas, free)

    def on_finish(self, finished: FinishedRequest) -> None:
        """Its debtor may give back."""
        self._long.pop(finished.request.id, None)

    def _borrow(
        self, debtor: ReplicaView, missing: int, replicas: dict[int, ReplicaView], free: dict[int, int]
    ) -> Iterator[Action]:
        """All that is missing, from those with the most free memory first; else nothing."""
        owing = {index for index, _ in self._debts}
        if any(creditor == debtor.index for _, creditor in self._debts):
            return  # who has lent memory borrows none
        room: dict[int, int] = {}
        for index, replica in replicas.items():
            if index != debtor.index and index not in owing and not replica.waiting:
                lent = self._own[index] - replica.total_blocks
                room[index] = max(0, min(free[index], int(self.lends * self._own[index]) - lent))
        if 0 < missing <= sum(room.values()):
            for index in sorted(room, key=lambda index: -room[index]):
                blocks = min(missing, room[index])
                missing -= blocks
                yield from self._lend(index, debtor.index, blocks, free)

    def _lend(self, source: int, target: int, blocks: int, free: dict[int, int]) -> Iterator[Action]:
        if blocks > 0:
            free[source] -= blocks
            sign, pair = (-1, (source, target)) if (source, target) in self._debts else (1, (target, source))
            self._debts[pair] = self._debts.get(pair, 0) + sign * blocks
            if not self._debts[pair]:
                del self._debts[pair]
            yield Lend(source, target, blocks)

    def _seen(self, view: ClusterView) -> list[ReplicaView]:
        """The replicas that are open; what each has is its own when it is first seen."""
        for replica in view.open():
            self._own.setdefault(replica.index, replica.total_blocks)
        return view.open()

    def _needs(self, request: VisibleRequest, replica: ReplicaView) -> int:
        return -(-(request.prompt_tokens + self.answer_tokens) // replica.block_tokens)

    def _most(self, replica: ReplicaView) -> int:
        """Blocks that it has with all that others can lend."""
        return self._own[replica.index] + sum(
            int(self.lends * blocks) for index, blocks in self._own.items() if index != replica.index
        )


def pooled_context(replicas: int = 8, lends: float = 0.9) -> list[Row]:
    """How many times as long a context may be where a request borrows memory.

    Source: Infinite-LLM, arXiv 2401.02669: its own memory, and the share `lends` of that of each other replica.
    """
    return [{"factor": 1 + (replicas - 1) * lends}]
