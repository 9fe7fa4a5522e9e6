"""A sequence: the mutable serving state of one request on a replica."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.decodes import Decodes
    from backends.serving.speculation import Drafts


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

    `need()` is what still has to run before the next token: prompt, chunk, recompute after preemption and decode
    are one and the same. While it decodes, `computed` and `emitted` follow the tick of its group (`Decodes`), so
    that a step costs nothing per sequence. How many tokens it will produce is not for policies to see: `Oracle`
    is the only door.
    """

    __slots__ = (
        "_computed", "_emitted", "_output", "admitted", "arrived_s", "blocks", "cached_tokens", "decode_start_s",
        "end_tick", "group", "handoff_end_s", "handoff_start_s", "joined_tick", "order", "phase", "preemptions",
        "prefill_end_s", "prefill_start_s", "prompt", "request", "table", "token_n", "token_s",
    )  # fmt: skip

    def __init__(self, request: Request, order: int, arrived_s: float) -> None:
        self.request = request
        self.order = order  # order of arrival on this replica
        self.admitted = -1  # order of (the last) admission on this replica
        self.arrived_s = arrived_s
        self.prompt = request.prompt_tokens
        self._output = request.output_tokens
        self._computed = 0
        self._emitted = 0
        self.phase = Phase.WAITING
        self.group: Decodes | Drafts | None = None
        self.joined_tick = 0
        self.end_tick = 0  # tick of its last token, while it decodes
        self.blocks = 0  # blocks held; while it decodes, blocks held when it joined
        self.table: list[int] = []  # their ids, as far as somebody asked
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
        """Tokens that must still run before the next token comes out."""
        return self.prompt + self._emitted - self._computed  # the tick of a group moves both

    def tokens_per_stamp(self) -> list[int]:
        """How many tokens came out at each stamp."""
        counts = self.token_n or []
        return counts + [1] * (len(self.token_s) - len(counts))

    def __repr__(self) -> str:
        return f"<Sequence {self.request.id} {self.phase.value}, {self.computed} computed, {self.emitted} emitted>"


class Oracle:
    """The only way to what a sequence will produce, so that no report mixes oracle and online policies silently."""

    @staticmethod
    def output_tokens(sequence: Sequence) -> int:
        """Output tokens that the request will produce."""
        return sequence._output
