"""The driver of simulated clusters: latency models say how long batches take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from backends.serving.loop import Loop
from backends.simulator.ended import EndedSequence, rejected
from backends.simulator.loop import NO_FRONT_END, Arrivals, FrontEnd, step_ends
from harness.api import FollowUps, Request

if TYPE_CHECKING:
    from backends.serving.batch import Batch, Sequence
    from backends.serving.cluster import Cluster
    from backends.serving.replica import Replica
    from backends.simulator.step_log import StepLog


class Flow:
    """One simulation: the driver of its loop, whose results are what ends."""

    def __init__(
        self,
        cluster: Cluster,
        steps: StepLog | None,
        requests: Iterable[Request],
        follow_ups: FollowUps | None,
        *,
        leap: bool,
        front: FrontEnd = NO_FRONT_END,
    ) -> None:
        self.results: deque[EndedSequence] = deque()
        self._members = cluster.members
        self._arrivals = Arrivals(iter(requests), front=front)
        self._follow_ups = follow_ups
        log = None if steps is None else steps.append
        self.loop = Loop(cluster, self, self._arrivals, log, leap=leap, coupled=follow_ups is not None)

    def ended(self) -> Iterator[EndedSequence]:
        """What ends, in this order."""
        self.loop.begin(0.0)
        for ended in self.loop.advance():
            yield ended
            if self._follow_ups is not None:
                self._arrivals.add(self._follow_ups(ended.record()), self.loop.now_s)

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> list[float]:
        """Ends of its steps by the latency model of the replica."""
        model = self._members[replica.index].model
        assert model is not None
        return step_ends(model, batch, now_s, horizon_s)

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:
        if error is None:
            self.results.append(EndedSequence(seq, replica))
        else:
            self.results.append(EndedSequence(seq, replica, "error", error, now_s))

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:
        self.results.append(rejected(request, reason, replica, now_s))
