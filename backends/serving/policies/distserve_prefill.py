"""DistServe's prefill scheduler: whole prompts in order of arrival, nothing else.

Source: LLMServe/DistServe @82831f1, distserve/context_stage_scheduler.py (128 requests, 8,192 tokens a batch). Memory
of prompts that wait for their hand-off counts, so a full decode side stops prefill.
"""

from dataclasses import dataclass

from backends.serving._checks import positive
from backends.serving.batch import Batch
from backends.serving.replica import Replica, Role


@dataclass(frozen=True, slots=True)
class DistservePrefill:
    """At most `max_seqs` prompts and `max_batched_tokens` tokens a step; a longer prompt runs alone.

    The paper's L_m, the shortest prompt that saturates the GPU, is max_batched_tokens=512 for OPT-13B on an A100.
    """

    max_seqs: int = 128
    max_batched_tokens: int = 8192

    def __post_init__(self) -> None:
        positive(self, "max_seqs", "max_batched_tokens")

    @property
    def serves(self) -> Role:
        """Replicas for prefill alone."""
        return "prefill"

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts in order of arrival; on a replica that is no prefill replica decodes follow when none waits."""
        tokens = 0
        waiting = replica.waiting
        while waiting and len(batch.prefills) < self.max_seqs and replica.admissible():
            need = waiting[0].need()
            if tokens and tokens + need > self.max_batched_tokens:
                break
            replica.admit(batch, need)
            tokens += need
        if not tokens and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
