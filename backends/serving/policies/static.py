"""Static (request-level) batching: take up to `batch` requests, run them to their end, admit none meanwhile.

Source: FasterTransformer style, as drawn in Yu et al., Orca, OSDI 2022. With `pad` short prompts are padded to the
longest of the batch and finished rows stay, at their cost, until the last one ends.
"""

from dataclasses import dataclass

from backends.serving._checks import at_least
from backends.serving.batch import Batch
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Static:
    """Batches of at most `batch` requests."""

    batch: int = 16
    pad: bool = True

    def __post_init__(self) -> None:
        at_least("batch", self.batch)

    @property
    def pads(self) -> bool:
        """Whether finished rows stay."""
        return self.pad

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Decode while anything runs; else the next requests in order of arrival."""
        if replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
            return
        while replica.waiting and replica.running < self.batch and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        if self.pad and batch.prefills:
            longest = max(tokens for _, tokens in batch.prefills)
            batch.loads = [(longest, seq.computed) for seq, _ in batch.prefills]
