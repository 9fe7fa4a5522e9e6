"""Sarathi-Serve: stall-free batching. Decodes first, then chunks of prompts, never more than the token budget.

Source: Agrawal et al., Sarathi-Serve, OSDI 2024, algorithm 3. Blocks for the whole prompt are taken at admission, so
an admitted prompt never fails later. No request is admitted in a step that preempted. Dynamic chunks: as in
microsoft/sarathi-serve `sarathi_scheduler.py`.
"""

from dataclasses import dataclass

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, AtLeastTwo, check


@dataclass(frozen=True, slots=True)
class Sarathi:
    """`budget` tokens a step, decodes included; at most `max_seqs` running sequences (at most the budget).

    With `low` the chunk of a prompt falls from `budget` to `low` tokens, in `stages` equal steps over its first
    `span_tokens` tokens, as attention to what is stored makes later chunks dearer (multiples of 32).
    """

    budget: AtLeastOne = 512
    max_seqs: AtLeastOne = 128
    low: AtLeastOne | None = None
    stages: AtLeastTwo = 16
    span_tokens: AtLeastOne = 16384

    def __post_init__(self) -> None:
        check(self)
        if self.low is not None and self.low > self.budget:
            raise ValueError(f"low {self.low} must not exceed budget {self.budget}: chunks shrink from budget to low")
        if self.max_seqs > self.budget:
            raise ValueError(
                f"max_seqs {self.max_seqs} must not exceed budget {self.budget}: every decode is in every step"
            )

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, unfinished prompts, new prompts, under the budget."""
        budget_left = self.budget
        if replica.decoding.members:
            replica.decode(batch, self.budget)
            budget_left -= batch.decode_seqs
        if self.low is not None:
            self._shrinking(replica, batch, budget_left)
            return
        for seq in replica.prefilling:
            if budget_left == 0:
                return
            tokens = min(seq.need(), budget_left)
            replica.run(batch, seq, tokens)
            budget_left -= tokens
        if batch.preempted:
            return
        while budget_left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), budget_left)
            replica.admit(batch, tokens)
            budget_left -= tokens
        batch.repeats = True

    def _shrinking(self, replica: Replica, batch: Batch, left: int) -> None:
        """As `fill`, with chunks whose size depends on how much of their prompt has run."""
        for seq in replica.prefilling:
            tokens = min(seq.need(), left - self._below_budget(seq.computed))
            if tokens > 0:
                replica.run(batch, seq, tokens)
                left -= tokens
        if batch.preempted:
            return
        while left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        batch.repeats = True

    def _below_budget(self, computed: int) -> int:
        """Tokens by which the chunk of a prompt with `computed` tokens behind it is smaller than the budget."""
        assert self.low is not None
        stage = min(computed * self.stages // self.span_tokens, self.stages - 1)
        chunk = self.budget - stage * (self.budget - self.low) / (self.stages - 1)
        grain = min(32, self.low)
        return max(0, self.budget - round(chunk / grain) * grain)
