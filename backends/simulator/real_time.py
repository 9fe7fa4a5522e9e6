"""The simulator's loop one step at a time, for a driver whose clock runs by itself.

Ends of steps are absolute times that follow from one another, never from when they are polled: a driver that polls late
sees them late and nothing moves. At one instant batches are committed first, then requests arrive, then replicas form
new batches, as in `backends.sim`; equal arrivals give equal token times, bit for bit.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING

from backends.serving.batch import Batch, Sequence
from backends.serving.loop import Loop
from backends.simulator.loop import NO_FRONT_END, FrontEnd
from harness.api import ActionEvent, Ended, Request, Step

if TYPE_CHECKING:
    from backends.serving.cluster import Cluster
    from backends.serving.replica import Replica


@dataclass(slots=True)
class Turn:
    """What one turn brought: the requests `tokens` got one each (or several, with drafts) at `at_s`: `token_ids`.

    `started` are the requests whose prompt went into a step for the first time, `cached` how many tokens of each
    were found in the prefix cache, `preempted` those that lost their memory; `running` sequences and
    `free_blocks` of `total_blocks` are what the turn left behind. `facts` are those for run.json that have changed,
    `actions` what the router of a cluster did meanwhile. The simulator has no `token_ids` and leaves out what its
    replicas tell.
    """

    at_s: float
    tokens: list[int] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    step: Step | None = None
    token_ids: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)
    actions: ListOf[ActionEvent] = ()


class Incoming:
    """Requests as they come, each at its scheduler when the front end is done with it."""

    def __init__(self, front: FrontEnd = NO_FRONT_END) -> None:
        self.over = False
        self.last_s = -inf  # when the last one came
        self._front = front
        self._queue: deque[tuple[float, Request]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def next_s(self) -> float:
        """When the next one is at its scheduler."""
        return self._queue[0][0] if self._queue else inf

    def pop(self) -> Request:
        """The next one."""
        return self._queue.popleft()[1]

    def put(self, request: Request, at_s: float) -> None:
        """A request arrives, not before the last one."""
        self.last_s = at_s
        arrived_s = at_s + self._front.request_s + self._front.token_s * request.prompt_tokens
        insort(self._queue, (arrived_s, request), key=itemgetter(0))

    def withdraw(self, request_id: int) -> bool:
        """Whether the request was still on its way; it is not any more."""
        before = len(self._queue)
        self._queue = deque(pair for pair in self._queue if pair[1].id != request_id)
        return len(self._queue) < before


class RealTime:
    """Drives a cluster; `end_s(batch, start_s)` says when a step ends. All times are those of the driver's clock."""

    def __init__(
        self, cluster: Cluster, end_s: Callable[[Batch, float], float], front: FrontEnd = NO_FRONT_END
    ) -> None:
        self.cluster = cluster
        self.results: deque[Turn] = deque()
        self._incoming = Incoming(front)
        self._end_s = end_s
        self.loop = Loop(cluster, self, self._incoming)
        self._past_s = -inf

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf when nothing will."""
        return self.loop.next_s

    @property
    def waiting(self) -> int:
        """Requests that hold no memory yet, those that have only just arrived included."""
        return (
            len(self._incoming) + len(self.loop.held) + sum(len(replica.waiting) for replica in self.cluster.replicas)
        )

    def arrive(self, request: Request, at_s: float) -> None:
        """A request arrives. Its id is new, and no replica refuses it."""
        if self._past_s == -inf:
            self.loop.begin(at_s)
        # Nothing arrives before what has been simulated already, whenever the caller took its time.
        self._past_s = max(at_s, self._past_s)
        self._incoming.put(request, self._past_s)

    def withdraw(self, request_id: int) -> None:
        """A request is not wanted any more: it gets no more tokens, and is in no further step."""
        if not self._incoming.withdraw(request_id):
            self.loop.withdraw(request_id, max(self._past_s, self.loop.now_s))

    def advance(self, until_s: float) -> Iterator[Turn]:
        """Everything up to `until_s`, step by step; the next batches are formed when the caller comes back."""
        for result in self.loop.advance(until_s):
            self._past_s = max(self._past_s, self.loop.now_s)
            yield result
        self._past_s = max(self._past_s, self.loop.now_s)
        self.loop.actions.clear()  # a server has no table of them, and may run for months

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> list[float]:  # noqa: ARG002  no leaps
        """The end of its step."""
        return [self._end_s(batch, now_s)]

    def commit(self, replica: Replica, end_s: list[float]) -> list[Sequence]:
        """Commit the batch in flight, and tell what it brought."""
        batch = replica.in_flight
        assert batch is not None
        lane = replica if replica.pipeline is None else replica.pipeline.oldest
        producing = list(lane.decoding) if batch.decode_seqs else []
        producing += [seq for seq, n in batch.prefills if seq.computed + n == seq.prompt + seq.emitted]
        done = replica.commit(batch, end_s)
        withdrawn = self.loop.withdrawn
        tokens = [
            seq.request.id
            for seq in producing
            if seq.request.id not in withdrawn
            for _ in range(seq.answers if seq.token_n is None else seq.tokens_per_stamp()[-1])  # several with drafts
        ]
        first = [seq for seq, _ in batch.prefills if seq.prefill_start_s == batch.start_s]
        at_s = end_s[-1]
        self.results.append(
            Turn(
                at_s,
                tokens,
                [Ended(seq.request.id, at_s, "ok") for seq in done],
                _step(batch, at_s),
                started=[seq.request.id for seq in first],
                cached=[seq.cached_tokens or 0 for seq in first],
                preempted=[seq.request.id for seq in batch.preempted],
            )
        )
        return done

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:  # noqa: ARG002
        """A sequence is over without a step."""
        self.results.append(Turn(now_s, ended=[Ended(seq.request.id, now_s, "error", error)]))

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:  # noqa: ARG002
        self.results.append(Turn(now_s, ended=[Ended(request.id, now_s, "rejected", reason)]))

    def check(self) -> None:
        self.cluster.check()

    def __repr__(self) -> str:
        return f"<RealTime next at {self.next_s:.6f} s, {self.cluster!r}>"


def _step(batch: Batch, end_s: float) -> Step:
    prefill_tokens = batch.prefill_tokens if batch.loads else 0
    return Step(
        batch.replica, batch.start_s, end_s, prefill_tokens, batch.decode_seqs, batch.context_tokens, batch.waiting,
        batch.running, batch.free_blocks,
    )  # fmt: skip
