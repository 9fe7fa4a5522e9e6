"""Hand-off: the KV of a sequence moves from the replica that computed its prompt to the one that will decode it.

Pull (DistServe): a prefilled sequence stays in the memory of the prefill replica until the decode replica has room, so
prefill memory is the buffer of a burst and back-pressure shows as queueing for prefill. Push: it is sent at once, and
what finds no room on arrival is lost and computed again.
Source: Zhong et al., DistServe, OSDI 2024, section 4.3; the pull gate of LLMServe/DistServe @82831f1,
`decoding_stage_scheduler.py` (waiting_block_prop_threshold 0.05).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving.batch import Phase, Sequence
from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.migration import Migration
    from backends.serving.replica import Replica

GATE = 0.05
"""Share of a decode replica's blocks: as long as less waits there for its first decode, the next one is pulled."""


@dataclass(frozen=True, slots=True)
class Link:
    """What KV crosses between two replicas: seconds per token (0: no time at all) and per hand-off."""

    token_s: float = 0.0
    latency_s: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Seconds to move the KV of `tokens` tokens over an idle link."""
        return self.latency_s + self.token_s * tokens


class Links:
    """The ends of the links between replicas: one transfer at a time leaves a replica, and one at a time enters one."""

    __slots__ = ("_free_s", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free_s: dict[int, float] = {}  # replica: when its end of the link is free

    def end_s(self, source: Replica, target: Replica, tokens: int, now_s: float) -> float:
        """When the KV of `tokens` tokens that may leave now has arrived; both ends are taken until then."""
        free_s, ends = self._free_s, (source.index, target.index)
        start_s = max(now_s, free_s.get(ends[0], 0.0), free_s.get(ends[1], 0.0))
        end_s = start_s + self.link.seconds(tokens)
        free_s[ends[0]] = free_s[ends[1]] = end_s
        return end_s


class Outbox:
    """Sequences that still hold memory of a replica on which they no longer run."""

    __slots__ = ("fresh", "leaving")

    def __init__(self) -> None:
        self.leaving: dict[Sequence, tuple[int, list[int]]] = {}  # blocks held here, and their ids
        self.fresh: list[Sequence] = []  # prefilled since the last collection

    def put(self, seq: Sequence) -> None:
        """A prompt is computed and its first token out."""
        self.hold(seq)
        self.fresh.append(seq)

    def hold(self, seq: Sequence) -> None:
        """A sequence leaves the batches here."""
        self.leaving[seq] = (seq.blocks, seq.table)
        seq.blocks, seq.table = 0, []
        seq.phase = Phase.HANDOFF

    def back(self, seq: Sequence) -> None:
        """It has its memory here again."""
        seq.blocks, seq.table = self.leaving.pop(seq)

    @property
    def blocks(self) -> int:
        """Blocks that leaving sequences hold."""
        return sum(blocks for blocks, _ in self.leaving.values())


class Inbox:
    """Sequences on their way into a replica: offered, under way (memory is theirs already), landed."""

    __slots__ = ("held", "incoming", "landed", "offers", "overflows", "reserved", "staged")

    def __init__(self) -> None:
        self.offers: deque[tuple[Sequence, Replica | None]] = deque()
        self.incoming: dict[Sequence, None] = {}
        self.landed: deque[Sequence] = deque()
        self.reserved: dict[int, int] = {}  # request id: blocks set aside for it
        self.staged: dict[int, list[int]] = {}  # request id: ids of those of its blocks that are copied into already
        self.held = 0  # blocks of incoming and landed, and what is reserved
        self.overflows = 0  # found no room when they were pushed here

    def __len__(self) -> int:
        return len(self.offers) + len(self.incoming) + len(self.landed)


class Transfer:
    """KV on its way from `source` (None: its prompt was computed elsewhere) to `target`, in a hand-off or the last
    stage of a migration."""

    __slots__ = ("migration", "seq", "source", "target")

    def __init__(
        self, seq: Sequence, source: Replica | None, target: Replica, migration: Migration | None = None
    ) -> None:
        self.seq = seq
        self.source = source
        self.target = target
        self.migration = migration


def start_handoffs(target: Replica, links: Links, now_s: float, *, pull: bool) -> list[tuple[float, Transfer]]:
    """Hand-offs into `target` that begin now, and when their KV has arrived."""
    inbox = target.inbox
    begun = []
    while inbox.offers and (not pull or _room(target, inbox.offers[0][0])):
        seq, source = inbox.offers.popleft()
        if pull:
            target.accept(seq, now_s)
        else:
            inbox.incoming[seq] = None
        seq.handoff_start_s = now_s
        end_s = now_s if source is None else links.end_s(source, target, seq.computed, now_s)
        begun.append((end_s, Transfer(seq, source, target)))
    return begun


def _room(target: Replica, seq: Sequence) -> bool:
    """The pull gate: few transfers wait at the target, none there waits for memory it lost, and this one fits."""
    inbox, blocks = target.inbox, target.blocks
    calm = inbox.held < GATE * blocks.total and not target.waiting and not target.swap
    return calm and target.blocks_to_hold(seq) <= blocks.free


def arrived_prefilled(request: Request, now_s: float) -> Sequence:
    """A sequence whose prompt was computed elsewhere and whose first token was emitted on arrival."""
    seq = Sequence(request, 0, now_s)
    seq._computed = seq.prompt
    seq._emitted = 1
    seq.token_s.append(now_s)
    seq.prefill_start_s = seq.prefill_end_s = now_s
    seq.phase = Phase.HANDOFF
    return seq
