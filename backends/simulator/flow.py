"""The driver of simulated clusters: latency models say how long batches take, and what ends becomes a record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from backends.serving.loop import Loop
from backends.simulator.loop import Arrivals, record_of, rejected, step_ends
from harness.api import FollowUps, Request, RequestRecord

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.cluster import Cluster
    from backends.serving.replica import Replica
    from backends.simulator.step_log import StepLog


class Flow:
    """One simulation: the driver of its loop, whose results are records."""

    def __init__(
        self,
        cluster: Cluster,
        steps: StepLog | None,
        requests: Iterable[Request],
        follow_ups: FollowUps | None,
        *,
        leap: bool,
    ) -> None:
        self.results: deque[RequestRecord] = deque()
        self._members = cluster.members
        self._arrivals = Arrivals(iter(requests))
        self._follow_ups = follow_ups
        log = None if steps is None else steps.append
        self.loop = Loop(cluster, self, self._arrivals, log, leap=leap, coupled=follow_ups is not None)

    def records(self) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end."""
        self.loop.begin(0.0)
        for record in self.loop.advance():
            yield record
            if self._follow_ups is not None:
                self._arrivals.add(self._follow_ups(record), self.loop.now_s)

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> list[float]:
        """Ends of its steps by the latency model of the replica."""
        model = self._members[replica.index].model
        assert model is not None
        return step_ends(model, batch, now_s, horizon_s)

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:
        """Record a sequence that is over."""
        self.results.append(record_of(seq, replica, error, now_s))

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:
        """Record a request that is not served."""
        record = rejected(request, reason, replica)
        if now_s > request.scheduled_s:
            record.ended_s = now_s
        self.results.append(record)
