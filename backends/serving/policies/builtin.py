"""The short policies, a class each."""

from dataclasses import dataclass

from backends.serving.batch import Batch
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked, check


@dataclass(frozen=True, slots=True)
class Orca(Checked):
    """Orca: iteration-level batching. The batch is formed anew every step; whole prompts join running decodes.

    Source: Yu et al., Orca, OSDI 2022 (selection FCFS, at most `max_batch` sequences); memory mode of the paper:
    reserve_max.

    At most `max_batch` sequences at a time.
    """

    max_batch: AtLeastOne = 16

    def fill(self, replica: Replica, batch: Batch) -> None:
        """All decodes, then whole prompts in order of arrival."""
        if replica.decoding.members:
            replica.decode(batch)
        while replica.waiting and not batch.preempted and replica.running < self.max_batch and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        batch.repeats = not batch.preempted


@dataclass(frozen=True, slots=True)
class Static(Checked):
    """Static (request-level) batching: take up to `batch` requests, run them to their end, admit none meanwhile.

    Source: FasterTransformer style, as drawn in Yu et al., Orca, OSDI 2022. With `pad` short prompts are padded to the
    longest of the batch and finished rows stay, at their cost, until the last one ends.

    Batches of at most `batch` requests.
    """

    batch: AtLeastOne = 16
    pad: bool = True

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
        left = self.chunk
        for seq in replica.prefilling:
            tokens = min(seq.need(), left)
            if tokens:
                replica.run(batch, seq, tokens)
                left -= tokens
        while left and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        if not batch.prefills and replica.decoding.members:
            replica.decode(batch)
            batch.repeats = not batch.preempted
