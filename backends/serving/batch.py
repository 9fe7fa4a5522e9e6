"""A batch: what one executor call runs.

A sequence: the mutable serving state of one request on a replica.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from enum import Enum
from math import inf
from typing import TYPE_CHECKING

from backends.serving.visible import VisibleRequest as VisibleRequest
from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.beams import Beams
    from backends.serving.decodes import Decodes
    from backends.serving.speculation import Drafts


class Batch:
    """Pieces of prompts, and (if `decode_seqs` > 0) one token for every decoding sequence of the replica.

    `steps` is how many times in a row the policy would form this very batch if nothing arrives: a driver may carry
    out 1 to `steps` of them in one call (a leap).
    """

    __slots__ = ("adapter_factor", "context_tokens", "decode_seqs", "draft_rows", "draft_steps", "free_blocks",
                 "instances", "lane", "loads", "preempted", "prefills", "repeats", "repeats_until_s", "replica",
                 "running", "setup_s", "start_s", "steps", "swap_s", "swaps", "takes_s", "waiting")  # fmt: skip

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
        self.setup_s = 0.0  # what mapping its new pages and loading adapters take before it can run
        self.adapter_factor = 1.0  # how many times as long each of its steps takes with adapters
        self.draft_rows = 0  # how many of them are drafts
        self.context_tokens = 0  # KV entries that the decodes read
        self.takes_s: float | None = None  # seconds of its step where the policy says; None: the latency model does
        self.lane: int | None = None  # of a replica with lanes on shares of its GPUs
        self.instances: int | None = None  # of the model that run it together, where a replica has several
        # The policy promises to form it again until something ends, arrives or runs short: True, or for so many steps,
        self.repeats: bool | int = False
        self.repeats_until_s = inf  # and for no step that starts then or later
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


class Phase(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    HANDOFF = "hand-off"
    DECODE = "decode"
    SWAPPED = "swapped"
    DONE = "done"


class Sequence:
    """One request being served: how many of its tokens have KV (`computed`) and how many came out (`emitted`).

    Its `answers` decode together, a row each, and both counts are those of one of them; they are preempted together,
    and while they are computed again `computed` counts prompt and answers one after the other.
    `need()` is what still has to run before the next token: prompt, chunk, recompute after preemption and decode
    are one and the same. While it decodes, `computed` and `emitted` follow the tick of its group (`Decodes`), so
    that a step costs nothing per sequence. How many tokens it will produce is not for plug-ins to see: `Oracle`
    is the only door.
    """

    __slots__ = (
        "_computed", "_emitted", "_end_tick", "_output", "_request", "adapter", "admitted", "answers", "arrived_s",
        "beams", "blocks", "cached_tokens", "decode_start_s", "group", "handoff_end_s", "handoff_start_s",
        "joined_tick", "order", "phase", "preemptions", "prefill_end_s", "prefill_start_s", "prompt", "table",
        "token_n", "token_s",
    )  # fmt: skip

    def __init__(self, request: Request, order: int, arrived_s: float) -> None:
        self._request = request
        self.order = order  # order of arrival on this replica
        self.admitted = -1  # order of (the last) admission on this replica
        self.arrived_s = arrived_s
        self.prompt = request.prompt_tokens
        extra = request.extra
        self.adapter = None if extra is None else extra.model
        self.answers = 1 if extra is None else extra.n
        self.beams: Beams | None = None  # where its answers are those of a beam search
        self._output = request.output_tokens
        self._computed = 0
        self._emitted = 0
        self.phase = Phase.WAITING
        self.group: Decodes | Drafts | None = None
        self.joined_tick = 0
        self._end_tick = 0  # tick of its last token, while it decodes
        self.blocks = 0  # blocks held; while it decodes, blocks held when it joined
        self.table: list[int] = []  # their ids, as far as they were drawn
        self.cached_tokens: int | None = None  # found in the prefix cache at first admission; None without one
        self.preemptions = 0
        self.prefill_start_s: float | None = None
        self.prefill_end_s: float | None = None
        self.handoff_start_s: float | None = None
        self.handoff_end_s: float | None = None
        self.decode_start_s: float | None = None
        self.token_s: array[float] = array(
            "d"
        )  # stamps of its tokens; those of decodes follow when it leaves the group
        self.token_n: list[int] | None = None  # tokens of each stamp, where it may be more than one

    @property
    def request(self) -> VisibleRequest:
        """What a plug-in sees of the request."""
        return VisibleRequest(self._request)

    @property
    def computed(self) -> int:
        """Tokens whose KV is stored."""
        group = self.group
        return self._computed if group is None else self._computed + group.tick - self.joined_tick

    @property
    def emitted(self) -> int:
        """Output tokens produced so far."""
        group = self.group
        return self._emitted if group is None else self._emitted + group.tick - self.joined_tick

    def need(self) -> int:
        """Tokens that must still run before the next token, or that of each answer, comes out."""
        if self.answers == 1:
            return self.prompt + self._emitted - self._computed  # the tick of a group moves both
        return self.answers if self.phase is Phase.DECODE else self.to_compute() - self._computed

    def to_compute(self) -> int:
        """Tokens that run before the next one where nothing is stored: the prompt, then one answer after the other."""
        if self.beams is not None and self._emitted:
            return self.prompt + self.beams.tokens() + self.answers
        return self.prompt + self.answers * self._emitted

    def blocks_for(self, tokens: int, size: int) -> int:
        """Blocks of `size` tokens that hold `tokens` tokens of each answer, prompt included.

        Answers share the full blocks of the prompt. Each has its last, partly full one to itself (copied on the first
        write), from when the prompt is computed. Beams share more, of what they have or are about to store.
        """
        blocks = -(-tokens // size)
        if self.answers == 1 or tokens < self.prompt:
            return blocks
        shared = self.prompt // size
        unlike = shared + self.answers * (blocks - shared)
        if self.beams is None or tokens > (stored := self.prompt + self.beams.stored) + 1:
            return unlike
        more = self.answers if tokens > stored and stored % size == 0 else 0
        return min(unlike, self.beams.blocks(self.prompt, size) + more)

    def answer(self, now_s: float) -> None:
        """Its whole answer comes now, from elsewhere."""
        self._emitted = self._output
        self.token_s.append(now_s)
        self.token_n = [self._output]

    def tokens_per_stamp(self) -> list[int]:
        """How many tokens came out at each stamp."""
        counts = self.token_n or []
        return counts + [1] * (len(self.token_s) - len(counts))

    def __repr__(self) -> str:
        return f"<Sequence {self.request.id} {self.phase.value}, {self.computed} computed, {self.emitted} emitted>"


class Oracle:
    """The only access to true output lengths, so that oracle and online policies are never mixed silently."""

    @staticmethod
    def output_tokens(sequence: Sequence) -> int:
        """Output tokens that the request will produce."""
        return sequence._output

    @staticmethod
    def request(sequence: Sequence) -> Request:
        """The whole request, for drivers."""
        return sequence._request
