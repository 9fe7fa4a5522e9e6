"""The simulator's loop for clusters whose replicas hand sequences on, or have several batches in flight.

As `backends.sim`: at one instant batches are committed first, then hand-offs land, then requests arrive, then hand-offs
begin, then replicas form new batches. Leaping and stepping give equal records here too.

The stages of a pipeline as a driver sees them, and what may happen at one instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from backends.latency.recorded import Recorded
from backends.serving.cluster import Cluster
from backends.serving.decodes import Decodes
from backends.serving.handoff import HandOffs, Transfer, arrived_prefilled
from backends.serving.replica import Replica
from backends.simulator.layout import ReplicaGroup
from backends.simulator.loop import Arrivals, record_of, rejected, step_ends
from backends.simulator.step_log import StepLog
from harness.api import FollowUps, LatencyModel, Request, RequestRecord

if TYPE_CHECKING:
    from backends.serving.replica import Replica


class Flow:
    """One simulation; `models` holds the latency model of each replica."""

    def __init__(
        self,
        cluster: Cluster,
        models: list[LatencyModel],
        steps: StepLog | None,
        requests: Iterator[Request],
        follow_ups: FollowUps | None,
        *,
        leap: bool,
    ) -> None:
        self._cluster = cluster
        self._handoffs = cluster.handoffs
        self._only_decodes = all(replica.inbox is not None for replica in cluster.replicas)
        self._models = models
        self._log = steps.append if steps is not None else None
        self._arrivals = Arrivals(requests)
        self._follow_ups = follow_ups
        self._leap = leap
        self._events: list[tuple[float, int, int, int, object]] = []  # heap of (time, what, replica, number, ...)
        self._number = 0
        self.stages = [Stages(replica) for replica in cluster.replicas]
        self._prepaid = [0] * len(cluster.replicas)  # blocks of the leap in flight that its commit will take again
        self._free: set[int] = set()  # replicas that may form a batch at this instant
        self._waiting: set[int] = set()  # decode replicas that may begin a hand-off at this instant

    @property
    def bubble_share(self) -> float:
        """Of the time in which pipelines had several batches in flight, the share in which their stages stood idle."""
        bubble_s, busy_s = (sum(getattr(s, name) for s in self.stages) for name in ("bubble_s", "busy_s"))
        return bubble_s / (bubble_s + busy_s) if busy_s else 0.0

    def records(self) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end."""
        events, arrivals = self._events, self._arrivals
        while True:
            now_s = arrivals.next_s
            if events and events[0][0] < now_s:
                now_s = events[0][0]
            if now_s == inf:
                assert not any(r.waiting for r in self._cluster.replicas), "a request can neither run nor be refused"
                assert self._handoffs is None or not self._handoffs.under_way
                return
            while events and events[0][0] == now_s:
                _, what, index, _, payload = heappop(events)
                if what == COMMIT:
                    for record in self._commit(index, payload):  # type: ignore[arg-type]  # the payload of COMMIT: step ends
                        yield record
                        self._follow(record, now_s)
                elif what == LAND:
                    self._land(payload)  # type: ignore[arg-type]  # the payload of LAND: a transfer
                else:
                    self._free.add(index)
            while arrivals.next_s == now_s:
                refused = self._arrive(arrivals.pop(), now_s)
                if refused is not None:
                    yield refused
                    self._follow(refused, now_s)
            self._form_all(now_s)

    def _commit(self, index: int, ends: list[float]) -> list[RequestRecord]:
        replica = self._cluster.replicas[index]
        batch = replica.in_flight
        assert batch is not None
        replica.blocks.free += self._prepaid[index]
        self._prepaid[index] = 0
        done = replica.commit(batch, ends)
        self._free.add(index)
        if replica.inbox is not None:
            self._waiting.add(index)
        elif self._handoffs is not None and replica.outbox is not None and replica.outbox.fresh:
            for seq in replica.outbox.fresh:
                self._waiting.add(self._handoffs.offer(seq, replica).index)
            replica.outbox.fresh.clear()
        return [record_of(seq, index) for seq in done] if done else []

    def _follow(self, record: RequestRecord, now_s: float) -> None:
        if self._follow_ups is not None:
            self._arrivals.add(self._follow_ups(record), now_s)

    def _arrive(self, request: Request, now_s: float) -> RequestRecord | None:
        """The record of a request that is refused, or that is over as it arrives."""
        if self._only_decodes and request.output_tokens == 1 and self._cluster.refusal(request) is None:
            # its only token comes with its prompt, and decode replicas alone have nothing to do for it
            return record_of(arrived_prefilled(request, now_s), self._cluster.replicas[0].index)
        index, refusal = self._cluster.add(request, now_s)
        if refusal is not None:
            return rejected(request, refusal, index)
        if self._cluster.replicas[index].inbox is None:
            self._free.add(index)
        else:
            self._waiting.add(index)
        return None

    def _land(self, transfer: Transfer) -> None:
        assert self._handoffs is not None
        self._handoffs.land(transfer)
        if transfer.source is not None:
            self._free.add(transfer.source.index)
        self._free.add(transfer.target.index)
        self._waiting.add(transfer.target.index)

    def _form_all(self, now_s: float) -> None:
        """Begin the hand-offs that may begin, then the batches."""
        handoffs, replicas = self._handoffs, self._cluster.replicas
        if handoffs is not None and self._waiting:
            for index in sorted(self._waiting):
                self._hand_off(handoffs, replicas[index], now_s)
            self._waiting.clear()
        free = []
        for index in sorted(self._free):
            replica = replicas[index]
            # a pipeline schedules again when its first stage is free
            idle = replica.in_flight is None if replica.pipeline is None else self.stages[index].free_s[0] <= now_s
            if idle:
                free.append(index)
        self._free.clear()
        quiet = len(free)  # from there on replicas that no other one waits for
        while quiet and self._quiet(replicas[free[quiet - 1]]):
            quiet -= 1
        for place, index in enumerate(free, 1):
            self._form(replicas[index], now_s, last=place >= quiet)
        if self._free:  # what was handed on at no cost of time while batches were formed
            self._form_all(now_s)

    def _hand_off(self, handoffs: HandOffs, target: Replica, now_s: float) -> bool:
        """Whether any hand-off into `target` began."""
        if target.inbox is None or not target.inbox.offers:
            return False
        begun = handoffs.start(target, now_s)
        for transfer in begun:
            if transfer.end_s <= now_s:
                self._land(transfer)
            else:
                self._push(transfer.end_s, LAND, target.index, transfer)
        return bool(begun)

    def _form(self, replica: Replica, now_s: float, *, last: bool) -> None:
        index = replica.index
        stages = self.stages[index]
        batch = replica.schedule(now_s)
        began = self._handoffs is not None and self._hand_off(self._handoffs, replica, now_s)
        if batch is None:
            return
        if began:
            batch.steps = 1  # memory is another now, and who has landed joins the next step
        model = self._models[index]
        if stages.count > 1:
            end_s = stages.enter(step_ends(model, batch, 0.0, 0.0)[0], now_s)
            if self._log is not None:
                self._log(batch, [end_s], replica.decoding)
            self._push(stages.free_s[0], ENTER, index, None)
            self._push(end_s, COMMIT, index, [end_s])
            return
        if self._leap and last and not self._free:
            ends = step_ends(model, batch, now_s, self._horizon_s())
        else:
            ends = step_ends(model, batch, now_s, now_s)
        if self._log is not None:
            self._log(batch, ends, replica.decoding)
        decoding, taken = replica.decoding, 0
        if len(ends) > 1 and isinstance(decoding, Decodes):
            taken = decoding.blocks_after_first(len(ends))
        self._prepaid[index] = taken  # what a leap takes after its first step
        replica.blocks.free -= taken
        self._push(ends[-1], COMMIT, index, ends)

    def _quiet(self, replica: Replica) -> bool:
        """Whether the end of a batch of this replica changes nothing for others: it only decodes, nothing waits for its
        memory (which would free that of a prefill replica), and no answer brings about another request."""
        return self._follow_ups is None and replica.inbox is not None and not replica.inbox.offers

    def _horizon_s(self) -> float:
        """When the state of a replica may next be read or changed by something other than its own steps."""
        horizon_s, replicas = self._arrivals.next_s, self._cluster.replicas
        for at_s, what, index, _, _ in self._events:
            if at_s < horizon_s and not (what == COMMIT and self._quiet(replicas[index])):
                horizon_s = at_s
        return horizon_s

    def _push(self, at_s: float, what: int, index: int, payload: object) -> None:
        self._number += 1
        heappush(self._events, (at_s, what, index, self._number, payload))


def flow(
    cluster: Cluster,
    parts: tuple[ReplicaGroup, ...],
    steps: StepLog | None,
    requests: Iterable[Request],
    follow_ups: FollowUps | None,
    *,
    leap: bool,
) -> Flow:
    """The simulation of a cluster of these parts, ready to run."""
    models: list[LatencyModel] = []
    for part in parts:
        assert not isinstance(part.model, Recorded)
        models += [part.model] * part.count
    return Flow(cluster, models, steps, iter(requests), follow_ups, leap=leap)


COMMIT, LAND, ENTER = range(3)
"""A batch ends, a hand-off lands, a first stage is free again: in this order at one instant."""


class Stages:
    """The pipeline stages of a replica: when each is free for its next batch, and how long it stood idle in between."""

    __slots__ = ("_replica", "bubble_s", "busy_s", "count", "free_s")

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.count = 1 if replica.pipeline is None else len(replica.pipeline.lanes)
        self.free_s = [-inf] * self.count
        self.busy_s = self.bubble_s = 0.0  # of all stages together

    def enter(self, stage_s: float, now_s: float) -> float:
        """A batch that takes `stage_s` on each stage enters the first one now; when it leaves the last one."""
        pipeline = self._replica.pipeline
        alone = pipeline is None or pipeline.in_flight == 1  # no batch is before it: idle stages were empty
        for i, free_s in enumerate(self.free_s):
            start_s = max(now_s, free_s)
            if not alone:
                self.bubble_s += start_s - free_s
            self.free_s[i] = now_s = start_s + stage_s
        self.busy_s += self.count * stage_s
        return now_s
