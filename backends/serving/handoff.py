"""Hand-off: the KV of a sequence moves from the replica that computed its prompt to the one that will decode it.

Pull (DistServe): a prefilled sequence stays in the memory of the prefill replica until the decode replica has room, so
prefill memory is the buffer of a burst and back-pressure shows as queueing for prefill. Push: it is sent at once, and
what finds no room on arrival is lost and computed again.
Source: Zhong et al., DistServe, OSDI 2024, section 4.3; the pull gate of LLMServe/DistServe @82831f1,
`decoding_stage_scheduler.py` (waiting_block_prop_threshold 0.05).
"""

from collections import deque
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from backends.serving.batch import Phase, Sequence
from backends.serving.plugins import Router
from backends.serving.replica import Replica
from harness.api import Request

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


class Outbox:
    """Prefilled sequences that still hold memory of the replica that computed them."""

    __slots__ = ("fresh", "leaving")

    def __init__(self) -> None:
        self.leaving: dict[Sequence, tuple[int, list[int]]] = {}  # blocks held here, and their ids
        self.fresh: list[Sequence] = []  # prefilled since the last collection

    def put(self, seq: Sequence) -> None:
        """A prompt is computed and its first token out."""
        self.leaving[seq] = (seq.blocks, seq.table)
        seq.blocks, seq.table = 0, []
        seq.phase = Phase.HANDOFF
        self.fresh.append(seq)

    @property
    def blocks(self) -> int:
        """Blocks that leaving sequences hold."""
        return sum(blocks for blocks, _ in self.leaving.values())


class Inbox:
    """Sequences on their way into a decode replica: offered, under way (memory is theirs already), landed."""

    __slots__ = ("held", "incoming", "landed", "offers", "overflows")

    def __init__(self) -> None:
        self.offers: deque[tuple[Sequence, Replica | None]] = deque()
        self.incoming: dict[Sequence, None] = {}
        self.landed: deque[Sequence] = deque()
        self.held = 0  # blocks of incoming and landed
        self.overflows = 0  # found no room when they were pushed here

    def __len__(self) -> int:
        return len(self.offers) + len(self.incoming) + len(self.landed)


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV on its way: it lands at `end_s`. `source` is None for a prompt that was computed elsewhere."""

    end_s: float
    seq: Sequence
    source: Replica | None
    target: Replica


class HandOffs:
    """Moves sequences from prefill replicas to the decode replicas that the router names."""

    __slots__ = ("_free_s", "_route", "decode", "link", "pull")

    def __init__(self, decode: ListOf[Replica], router: Router, link: Link, *, pull: bool) -> None:
        self.decode = decode
        self._route = router.route if len(decode) > 1 else None
        self.link = link
        self.pull = pull
        self._free_s: dict[int, float] = {}  # replica: when its end of the link is free

    def offer(self, seq: Sequence, source: Replica | None) -> Replica:
        """The decode replica that will have this sequence; it queues there until it is pulled or pushed."""
        target = self.decode[0 if self._route is None else self._route(seq.request, self.decode)]
        inbox = target.inbox
        assert inbox is not None
        inbox.offers.append((seq, source))
        return target

    def start(self, target: Replica, now_s: float) -> list[Transfer]:
        """Hand-offs into `target` that begin now."""
        inbox = target.inbox
        assert inbox is not None
        begun = []
        while inbox.offers and (not self.pull or _room(target, inbox.offers[0][0])):
            seq, source = inbox.offers.popleft()
            if self.pull:
                target.accept(seq, now_s)
            else:
                inbox.incoming[seq] = None
            seq.handoff_start_s = now_s
            begun.append(Transfer(self._end_s(seq, source, target, now_s), seq, source, target))
        return begun

    def _end_s(self, seq: Sequence, source: Replica | None, target: Replica, now_s: float) -> float:
        """One transfer at a time leaves a replica, and one at a time enters one."""
        if source is None:
            return now_s
        free_s, ends = self._free_s, (source.index, target.index)
        start_s = max(now_s, free_s.get(ends[0], 0.0), free_s.get(ends[1], 0.0))
        end_s = start_s + self.link.seconds(seq.computed)
        free_s[ends[0]] = free_s[ends[1]] = end_s
        return end_s

    def land(self, transfer: Transfer) -> None:
        """The KV has arrived: the prefill replica forgets the sequence, the decode replica may run it."""
        seq = transfer.seq
        if transfer.source is not None:
            transfer.source.release(seq, transfer.end_s)
        seq.handoff_end_s = transfer.end_s
        transfer.target.land(seq, transfer.end_s)

    @property
    def under_way(self) -> int:
        """Sequences between prefill and their first decode."""
        return sum(len(replica.inbox) for replica in self.decode if replica.inbox is not None)


def _room(target: Replica, seq: Sequence) -> bool:
    """The pull gate: few transfers wait at the target, none there waits for memory it lost, and this one fits."""
    inbox, blocks = target.inbox, target.blocks
    assert inbox is not None
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
