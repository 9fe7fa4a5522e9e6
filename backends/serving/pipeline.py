"""Several batches in flight on one replica: as many as it has pipeline stages, or lanes on shares of its GPUs.

Each batch belongs to a lane, which has sequences of its own, so a sequence is in one batch at a time. Lanes are
replicas that share memory, queue and whatever else there is one of; the replica in front of them passes the calls of
the driver on. On stages lanes take turns, and batches leave in the order in which they entered. On shares of the GPUs
lanes have roles, and a batch goes slower while another one is under way.
Source: Agrawal et al., Sarathi-Serve, OSDI 2024, section 3.3; Zhong et al., DistServe, OSDI 2024 (disjoint batches);
the paper on semi-PD, infinigence/Semi-PD (shares).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from backends.serving.batch import Batch
from backends.serving.handoff import Inbox, Outbox

if TYPE_CHECKING:
    from backends.serving.batch import Sequence
    from backends.serving.plugins import Sharing
    from backends.serving.replica import Replica


class Pipeline:
    """The lanes behind the replica `front`, which has none of the running sequences itself.

    With `sharing` they run on shares of its GPUs, else on its stages.
    """

    __slots__ = ("_flying", "_turn", "front", "lanes", "sharing")

    def __init__(self, front: Replica, lanes: ListOf[Replica], sharing: Sharing | None = None) -> None:
        self.front = front
        self.lanes = lanes
        self.sharing = sharing
        self._turn = 0
        self._flying: deque[tuple[Replica, Batch]] = deque()  # oldest first
        front.pipeline = self
        for lane in lanes:
            lane.pipeline = self
            lane.index, lane.journal = front.index, None
            lane.share_rule(front)
        self.share()

    def share(self) -> None:
        """Lanes have what there is one of; no batch is in flight."""
        self._flying.clear()
        front = self.front
        for lane in self.lanes:
            lane.waiting, lane.blocks, lane.cache, lane.swap = front.waiting, front.blocks, front.cache, front.swap
            lane.adapters, lane.inbox, lane.outbox, lane.whole = front.adapters, front.inbox, front.outbox, front.whole
        if self.sharing is not None:
            for lane in self.lanes[1:]:
                lane.role, lane.inbox, lane.outbox = "prefill", Inbox(), Outbox()

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    @property
    def oldest(self) -> Replica:
        """The lane whose batch is the next to leave."""
        return self._flying[0][0]

    def leaves_next(self, lane: int) -> None:
        """The batch of this lane is the next to leave."""
        while self.oldest is not self.lanes[lane]:
            self._flying.rotate(-1)
        self.front.in_flight = self._flying[0][1]

    def decodes(self, lane: Replica) -> bool:
        """Whether sequences decode in this lane."""
        return self.sharing is None or lane is self.lanes[0]

    def runs(self, request_id: int) -> bool:
        """Whether the request is in a batch in flight, or may be."""
        return any(seq._request.id == request_id for lane, _ in self._flying for seq in lane.holders())

    def schedule(self, now_s: float) -> Batch | None:
        """The next batch of the first lane in turn that has one; None where all are in flight or have nothing to do."""
        front, lanes = self.front, self.lanes
        if front.journal is not None:
            front.journal.call("schedule", now_s)
        # In turn from the lane after the last one: the first would else go before the others each time.
        for i in range(len(lanes)):
            turn = (self._turn + i) % len(lanes)
            lane = lanes[turn]
            if lane.in_flight is None and (batch := lane.schedule(now_s)) is not None:
                if self.sharing is None:
                    self._turn = turn + 1
                else:
                    batch.lane = turn
                batch.steps = 1  # the other lanes come between
                batch.running = front.running
                self._flying.append((lane, batch))
                front.in_flight = self._flying[0][1]
                if front.journal is not None:
                    front.journal.batch(batch, lane.decoding)
                return batch
        return None

    def commit(self, batch: Batch, end_s: ListOf[float]) -> list[Sequence]:
        """The next batch to leave has left. Returns what is done."""
        front = self.front
        assert batch is front.in_flight
        if front.journal is not None:
            front.journal.call("commit", end_s[-1], end_s=end_s, lane=batch.lane)
        lane, _ = self._flying.popleft()
        front.in_flight = self._flying[0][1] if self._flying else None
        done = lane.commit(batch, end_s)
        if self.sharing is not None:
            for seq in lane.outbox.fresh:  # its memory stays where it is
                lane.outbox.back(seq)
                front.inbox.held += seq.blocks
                front.inbox.landed.append(seq)
            lane.outbox.fresh.clear()
        front.prompt_tokens += lane.prompt_tokens  # a lane only counts off
        lane.prompt_tokens = 0
        return done

    def withdraw(self, request_id: int) -> Sequence | None:
        """Drop a sequence wherever it is."""
        front = self.front
        assert not self.runs(request_id)
        for lane in self.lanes:
            if any(seq._request.id == request_id for seq in lane.all_here()):
                seq = lane.withdraw_here(request_id)
                front.prompt_tokens += lane.prompt_tokens
                lane.prompt_tokens = 0
                return seq
        return None

    def holders(self) -> Iterator[Sequence]:
        """The sequences that hold memory, of all lanes."""
        return chain.from_iterable(lane.holders() for lane in self.lanes)

    def check(self) -> None:
        """Integrity: every block belongs to a sequence of some lane or is free."""
        front = self.front
        assert not any(True for _ in front.holders())
        assert len(self._flying) == sum(lane.in_flight is not None for lane in self.lanes)
        seen = [seq._request.id for seq in self.holders()]
        assert len(seen) == len(set(seen)), "a sequence is in two lanes"
        for lane in self.lanes:
            lane.decoding.check()
        if not self._flying:
            held = sum(lane.held_blocks() for lane in self.lanes) + front.held_on_the_way()
            held += front.shared_blocks()
            assert held + front.blocks.free == front.blocks.total, (held, front.blocks)


class Shares:
    """The batches under way on shares of the GPUs of a replica, each timed anew whenever one begins or ends."""

    __slots__ = ("_left_s", "_rates", "_sharing", "_since_s", "end_s", "lane")

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._left_s: dict[int, float] = {}  # lane: seconds of work at full speed
        self._rates: ListOf[float] = ()  # in the same order
        self._since_s = 0.0
        self.end_s: list[float] | None = (
            None  # of the next batch to end, as things stand; a new list whenever they change
        )
        self.lane = 0  # its lane

    def begin(self, lane: int, work_s: float, now_s: float) -> None:
        """A batch begins that would take `work_s` alone on all GPUs."""
        self._pass(now_s)
        self._left_s[lane] = work_s
        self._time()

    def end(self) -> None:
        """The batch that ends next has ended."""
        assert self.end_s is not None
        self._pass(self.end_s[0])
        del self._left_s[self.lane]
        self._time()

    def _pass(self, now_s: float) -> None:
        for lane, rate in zip(self._left_s, self._rates, strict=True):
            self._left_s[lane] = max(0.0, self._left_s[lane] - rate * (now_s - self._since_s))
        self._since_s = now_s

    def _time(self) -> None:
        self._rates, self.end_s = self._sharing.rates(list(self._left_s)), None
        if self._left_s:
            ends = zip(self._left_s.items(), self._rates, strict=True)
            end_s, self.lane = min((self._since_s + left_s / rate, lane) for (lane, left_s), rate in ends)
            self.end_s = [end_s]


class Stages:
    """The pipeline stages of a replica: when each is free for its next batch, and how long it stood idle in between.

    One stage, and `shares`, where it has lanes on shares of its GPUs.
    """

    __slots__ = ("_replica", "bubble_s", "busy_s", "count", "free_s", "shares")

    def __init__(self, replica: Replica) -> None:
        pipeline = replica.pipeline
        self._replica = replica
        self.shares = None if pipeline is None or pipeline.sharing is None else Shares(pipeline.sharing)
        self.count = 1 if pipeline is None or self.shares is not None else len(pipeline.lanes)
        self.free_s = [-inf] * self.count
        self.busy_s = self.bubble_s = 0.0  # of all stages together

    def enter(self, stage_s: float, now_s: float) -> float:
        """A batch that takes `stage_s` on each stage enters the first one now; when it leaves the last one."""
        pipeline = self._replica.pipeline
        only_batch = pipeline is None or pipeline.in_flight == 1  # no batch is before it: idle stages were empty
        for i, free_s in enumerate(self.free_s):
            start_s = max(now_s, free_s)
            if not only_batch:
                self.bubble_s += start_s - free_s
            self.free_s[i] = now_s = start_s + stage_s
        self.busy_s += self.count * stage_s
        return now_s


def bubble_share(stages: ListOf[Stages]) -> float:
    """Of the time in which pipelines had several batches in flight, the share in which their stages stood idle."""
    bubble_s, busy_s = (sum(getattr(s, name) for s in stages) for name in ("bubble_s", "busy_s"))
    return bubble_s / (bubble_s + busy_s) if busy_s else 0.0
