"""The stages of a pipeline as a driver sees them, and what may happen at one instant."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.serving.replica import Replica

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
        alone = pipeline is None or pipeline.in_flight == 1  # nobody is before it: what stood idle stood empty
        for i, free_s in enumerate(self.free_s):
            start_s = max(now_s, free_s)
            if not alone:
                self.bubble_s += start_s - free_s
            self.free_s[i] = now_s = start_s + stage_s
        self.busy_s += self.count * stage_s
        return now_s
