"""The simulator's loop one step at a time, for a driver whose clock runs by itself.

Ends of steps are absolute times that follow from one another, never from when they are polled: a driver that polls late
sees them late and nothing moves. At one instant batches are committed first, then requests arrive, then replicas form
new batches, as in `backends.sim`; equal arrivals give equal token times, bit for bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from backends.serving.batch import Batch
from backends.simulator.flow import COMMIT, ENTER, LAND, Stages
from harness.api import Request, Step

if TYPE_CHECKING:
    from backends.serving.cluster import Cluster
    from backends.serving.handoff import Outbox, Transfer
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that has ended: a request for each token at `step.end_s`, and those of them that are done.

    `started` are (request, seconds) of prompts that ran for the first time, `cached` how many tokens of each were found
    in the prefix cache, `preempted` those that lost their memory.
    """

    step: Step
    tokens: list[int]
    ended: frozenset[int]
    started: list[tuple[int, float]]
    preempted: list[int]
    cached: list[int]


class RealTime:
    """Drives a cluster; `end_s(batch, start_s)` says when a step ends. All times are those of the driver's clock.

    A request reaches its scheduler `front_s` seconds after it arrived.
    """

    def __init__(self, cluster: Cluster, end_s: Callable[[Batch, float], float], front_s: float = 0.0) -> None:
        self.cluster = cluster
        self._front_s = front_s
        self._end_s = end_s
        self._stages = [Stages(replica) for replica in cluster.replicas]
        self._arrivals: deque[tuple[float, Request]] = deque()
        self._events: list[tuple[float, int, int, int, Transfer | None]] = []  # heap of (time, what, replica, number)
        self._number = 0
        self._free: set[int] = set()  # replicas that may form a batch at this instant
        self._gone: set[int] = set()  # withdrawn, and in a step or under way between two replicas
        self._where: dict[int, int] = {}  # request id -> replica
        self._past_s = -inf

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf when nothing will."""
        arrival_s = self._arrivals[0][0] if self._arrivals else inf
        return min(arrival_s, self._events[0][0]) if self._events else arrival_s

    @property
    def waiting(self) -> int:
        """Requests that hold no memory yet, those that have only just arrived included."""
        return len(self._arrivals) + sum(len(replica.waiting) for replica in self.cluster.replicas)

    def arrive(self, request: Request, at_s: float) -> None:
        """A request arrives. Its id is new, and no replica refuses it."""
        self._past_s = max(at_s, self._past_s)
        self._arrivals.append((self._past_s + self._front_s, request))

    def withdraw(self, request_id: int) -> None:
        """A request is not wanted any more: it gets no more tokens, and is in no further step."""
        if request_id not in self._where:
            kept = (pair for pair in self._arrivals if pair[1].id != request_id)
            self._arrivals = deque(kept)
            return
        self._gone.add(request_id)
        self._drop(request_id, self._past_s)

    def advance(self, until_s: float) -> Iterator[Ran]:
        """Everything up to `until_s`, step by step; the next batches are formed when the caller comes back."""
        replicas, events = self.cluster.replicas, self._events
        while (now_s := self.next_s) <= until_s and now_s < inf:
            self._past_s = max(now_s, self._past_s)
            while events and events[0][0] == now_s:
                _, what, index, _, transfer = heappop(events)
                self._free.add(index)
                if what == COMMIT:
                    yield self._commit(replicas[index], now_s)
                elif transfer is not None:
                    self._land(transfer, now_s)
            while self._arrivals and self._arrivals[0][0] == now_s:
                self._free.add(self._add(self._arrivals.popleft()[1], now_s))
            self._form_all(now_s)

    def _add(self, request: Request, now_s: float) -> int:
        index, refusal = self.cluster.add(request, now_s)
        assert refusal is None, refusal
        self._where[request.id] = index
        return index

    def _form_all(self, now_s: float) -> None:
        """Begin the hand-offs that may begin, then the batches."""
        replicas, handoffs = self.cluster.replicas, self.cluster.handoffs
        while self._free:
            free = sorted(self._free)
            self._free.clear()
            for replica in () if handoffs is None else handoffs.decode:
                self._hand_off(replica, now_s)
            for index in sorted({*free, *self._free}):
                self._form(replicas[index], now_s)
                if replicas[index].inbox is not None:
                    self._hand_off(replicas[index], now_s)
            self._free -= {index for index in self._free if replicas[index].in_flight is not None}

    def _hand_off(self, target: Replica, now_s: float) -> None:
        assert self.cluster.handoffs is not None
        for transfer in self.cluster.handoffs.start(target, now_s):
            if transfer.end_s <= now_s:
                self._land(transfer, now_s)
            else:
                self._push(transfer.end_s, LAND, target.index, transfer)

    def _land(self, transfer: Transfer, now_s: float) -> None:
        assert self.cluster.handoffs is not None
        self.cluster.handoffs.land(transfer)
        self._where[transfer.seq.request.id] = transfer.target.index
        self._free.add(transfer.target.index)
        if transfer.source is not None:
            self._free.add(transfer.source.index)
        self._drop(transfer.seq.request.id, now_s)

    def _form(self, replica: Replica, now_s: float) -> None:
        index = replica.index
        stages = self._stages[index]
        batch = replica.schedule(now_s) if stages.free_s[0] <= now_s else None
        if batch is None:
            return
        if stages.count == 1:
            self._push(self._end_s(batch, now_s), COMMIT, index)
            return
        end_s = stages.enter(self._end_s(batch, 0.0), now_s)
        self._push(stages.free_s[0], ENTER, index)
        self._push(end_s, COMMIT, index)

    def _push(self, at_s: float, what: int, index: int, transfer: Transfer | None = None) -> None:
        self._number += 1
        heappush(self._events, (at_s, what, index, self._number, transfer))

    def _commit(self, replica: Replica, end_s: float) -> Ran:
        batch = replica.in_flight
        assert batch is not None
        lane = replica if replica.pipeline is None else replica.pipeline.oldest
        producing = list(lane.decoding) if batch.decode_seqs else []
        producing += [seq for seq, n in batch.prefills if seq.computed + n == seq.prompt + seq.emitted]
        ended = frozenset([seq.request.id for seq in replica.commit(batch, (end_s,))])
        tokens = [
            seq.request.id
            for seq in producing
            for _ in range(1 if seq.token_n is None else seq.tokens_per_stamp()[-1])  # several with drafts
        ]
        gone = self._gone
        if gone:
            tokens = [request_id for request_id in tokens if request_id not in gone]
            for request_id in [i for i in gone if self._where[i] == replica.index and i not in ended]:
                self._drop(request_id, end_s)
        for request_id in ended:
            self._where.pop(request_id, None)
            gone.discard(request_id)
        if replica.outbox is not None:
            self._offer(replica, replica.outbox)
        first = [seq for seq, _ in batch.prefills if seq.prefill_start_s == batch.start_s]
        return Ran(
            _step(batch, end_s),
            tokens,
            ended,
            [(seq.request.id, batch.start_s) for seq in first],
            [seq.request.id for seq in batch.preempted],
            [seq.cached_tokens or 0 for seq in first],
        )

    def _offer(self, source: Replica, outbox: Outbox) -> None:
        assert self.cluster.handoffs is not None
        for seq in outbox.fresh:
            self.cluster.handoffs.offer(seq, source)
        outbox.fresh.clear()

    def _drop(self, request_id: int, now_s: float) -> None:
        """Cancel a request that was withdrawn, if it is neither in a step nor on its way to another replica."""
        if request_id not in self._gone:
            return
        replica = self.cluster.replicas[self._where[request_id]]
        if replica.runs(request_id):
            return
        if replica.cancel(request_id, now_s) is not None:
            del self._where[request_id]
            self._gone.discard(request_id)

    def check(self) -> None:
        """Integrity of the replicas."""
        self.cluster.check()

    def __repr__(self) -> str:
        return f"<RealTime next at {self.next_s:.6f} s, {self.cluster!r}>"


def _step(batch: Batch, end_s: float) -> Step:
    prefill_tokens = batch.prefill_tokens if batch.loads else 0
    return Step(
        batch.replica, batch.start_s, end_s, prefill_tokens, batch.decode_seqs, batch.context_tokens, batch.waiting,
        batch.running, batch.free_blocks,
    )  # fmt: skip
