"""Backlog: an autoscaler that adds a replica while requests queue, and gives one up after a while without a queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.serving.routing import Action, ClusterView, Decision, Drain, Hold, ReplicaView, Requirements, Scale, Send

if TYPE_CHECKING:
    from backends.serving.batch import VisibleRequest


@dataclass(slots=True)
class Backlog:
    """Up by one where more than `queue` requests wait per replica, down by one after `calm_s` without any (seconds)."""

    queue: float = 2.0
    most: int = 8
    load_s: float = 30.0
    calm_s: float = 60.0
    tick_s: float = 5.0
    report_s: float = 0.0
    _ready_s: float = field(default=0.0, init=False)  # when the last one that was added is up
    _queued_s: float | None = field(default=None, init=False)  # when a request was last seen waiting

    @property
    def requires(self) -> Requirements:
        """A cluster that can grow."""
        return Requirements(scales=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:  # noqa: ARG002
        """The open replica with the fewest requests; held while there is none."""
        replicas = view.open()
        return Send(min(replicas, key=_requests).index) if replicas else Hold()

    def tick(self, now_s: float, view: ClusterView) -> Iterator[Action]:
        """One replica more, or one fewer, or neither."""
        replicas = view.open()
        waiting = sum(replica.waiting for replica in replicas)
        if waiting or self._queued_s is None:
            self._queued_s = now_s
        if now_s < self._ready_s:
            return  # one is loading its weights, and may be enough
        if waiting > self.queue * len(replicas) and len(replicas) < self.most:
            self._ready_s = now_s + self.load_s
            yield Scale("mixed", self.load_s)
        elif len(replicas) > 1 and now_s - self._queued_s >= self.calm_s:
            self._queued_s = now_s  # the next one goes after another calm while
            yield Drain(min(replicas, key=_requests).index)


def _requests(replica: ReplicaView) -> int:
    return replica.waiting + replica.running
