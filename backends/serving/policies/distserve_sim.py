"""The colocated scheduler of DistServe's simulator: prompts first, all that wait in one batch; else all decodes.

Source: LLMServe/DistServe @82831f1, simdistserve/base/worker.py. A prefill batch takes prompts up to the KV capacity
whatever is stored already; a decode step reads at most `max_decode_tokens`, and sequences then take turns.
"""

from dataclasses import dataclass

from backends.serving._checks import positive
from backends.serving.batch import Batch
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class DistserveSim:
    """At most `max_prefill_tokens` prompt tokens a step (OPT-13B on one A100-80G), `max_decode_tokens` of context."""

    max_prefill_tokens: int = 66144
    max_decode_tokens: int = 50000

    def __post_init__(self) -> None:
        positive(self, "max_prefill_tokens", "max_decode_tokens")

    def refusal(self, prompt: int, output: int) -> str | None:
        """A prompt must fit one prefill step, and its longest decode step one decode step."""
        if prompt > self.max_prefill_tokens:
            return f"a prompt of {prompt} tokens exceeds max_prefill_tokens {self.max_prefill_tokens}"
        if output > 1 and prompt + output - 1 > self.max_decode_tokens:
            return f"a context of {prompt + output - 1} tokens exceeds max_decode_tokens {self.max_decode_tokens}"
        return None

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts if any wait, else the sequences whose turn it is."""
        left = self.max_prefill_tokens
        waiting = replica.waiting
        while waiting and waiting[0].need() <= left and replica.admissible():
            left -= waiting[0].need()
            replica.admit(batch, waiting[0].need())
        if batch.prefills:
            return
        steps = self._take_turns(replica)
        if replica.decoding.members:
            replica.decode(batch)
            batch.repeats = False if batch.preempted else steps

    def _take_turns(self, replica: Replica) -> int:
        """Park what exceeds the context of one step, in order of last turn; for how many steps none will."""
        decoding, parked = replica.decoding, replica.parked
        if not parked:
            if not decoding:
                return 0
            steps = (self.max_decode_tokens - decoding.context) // len(decoding)
            if steps > 0:
                return steps
        for seq in list(decoding):
            replica.park(seq)
        left = self.max_decode_tokens
        while parked and (computed := next(iter(parked)).computed) < left:
            left -= computed + 1
            replica.unpark()
        return 0
