"""vLLM v1: one token budget in order of admission; memory on demand; the last admitted is preempted first.

Source: vllm-project/vllm `vllm/v1/core/sched/scheduler.py`: running sequences first, whatever they need, then waiting
ones, no admission in a step that preempted. Prompts are always chunked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, check

Chunk = tuple["Sequence", int]


@dataclass(frozen=True, slots=True)
class VllmV1:
    """`budget` tokens a step, at most `max_seqs` running sequences, at most `long_prefill` tokens of one prompt a step.

    `order=priority` admits by priority (lowest number first) and takes memory from the highest number. With
    `async_scheduling` each batch is formed while the one before it runs, so that what arrives meanwhile waits one step
    more (vLLM's option of that name).
    """

    budget: AtLeastOne = 8192
    max_seqs: AtLeastOne = 256
    long_prefill: AtLeastOne | None = None
    order: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        check(self)
        if self.max_seqs > self.budget:
            raise ValueError(f"max_seqs {self.max_seqs} must not exceed budget {self.budget}: a decode is one token")

    @property
    def poll_steps(self) -> int:
        """1 with asynchronous scheduling, else 0."""
        return int(self.async_scheduling)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Running sequences in order, then waiting ones, under the budget."""
        while replica.parked:
            replica.unpark()
        budget_left = self.run(replica, batch)
        if batch.preempted:
            return
        self.admit(replica, batch, budget_left)
        # Who sits out comes back in the next step, which is another batch then.
        batch.repeats = not replica.parked

    def run(self, replica: Replica, batch: Batch, *, decodes: bool = True) -> int:
        """Running sequences in order, without `decodes` prompts alone; returns how much of the budget is left."""
        chunks = self._chunks(replica) if replica.prefilling else []
        growth = self._make_room(replica, batch, chunks)
        budget_left = self.budget
        if decodes and replica.decoding.members:
            replica.decode(batch, budget_left - sum(tokens for _, tokens in chunks), growth)
            budget_left -= batch.decode_seqs
        for seq, tokens in chunks:
            replica.grow(batch, seq, tokens)
            budget_left -= tokens
        return budget_left

    def admit(
        self, replica: Replica, batch: Batch, left: int, may_start: Callable[[Sequence], bool] | None = None
    ) -> None:
        """Waiting sequences in order with what is left of the budget, up to the first one that may not start."""
        while left > 0 and replica.waiting and replica.running < self.max_seqs:
            if self.order == "priority":
                _most_urgent_first(replica)
            if may_start is not None and not may_start(replica.waiting[0]):
                return
            if not replica.admissible(self._cap(left, left)):
                return
            tokens = self._cap(replica.waiting[0].need(), left)
            replica.admit(batch, tokens, on_demand=True)
            left -= tokens

    def _cap(self, need: int, left: int) -> int:
        return min(need, left) if self.long_prefill is None else min(need, left, self.long_prefill)

    def _chunks(self, replica: Replica) -> list[Chunk]:
        """What of each unfinished prompt runs; decodes for which no token of the budget is left sit out."""
        budget_left = self.budget - replica.decoding.rows
        wants = [(seq, self._cap(seq.need(), self.budget)) for seq in replica.prefilling]
        if sum(tokens for _, tokens in wants) <= budget_left:
            return wants
        chunks, budget_left = [], self.budget
        for seq in sorted((*replica.decoding, *replica.prefilling), key=_admitted):
            tokens = self._cap(seq.need(), max(0, budget_left))
            if seq.group is None:
                chunks += [(seq, tokens)] if tokens else []
            elif tokens:
                tokens = seq.answers  # those of one request run together, and may exceed the budget
            else:
                replica.park(seq)
            budget_left -= tokens
        return chunks

    def _make_room(self, replica: Replica, batch: Batch, chunks: list[Chunk]) -> int:
        """Preempt until the decodes and `chunks` of those that are left fit. Returns the blocks of the chunks."""
        blocks, decoding = replica.blocks, replica.decoding
        if replica.drafts is not None:
            replica.drafts.plan(len(decoding), blocks.free)  # drafts never preempt
        growth = sum(replica.blocks_to_grow(seq, tokens) for seq, tokens in chunks) if chunks else 0
        while decoding.blocks_needed() + growth > blocks.free:
            victim = max(replica.holders(), key=_admitted if self.order == "fcfs" else _least_urgent)
            for i, (seq, tokens) in enumerate(chunks):
                if seq is victim:
                    growth -= replica.blocks_to_grow(seq, tokens)
                    del chunks[i]
                    break
            replica.preempt(batch, victim)
        return growth


def _most_urgent_first(replica: Replica) -> None:
    waiting = replica.waiting
    seq = min(waiting, key=_least_urgent)
    if seq is not waiting[0]:
        waiting.remove(seq)
        waiting.appendleft(seq)


def _admitted(seq: Sequence) -> int:
    return seq.admitted


def _least_urgent(seq: Sequence) -> tuple[int, int]:
    return seq.request.priority, seq.order
