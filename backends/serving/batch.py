"""A batch: what one executor call carries out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.serving.sequence import Sequence


class Batch:
    """Pieces of prompts, and (if `decode_seqs` > 0) one token for every decoding sequence of the replica.

    `steps` is how many times in a row the policy would form this very batch if nothing arrives: a driver may carry
    out 1 to `steps` of them in one call (a leap).
    """

    __slots__ = ("context_tokens", "decode_seqs", "free_blocks", "loads", "preempted", "prefills", "repeats", "running",
                 "start_s", "steps", "waiting")  # fmt: skip

    def __init__(self) -> None:
        self.prefills: list[tuple[Sequence, int]] = []  # (sequence, new tokens)
        self.decode_seqs = 0
        self.repeats = False  # the policy promises to form it again until something ends, arrives or runs short
        self.steps = 1
        self.preempted: list[Sequence] = []
        # what the executor is charged for, and the row of the `steps` table; set by the replica
        self.loads: list[tuple[int, int]] = []  # (new tokens with padding, tokens already stored) per piece
        self.context_tokens = 0
        self.start_s = 0.0
        self.waiting = 0
        self.running = 0
        self.free_blocks = 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens of this batch, padding included."""
        return sum([n for n, _ in self.loads])

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
