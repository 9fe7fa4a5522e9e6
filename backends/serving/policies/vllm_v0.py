"""vLLM v0: whole new prompts first; running decodes stall in a step that admits one; the last-in is preempted.

Source: Kwon et al., vLLM, SOSP 2023; the "vLLM" baseline of the DistServe and Sarathi-Serve papers, with DistServe's
limits (16,384 batched tokens, 1,024 sequences).
"""

from dataclasses import dataclass

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, check


@dataclass(frozen=True, slots=True)
class VllmV0:
    """At most `max_seqs` running sequences; at most `max_batched_tokens` prompt tokens a step."""

    max_seqs: AtLeastOne = 1024
    max_batched_tokens: AtLeastOne = 16384

    def __post_init__(self) -> None:
        check(self)

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  the output does not matter
        """A prompt must fit one step; what is recomputed after preemption may be longer and then runs alone."""
        if prompt > self.max_batched_tokens:
            return f"a prompt of {prompt} tokens exceeds max_batched_tokens {self.max_batched_tokens}"
        return None

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts if any can be admitted, else all decodes."""
        tokens = 0
        waiting = replica.waiting
        while waiting and replica.running < self.max_seqs and replica.admissible():
            need = waiting[0].need()
            if tokens and tokens + need > self.max_batched_tokens:
                break
            replica.admit(batch, need)
            tokens += need
        if not tokens and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
