"""The simulator's loop one step at a time, for a driver whose clock runs by itself.

Ends of steps are absolute times that follow from one another, never from when somebody looked: a driver that looks late
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

from harness.api import Step

if TYPE_CHECKING:
    from backends.serving.batch import Batch
    from backends.serving.cluster import Cluster
    from backends.serving.replica import Replica
    from backends.serving.sequence import Sequence
    from harness.api import Request


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that has ended: a request for each token at `step.end_s`, and those of them that are done.

    `started` are (request, seconds) of prompts that ran for the first time, `cached` how many tokens of each were found
    in the prefix cache, `preempted` who lost their memory.
    """

    step: Step
    tokens: list[int]
    ended: frozenset[int]
    started: list[tuple[int, float]]
    preempted: list[int]
    cached: list[int]


class RealTime:
    """Drives a cluster; `end_s(batch, start_s)` says when a step ends. All times are those of the driver's clock."""

    def __init__(self, cluster: Cluster, end_s: Callable[[Batch, float], float]) -> None:
        self.cluster = cluster
        self._end_s = end_s
        self._arrivals: deque[tuple[float, Request]] = deque()
        self._ending: list[tuple[float, int]] = []  # heap of (end, replica) of the batches in flight
        self._withdrawn: list[list[int]] = [[] for _ in cluster.replicas]  # leave when the step in flight has ended
        self._where: dict[int, int] = {}  # request id -> replica
        self._past_s = -inf

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf when nothing will."""
        arrival_s = self._arrivals[0][0] if self._arrivals else inf
        return min(arrival_s, self._ending[0][0]) if self._ending else arrival_s

    @property
    def waiting(self) -> int:
        """Requests that hold no memory yet, those that have only just arrived included."""
        return len(self._arrivals) + sum(len(replica.waiting) for replica in self.cluster.replicas)

    def arrive(self, request: Request, at_s: float) -> None:
        """A request arrives. Its id is new, and no replica refuses it."""
        self._past_s = max(at_s, self._past_s)
        self._arrivals.append((self._past_s, request))

    def withdraw(self, request_id: int) -> None:
        """A request is not wanted any more: it gets no more tokens, and is in no further step."""
        index = self._where.pop(request_id, None)
        if index is None:
            kept = (pair for pair in self._arrivals if pair[1].id != request_id)
            self._arrivals = deque(kept)
        elif self.cluster.replicas[index].in_flight is None:
            self.cluster.replicas[index].cancel(request_id, self._past_s)
        else:
            self._withdrawn[index].append(request_id)

    def advance(self, until_s: float) -> Iterator[Ran]:
        """Everything up to `until_s`, step by step; the next batches are formed when the caller comes back."""
        replicas = self.cluster.replicas
        while (now_s := self.next_s) <= until_s and now_s < inf:
            self._past_s = max(now_s, self._past_s)
            free: set[int] = set()
            while self._ending and self._ending[0][0] == now_s:
                index = heappop(self._ending)[1]
                free.add(index)
                yield self._commit(replicas[index], now_s)
            while self._arrivals and self._arrivals[0][0] == now_s:
                free.add(self._add(self._arrivals.popleft()[1], now_s))
            for index in sorted(free):
                self._form(replicas[index], now_s)

    def _add(self, request: Request, now_s: float) -> int:
        index, refusal = self.cluster.add(request, now_s)
        assert refusal is None, refusal
        self._where[request.id] = index
        return index

    def _form(self, replica: Replica, now_s: float) -> None:
        batch = replica.schedule(now_s)
        if batch is not None:
            heappush(self._ending, (self._end_s(batch, now_s), replica.index))

    def _commit(self, replica: Replica, end_s: float) -> Ran:
        batch = replica.in_flight
        assert batch is not None
        producing = _producing(replica, batch)
        ended = frozenset([seq.request.id for seq in replica.commit(batch, (end_s,))])
        tokens = [seq.request.id for seq in producing for _ in range(_said(seq))]
        gone, self._withdrawn[replica.index] = self._withdrawn[replica.index], []
        for request_id in gone:
            replica.cancel(request_id, end_s)
        for request_id in ended:
            self._where.pop(request_id, None)
        first = [seq for seq, _ in batch.prefills if seq.prefill_start_s == batch.start_s]
        return Ran(
            _step(batch, end_s),
            tokens if not gone else [i for i in tokens if i not in gone],
            ended,
            [(seq.request.id, batch.start_s) for seq in first],
            [seq.request.id for seq in batch.preempted],
            [seq.cached_tokens or 0 for seq in first],
        )

    def check(self) -> None:
        """Integrity of the replicas."""
        self.cluster.check()

    def __repr__(self) -> str:
        return f"<RealTime next at {self.next_s:.6f} s, {self.cluster!r}>"


def _producing(replica: Replica, batch: Batch) -> list[Sequence]:
    """Sequences that this batch gives a token: all that decode, and the prompts that it completes."""
    decodes = list(replica.decoding) if batch.decode_seqs else []
    return decodes + [seq for seq, n in batch.prefills if seq.computed + n == seq.prompt + seq.emitted]


def _said(seq: Sequence) -> int:
    """Tokens of a sequence that came out in the step just committed: one, or several with drafts."""
    return 1 if seq.token_n is None else seq.tokens_per_stamp()[-1]


def _step(batch: Batch, end_s: float) -> Step:
    prefill_tokens = batch.prefill_tokens if batch.loads else 0
    return Step(
        batch.replica, batch.start_s, end_s, prefill_tokens, batch.decode_seqs, batch.context_tokens, batch.waiting,
        batch.running, batch.free_blocks,
    )  # fmt: skip
