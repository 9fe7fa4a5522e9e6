"""FastSwitch: preemption by priorities that change, which cheap swapping makes affordable.

Source: Shen et al., FastSwitch, arXiv 2411.18424: requests get new priorities every so many steps; those that lose
their place are swapped to host memory. Swapping is cheap where blocks lie side by side and are copied in groups
(`preempt=swap:group=20`), beside the steps of others (`overlap`), and where host copies stay for the next preemption
and the next turn (a prefix cache over `tiers=dram`, which stores what it gives up).
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from backends.serving.batch import Batch, Sequence
from backends.serving.plugins import unit
from backends.serving.policies.builtin import VllmV0
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, PartialShare, check

UPDATES = 1 << 24
"""More updates of priorities than a run has."""


@dataclass(slots=True)
class PriorityPreemptPolicy:
    """vLLM v0 with priorities that change: the first in priority that fit into memory run, others are preempted.

    `frequency` is that of the updates, 0.04 a step: every 25th (0: never, which is vllm-v0). With `pattern=random` each
    one draws new priorities; with `markov` a request keeps its own with the share `stay`, which is ours. What a request
    draws follows from `seed`, its number and that of the update alone, so that systems are compared on equal
    priorities. At most `max_seqs` sequences run, and prompts of `max_batched_tokens` in a step.
    """

    frequency: Annotated[float, Meta(ge=0, le=1)] = 0.04
    pattern: Literal["markov", "random"] = "markov"
    stay: PartialShare = 0.5
    max_seqs: AtLeastOne = 256
    max_batched_tokens: AtLeastOne = 16384
    seed: int = 0
    _steps: int = field(default=0, init=False, repr=False, compare=False)
    _update: int = field(default=0, init=False, repr=False, compare=False)  # the last one that was made

    def __post_init__(self) -> None:
        check(self)

    @property
    def _inner(self) -> VllmV0:
        return VllmV0(self.max_seqs, self.max_batched_tokens)

    @property
    def _every(self) -> int:
        return round(1 / self.frequency)

    def refusal(self, prompt: int, output: int) -> str | None:
        """As vllm-v0."""
        return self._inner.refusal(prompt, output)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  only their number matters
        """Count steps."""
        self._steps += 1

    def fill(self, replica: Replica, batch: Batch) -> None:
        """New priorities where they are due, then prompts in their order, else decodes."""
        if not self.frequency:
            self._inner.fill(replica, batch)
            return
        swap = replica.swap
        due = self._steps // self._every != self._update
        if due:
            self._update = self._steps // self._every
            self._switch(replica, batch)
            if swap is not None:
                swap.order(self._rank)
        replica.order_waiting(self._rank)
        if swap is not None and swap and replica.waiting:
            # The first in priority comes next, from the queue or back; back it comes after a step, if there is one.
            swapped_first = self._rank(next(iter(swap))) < self._rank(replica.waiting[0])
            swap.closed = swapped_first and bool(replica.running or batch.swaps)
        if batch.preempted and replica.decoding.members:
            replica.decode(batch)  # who gets the memory comes with the next step: its KV has to come, too
            return
        self._inner.fill(replica, batch)
        if batch.repeats:  # who is first now may come back before the next step
            batch.repeats = not due and self._every - self._steps % self._every

    def _switch(self, replica: Replica, batch: Batch) -> None:
        """Preempt those that run and are not among the first in priority that fit into memory together."""
        room, seats = replica.blocks.total, self.max_seqs
        running = dict.fromkeys(replica.decoding)
        for seq in sorted((*running, *(replica.swap or ()), *replica.waiting), key=self._rank):
            blocks = seq.blocks_for(seq.prompt + seq.emitted, replica.blocks.size)
            if blocks <= room and seats:
                room -= blocks
                seats -= 1
            elif seq in running:
                replica.preempt(batch, seq)

    def _rank(self, seq: Sequence) -> tuple[float, int]:
        """The lowest goes first; no two are equal."""
        number, update = UPDATES * seq.request.id, self._update
        while self.pattern == "markov" and update and unit(self.seed + 1, number + update) < self.stay:
            update -= 1
        return unit(self.seed, number + update), seq.request.id
