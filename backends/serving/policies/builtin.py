"""The short policies, a class each."""

from dataclasses import dataclass, field

from backends.serving._checks import at_least, positive
from backends.serving.batch import Batch
from backends.serving.replica import Replica, Role


@dataclass(frozen=True, slots=True)
class Orca:
    """Orca: iteration-level batching. The batch is formed anew every step; whole prompts join running decodes.

    Source: Yu et al., Orca, OSDI 2022 (selection FCFS, at most `max_batch` sequences); memory mode of the paper:
    reserve_max.

    At most `max_batch` sequences at a time.
    """

    max_batch: int = 16

    def __post_init__(self) -> None:
        at_least("max_batch", self.max_batch)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, then whole prompts in order of arrival."""
        if replica.decoding.members:
            replica.decode(batch)
        while replica.waiting and not batch.preempted and replica.running < self.max_batch and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class Static:
    """Static (request-level) batching: take up to `batch` requests, run them to their end, admit none meanwhile.

    Source: FasterTransformer style, as drawn in Yu et al., Orca, OSDI 2022. With `pad` short prompts are padded to the
    longest of the batch and finished rows stay, at their cost, until the last one ends.

    Batches of at most `batch` requests.
    """

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


@dataclass(frozen=True, slots=True)
class DistservePrefill:
    """DistServe's prefill scheduler: whole prompts in order of arrival, nothing else.

    Source: LLMServe/DistServe @82831f1, distserve/context_stage_scheduler.py (128 requests, 8,192 tokens a batch).
    Memory of prompts that wait for their hand-off counts, so a full decode side stops prefill.

    At most `max_seqs` prompts and `max_batched_tokens` tokens a step; a longer prompt runs alone.

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


@dataclass(frozen=True, slots=True)
class DistserveDecode:
    """DistServe's decode scheduler: every sequence that was handed on decodes in every step, in order of arrival.

    Source: LLMServe/DistServe @82831f1, distserve/decoding_stage_scheduler.py (1,024 sequences a batch). Sequences that
    lost their memory come first; what is computed again runs alone.

    At most `max_seqs` sequences decode at a time.
    """

    max_seqs: int = 1024

    def __post_init__(self) -> None:
        at_least("max_seqs", self.max_seqs)

    @property
    def serves(self) -> Role:
        """Replicas for decode alone."""
        return "decode"

    def has_room(self, replica: Replica) -> bool:
        """Whether one more sequence may decode."""
        return replica.running < self.max_seqs

    def fill(self, replica: Replica, batch: Batch) -> None:
        """What lost its memory is computed again when there is room; else all decodes."""
        while replica.waiting and self.has_room(replica) and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted


@dataclass(slots=True)
class ChunkOnly:
    """Chunks of prompts and decodes in turns, never in one step: chunked prefill without stall-free batching.

    Source: the "chunked-prefills-only" column of table 4 of Agrawal et al., Sarathi-Serve, OSDI 2024, as scheduled by
    microsoft/sarathi-serve `simple_chunking_scheduler.py`: a prefill turn runs unfinished prompts, else new ones.

    At most `budget` prompt tokens in a prefill turn; at most `max_seqs` running sequences.
    """

    budget: int = 512
    max_seqs: int = 128
    _decoded: bool = field(default=True, init=False, repr=False)  # the last turn was not a prefill turn

    def __post_init__(self) -> None:
        positive(self, "budget", "max_seqs")

    def fill(self, replica: Replica, batch: Batch) -> None:
        """A prefill turn if the last turn decoded (or nothing decodes), else a decode turn."""
        tried = self._decoded or not replica.decoding.members
        if tried and self._prompts(replica, batch):
            self._decoded = False
            return
        self._decoded = True
        if replica.decoding.members:
            replica.decode(batch)
        batch.repeats = not batch.preempted and (tried or not (replica.prefilling or replica.waiting))

    def _prompts(self, replica: Replica, batch: Batch) -> bool:
        left = self.budget
        for seq in replica.prefilling:
            if left == 0:
                break
            tokens = min(seq.need(), left)
            replica.run(batch, seq, tokens)
            left -= tokens
        if batch.prefills:
            return True
        while left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        return bool(batch.prefills)
