"""The short policies, a class each."""

from dataclasses import dataclass

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked


@dataclass(frozen=True, slots=True)
class Orca(Checked):
    """Orca: iteration-level batching. The batch is formed anew every step; whole prompts join running decodes.

    Source: Yu et al., Orca, OSDI 2022 (selection FCFS, at most `max_batch` sequences); memory mode of the paper:
    reserve_max.

    At most `max_batch` sequences at a time.
    """

    max_batch: AtLeastOne = 16

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, then whole prompts in order of arrival."""
        if replica.decoding.members:
            replica.decode(batch)
        while replica.waiting and not batch.preempted and replica.running < self.max_batch and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class Static(Checked):
    """Static (request-level) batching: take up to `batch` requests, run them to their end, admit none meanwhile.

    Source: FasterTransformer style, as drawn in Yu et al., Orca, OSDI 2022. With `pad` short prompts are padded to the
    longest of the batch and finished rows stay, at their cost, until the last one ends.

    Batches of at most `batch` requests.
    """

    batch: AtLeastOne = 16
    pad: bool = True

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
