"""The short policies, a class each."""

from dataclasses import dataclass

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, AtLeastTwo, check


@dataclass(frozen=True, slots=True)
class Orca:
    """Orca: iteration-level batching. The batch is formed anew every step; whole prompts join running decodes.

    Source: Yu et al., Orca, OSDI 2022 (selection FCFS, at most `max_batch` sequences); memory mode of the paper:
    reserve_max.

    At most `max_batch` sequences at a time.
    """

    max_batch: AtLeastOne = 16

    def __post_init__(self) -> None:
        check(self)

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

    batch: AtLeastOne = 16
    pad: bool = True

    def __post_init__(self) -> None:
        check(self)

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
class Sglang:
    """SGLang: prompts before decodes, in chunks, batches formed ahead; new requests are taken in every few steps.

    Prompts in chunks of `chunk` tokens a step while decodes stand still; at most `max_seqs` running sequences.

    New requests are taken in every `recv_interval` steps. With `overlap` each batch is formed while the one before it
    runs; the built-in engine does not overlap steps. The last one admitted is preempted first.

    Source: sgl-project/sglang `python/sglang/srt/managers/scheduler.py` (`get_next_batch_to_run`, overlap schedule) and
    its options `--chunked-prefill-size`, `--max-prefill-tokens`, `--max-running-requests`, `--scheduler-recv-interval`.
    """

    chunk: AtLeastOne = 8192
    max_seqs: AtLeastOne = 1024
    recv_interval: AtLeastOne = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        check(self)
        if not self.overlap and self.recv_interval > 1:
            raise ValueError("recv_interval is that of overlapped steps; it does not go with overlap=false")

    @property
    def poll_steps(self) -> int:
        """`recv_interval` where steps overlap, else 0."""
        return self.recv_interval if self.overlap else 0

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The prompt that is begun, then waiting ones, as far as a chunk reaches; without any, all decodes."""
        left = replica.run_chunks(batch, self.chunk)
        replica.admit_chunks(batch, left, self.max_seqs)
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Sarathi-Serve: stall-free batching. Decodes first, then chunks of prompts, never more than the token budget.

    Source: Agrawal et al., Sarathi-Serve, OSDI 2024, algorithm 3. Blocks for the whole prompt are taken at admission,
    so an admitted prompt never fails later. No request is admitted in a step that preempted. Dynamic chunks: as in
    microsoft/sarathi-serve `sarathi_scheduler.py`.

    `budget` tokens a step, decodes included; at most `max_seqs` running sequences (at most the budget).

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
        left, shrinks = self.budget, self.low is not None
        if replica.decoding.members:
            replica.decode(batch, self.budget)
            left = max(0, left - batch.decode_seqs)  # the answers of one request may exceed it
        for seq in replica.prefilling:
            if left == 0:
                return
            tokens = min(seq.need(), left - self._below_budget(seq.computed) if shrinks else left)
            if tokens > 0:
                replica.run(batch, seq, tokens)
                left -= tokens
        if batch.preempted:
            return
        if replica.waiting:
            replica.admit_chunks(batch, left, self.max_seqs)
        batch.repeats = True

    def _below_budget(self, computed: int) -> int:
        """Tokens by which the chunk of a prompt with `computed` tokens behind it is smaller than the budget."""
        assert self.low is not None
        stage = min(computed * self.stages // self.span_tokens, self.stages - 1)
        chunk = self.budget - stage * (self.budget - self.low) / (self.stages - 1)
        grain = min(32, self.low)
        return max(0, self.budget - round(chunk / grain) * grain)


@dataclass(frozen=True, slots=True)
class VllmV0:
    """vLLM v0: whole new prompts first; running decodes stall in a step that admits one; the last-in is preempted.

    Source: Kwon et al., vLLM, SOSP 2023; the "vLLM" baseline of the DistServe and Sarathi-Serve papers, with
    DistServe's limits (16,384 batched tokens, 1,024 sequences).

    At most `max_seqs` running sequences; at most `max_batched_tokens` prompt tokens a step.
    """

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
        replica.admit_whole(batch, self.max_batched_tokens, self.max_seqs - replica.running)
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
