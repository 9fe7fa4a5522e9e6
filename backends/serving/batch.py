"""A batch: what one executor call carries out."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.serving.sequence import Sequence


class Batch:
    """Pieces of prompts, and (if `decode_seqs` > 0) one token for every decoding sequence of the replica.

    `steps` is how many times in a row the policy would form this very batch if nothing arrives: a driver may carry
    out 1 to `steps` of them in one call (a leap).
    """

    __slots__ = ("context_tokens", "decode_seqs", "draft_rows", "draft_steps", "free_blocks", "loads", "map_s",
                 "preempted", "prefills", "repeats", "replica", "running", "start_s", "steps", "swap_s",
                 "swaps", "waiting")  # fmt: skip

    # the row of the `steps` table, set when the batch is formed
    replica: int
    start_s: float
    waiting: int
    running: int
    free_blocks: int
    swap_s: float  # where there are swaps: what copying costs before the step itself
    draft_steps: float  # decode steps that the drafts take to make; set where there are any

    def __init__(self) -> None:
        self.prefills: list[tuple[Sequence, int]] = []  # (sequence, new tokens)
        self.decode_seqs = 0  # rows: decoding sequences, their drafts, and finished rows of a padded batch
        self.map_s = 0.0  # what mapping its new pages takes before it can run
        self.draft_rows = 0  # how many of them are drafts
        self.context_tokens = 0  # KV entries that the decodes read
        self.repeats = False  # the policy promises to form it again until something ends, arrives or runs short
        self.steps = 1
        self.preempted: ListOf[Sequence] = ()
        self.swaps: ListOf[tuple[Sequence, list[int] | None]] = ()  # in order: ids of blocks to copy out; None: back in
        self.loads: ListOf[tuple[int, int]] = ()  # (new tokens with padding, tokens already stored) per piece

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of this batch, padding included."""
        loads = self.loads
        return loads[0][0] if len(loads) == 1 else sum([n for n, _ in loads])

    def tokens(self) -> int:
        """Tokens that run: prompt pieces plus one per decoding sequence."""
        return sum([n for _, n in self.prefills]) + self.decode_seqs

    def items(self, decodes: Iterator[Sequence]) -> list[tuple[Sequence, int]]:
        """All (sequence, tokens) pairs, decodes first; `decodes` iterates over the replica's decoding sequences."""
        pairs = [(seq, 1) for seq in decodes] if self.decode_seqs else []
        return pairs + self.prefills

    def __repr__(self) -> str:
        ids = ", ".join(f"{seq.request.id}:{n}" for seq, n in self.prefills)
        return f"<Batch {self.decode_seqs} decodes, prefills [{ids}], up to {self.steps} steps>"
