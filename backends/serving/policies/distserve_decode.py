"""DistServe's decode scheduler: every sequence that was handed on decodes in every step, in order of arrival.

Source: LLMServe/DistServe @82831f1, distserve/decoding_stage_scheduler.py (1,024 sequences a batch). Sequences that
lost their memory come first; what is computed again runs alone.
"""

from dataclasses import dataclass

from backends.serving._checks import at_least
from backends.serving.batch import Batch
from backends.serving.replica import Replica, Role


@dataclass(frozen=True, slots=True)
class DistserveDecode:
    """At most `max_seqs` sequences decode at a time."""

    max_seqs: int = 1024

    def __post_init__(self) -> None:
        at_least("max_seqs", self.max_seqs)

    @property
    def serves(self) -> Role:
        """Replicas for decode alone."""
        return "decode"

    def has_room(self, replica: Replica) -> bool:
        """Whether one more sequence may decode."""
        return replica.running < self.max_seqs

    def fill(self, replica: Replica, batch: Batch) -> None:
        """What lost its memory is computed again when there is room; else all decodes."""
        while replica.waiting and self.has_room(replica) and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
