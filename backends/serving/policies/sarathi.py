"""Sarathi-Serve: stall-free batching. Decodes first, then chunks of prompts, never more than the token budget.

Source: Agrawal et al., Sarathi-Serve, OSDI 2024, algorithm 3. Blocks for the whole prompt are taken at admission, so
an admitted prompt never fails later. Nobody is admitted in a step that preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving._checks import at_least

if TYPE_CHECKING:
    from backends.serving.batch import Batch
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Sarathi:
    """`budget` tokens a step, decodes included; at most `max_seqs` running sequences (at most the budget)."""

    budget: int = 512
    max_seqs: int = 128

    def __post_init__(self) -> None:
        at_least("budget", self.budget)
        at_least("max_seqs", self.max_seqs)
        if self.max_seqs > self.budget:
            raise ValueError(
                f"max_seqs {self.max_seqs} must not exceed budget {self.budget}: every decode is in every step"
            )

    @property
    def pads(self) -> bool:
        """False: a finished row leaves at once."""
        return False

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  prompts are cut into chunks
        """None: memory is the only limit."""
        return None

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, unfinished prompts, new prompts, under the budget."""
        left = self.budget
        if replica.decoding.members:
            replica.decode(batch)
            left -= batch.decode_seqs
        for seq in replica.prefilling:
            if left == 0:
                return
            tokens = min(seq.need(), left)
            replica.run(batch, seq, tokens)
            left -= tokens
        if batch.preempted:
            return
        while left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        batch.repeats = True
