"""Text Generation Inference: the server of Hugging Face, whose router decides when prompts interrupt decodes.

Source: huggingface/text-generation-inference v1, `router/src/infer.rs` and `queue.rs`, with their defaults. Memory of
the original: prompt and requested output are reserved at admission (`kv=reserve-oracle`). What is published of it:
vLLM has 2.2 to 2.5 times its throughput.
"""

from dataclasses import dataclass, field
from math import floor

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked, NotNegative


@dataclass(slots=True)
class TgiPolicy(Checked):
    """Text Generation Inference: a prefill batch interrupts decoding only if it is large enough, or is long overdue.

    A step prefills up to `max_batch_prefill_tokens` of whole new prompts, or decodes all that runs.

    It prefills if the prompts that fit are at least `waiting_served_ratio` times as many as run, and
    `max_waiting_tokens` tokens of the running sequences after the last prefill, however few they are.
    """

    waiting_served_ratio: NotNegative = 1.2
    max_waiting_tokens: AtLeastOne = 20
    max_batch_prefill_tokens: AtLeastOne = 4096
    _prefilled: int = field(default=0, init=False, repr=False)  # decode steps before the last prefill

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  the output does not matter
        """A prompt must fit one step; what is recomputed after preemption may be longer and then runs alone."""
        if prompt > self.max_batch_prefill_tokens:
            return f"a prompt of {prompt} tokens exceeds max_batch_prefill_tokens {self.max_batch_prefill_tokens}"
        return None

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Prompts if enough of them fit or wait too long, else all decodes."""
        decoding, fit = replica.decoding, self._fit(replica)
        overdue = decoding.tick - self._prefilled >= self.max_waiting_tokens - 1  # a prefill gives the first token
        least = 1 if overdue else max(1, floor(self.waiting_served_ratio * replica.running))
        if fit >= least:
            for _ in range(fit):
                if not replica.admissible():
                    break
                replica.admit(batch, replica.waiting[0].need())
        if batch.prefills:
            self._prefilled = decoding.tick
        elif decoding.members:
            replica.decode(batch)
            batch.repeats = not fit and not batch.preempted  # what fits may be admitted after any step
            if replica.drafts is not None:
                self._prefilled -= 1  # the tick does not count steps with drafts

    def _fit(self, replica: Replica) -> int:
        """How many requests from the head of the queue fit the memory and the prompt tokens of a step."""
        count, tokens_left, free = 0, self.max_batch_prefill_tokens, replica.blocks.free
        for seq in replica.waiting:
            tokens_left -= seq.need()
            free -= max(replica.blocks_to_hold(seq), replica.blocks.blocks_for(seq.need()))
            if free < 0 or (tokens_left < 0 and count):
                break
            count += 1
        return count
