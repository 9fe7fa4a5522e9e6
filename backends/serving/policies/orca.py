"""Orca: iteration-level batching. The batch is formed anew every step; whole prompts join running decodes.

Source: Yu et al., Orca, OSDI 2022 (selection FCFS, at most `max_batch` sequences); memory mode of the paper:
reserve_max.
"""

from dataclasses import dataclass

from backends.serving._checks import at_least
from backends.serving.batch import Batch
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Orca:
    """At most `max_batch` sequences at a time."""

    max_batch: int = 16

    def __post_init__(self) -> None:
        at_least("max_batch", self.max_batch)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, then whole prompts in order of arrival."""
        if replica.decoding.members:
            replica.decode(batch)
        while replica.waiting and not batch.preempted and replica.running < self.max_batch and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        batch.repeats = not batch.preempted
