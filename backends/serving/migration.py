"""Live migration: a running sequence moves to another replica while it goes on decoding.

Stage by stage the blocks that filled since the stage before are copied; when few are left the sequence stops, the rest
is copied, and it goes on at the target. The target reserves memory for each stage and may refuse. An aborted migration
leaves the source as it was. Without `live` the sequence stops first and everything is copied at once.
Source: Sun et al., Llumnix, OSDI 2024, section 4.2; AlibabaPAI/llumnix, `llumnix/config/default.py` (the last stage has
at most 16 blocks, there are at most 3 stages).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from backends.serving.batch import Oracle, Sequence
from backends.serving.handoff import Links, Transfer
from harness.api import ActionEvent

if TYPE_CHECKING:
    from backends.serving.loop import Loop
    from backends.serving.plugins import Mover
    from backends.serving.replica import Replica
    from backends.serving.routing import Migrate

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Migration:
    """One migration under way; the first `copied_tokens` of the sequence are at the target, or on their way there."""

    seq: Sequence
    source: Replica
    target: Replica
    live: bool
    stages: int
    last_blocks: int
    began_s: float
    copied_tokens: int = field(default=0, init=False)
    stop_s: float | None = field(default=None, init=False)
    _stage: int = field(default=0, init=False)
    _preemptions: int = field(init=False)

    def __post_init__(self) -> None:
        self._preemptions = self.seq.preemptions

    @property
    def possible(self) -> bool:
        """Whether the sequence still decodes at the source, without having lost its memory meanwhile."""
        seq, source = self.seq, self.source
        # Who was preempted and admitted again decodes, too: the count tells that it lost its memory meanwhile.
        decodes = seq.group is not None and any(seq.group is lane.decoding for lane in source.lanes)
        return decodes and source.alive and self.target.alive and seq.preemptions == self._preemptions

    def next_stage(self, links: Links, now_s: float) -> float | Literal["stop", "abort"]:
        """When the next stage has been copied; or that the sequence must stop for the last one, or stays."""
        size = self.source.blocks.size
        blocks_left = self.source.blocks.blocks_for(self.seq.computed - self.copied_tokens)
        if not self.live or blocks_left <= self.last_blocks:
            return "stop"
        filled = self.seq.computed // size * size
        if self._stage == self.stages or not self._reserve(self.target.blocks.blocks_for(filled), now_s):
            return "abort"
        tokens, self.copied_tokens = filled - self.copied_tokens, filled
        self._stage += 1
        return links.end_s(self.source, self.target, tokens, now_s)

    def stop(self, links: Links, now_s: float) -> tuple[float, Transfer] | None:
        """Between two batches of the source the sequence stops, and its last blocks leave; None: no room for it."""
        seq, source, target = self.seq, self.source, self.target
        if not self._reserve(target.blocks_to_hold(seq), now_s):
            return None
        self.stop_s = now_s
        source.send(seq._request.id, now_s)
        target.accept(seq, now_s)
        end_s = links.end_s(source, target, seq.computed - self.copied_tokens, now_s)
        return end_s, Transfer(seq, source, target, self)

    def abort(self, now_s: float) -> None:
        """Nothing comes of it: the target frees what it has reserved."""
        if self.target.alive:
            self.target.unreserve(self.seq._request.id, now_s)

    def _reserve(self, blocks: int, now_s: float) -> bool:
        request_id = self.seq._request.id
        more = blocks - self.target.inbox.reserved.get(request_id, 0)
        return more <= 0 or self.target.reserve(request_id, more, now_s)


class Moves(Generic[T]):
    """The sequences whose KV is on its way between replicas of the cluster of `loop`: hand-offs and migrations.

    `under_way` are migrations by request id; `stopping` those by source whose sequence stops at its next commit.
    """

    def __init__(self, loop: Loop[T], mover: Mover | None) -> None:
        self._loop = loop
        self._mover = mover
        self.transfers: dict[Transfer, None] = {}
        self.under_way: dict[int, Migration] = {}
        self.stopping: dict[int, list[Migration]] = {}

    def migrate(self, action: Migrate, now_s: float) -> None:
        """Begin a migration, or move a request that waits at once."""
        loop = self._loop
        source, target = loop.cluster.replicas[action.source], loop.cluster.replicas[action.target]
        request_id = action.request_id
        if request_id in self.under_way or source.blocks.size != target.blocks.size:
            return
        seq = next((seq for lane in source.lanes for seq in lane.decoding if seq._request.id == request_id), None)
        if seq is not None and seq.answers > 1:
            return  # what it stores is not one run of blocks
        queued = None if seq is not None else next((s for s in source.waiting if s._request.id == request_id), None)
        if queued is not None:
            back = source.role == "decode" and target.role == "prefill"  # it lost its memory after a hand-off
            if target.refusal(Oracle.request(queued), whole=back) is None:
                source.send(request_id, now_s)
                target.restart(queued, now_s)
                if back:
                    target.serve_whole(request_id, now_s)
                loop.note(ActionEvent("migrate", now_s, now_s, source.index, target.index, request_id, now_s, 0))
                for replica in (source, target):
                    loop.free.add(replica.index)
                    loop.touch(replica.index)
                loop.check_empty(source, now_s)
            return
        if seq is None or target.refusal(Oracle.request(seq)) is not None:
            return
        move = Migration(seq, source, target, action.live, action.stages, action.last_blocks, now_s)
        self.under_way[request_id] = move
        self.copied(move, now_s)

    def copied(self, move: Migration, now_s: float) -> None:
        """A stage of a live migration is over, or it begins: copy the next one, or stop the sequence."""
        loop = self._loop
        if self.under_way.get(move.seq._request.id) is not move:
            return  # it was aborted
        # How far the sequence is, and what the target has free, must be that of now and not of the end of a leap.
        for end in (move.source, move.target):
            loop.settle(end, now_s)
        if not move.possible:
            self.abort(move, "gone", now_s)
            return
        first_token = move.copied_tokens
        next_s = move.next_stage(loop.cluster.links, now_s)
        if next_s == "abort":
            self.abort(move, "refused or too slow", now_s)
        elif next_s != "stop":
            assert isinstance(next_s, float)
            loop.touch(move.target.index)
            end_s = next_s if self._mover is None else self._mover.copy(move, first_token, next_s)
            if end_s is not None:
                loop.copied(move, end_s)
        elif move.source.runs(move.seq._request.id):
            self.stopping.setdefault(move.source.index, []).append(move)
        else:
            self.stop(move, now_s)

    def stop(self, move: Migration, now_s: float) -> None:
        """Between two batches of the source: its last blocks leave, or it stays."""
        loop = self._loop
        if self.under_way.get(move.seq._request.id) is not move:
            return
        loop.settle(move.target, now_s)
        if move.possible and move.source.runs(move.seq._request.id):  # a later batch of a pipeline has it
            self.stopping.setdefault(move.source.index, []).append(move)
            return
        stopped = move.stop(loop.cluster.links, now_s) if move.possible else None
        if stopped is None:
            self.abort(move, "gone" if not move.possible else "refused", now_s)
        else:
            self.begin(*stopped, now_s)
            loop.touch(move.source.index)
            loop.touch(move.target.index)

    def abort(self, move: Migration, why: str, now_s: float) -> None:
        """The sequence stays where it is."""
        del self.under_way[move.seq._request.id]
        move.abort(now_s)
        self._loop.memory_freed(move.target)
        self._loop.note(
            ActionEvent("abort", move.began_s, now_s, move.source.index, move.target.index, move.seq._request.id,
                        None, move.copied_tokens, why)
        )  # fmt: skip

    def begin(self, end_s: float, transfer: Transfer, now_s: float) -> None:
        """KV begins to move."""
        if self._loop.acts:
            self.transfers[transfer] = None
        landed_s = end_s if self._mover is None else self._mover.move(transfer, end_s)
        if landed_s is None:
            return
        # At once: an event would come after the batches of this instant, of which it may be part.
        if landed_s <= now_s:
            self.land(transfer, now_s)
        else:
            self._loop.landed(transfer, landed_s)

    def land(self, transfer: Transfer, now_s: float) -> None:
        """The KV has arrived: the source forgets the sequence, the target may run it."""
        loop = self._loop
        for end in (transfer.source, transfer.target):
            if end is not None:
                (loop.settle if loop.acts else loop.interrupt)(end, now_s)
        if loop.acts:
            del self.transfers[transfer]
        seq, source, target, migration = transfer.seq, transfer.source, transfer.target, transfer.migration
        if source is not None:
            source.release(seq, now_s)
            loop.free.add(source.index)
            if loop.acts:
                loop.memory_freed(source)
                loop.check_empty(source, now_s)
        if migration is None:
            seq.handoff_end_s = now_s
        else:
            del self.under_way[seq._request.id]
            loop.note(
                ActionEvent(
                    "migrate", migration.began_s, now_s, migration.source.index, target.index, seq._request.id,
                    migration.stop_s, seq.computed,
                )
            )  # fmt: skip
        target.land(seq, now_s)
        loop.free.add(target.index)
        if loop.acts:
            loop.touch(target.index)
        if target.inbox.offers:
            loop.offered.add(target.index)
        if loop.withdrawn:
            loop.drop_withdrawn(now_s)

    def replica_down(self, replica: Replica, now_s: float) -> list[tuple[Sequence, Replica]]:
        """A replica goes down, and all that was under way to it or from it ends; the hand-offs that may begin anew."""
        offers: list[tuple[Sequence, Replica]] = []
        self.stopping.pop(replica.index, None)
        for transfer in [t for t in self.transfers if replica in (t.source, t.target)]:
            del self.transfers[transfer]
            if transfer.migration is not None:
                del self.under_way[transfer.seq._request.id]
            if transfer.target is not replica:
                transfer.target.drop(transfer.seq, now_s)
                self._loop.memory_freed(transfer.target)
            elif transfer.source is not None:
                if transfer.migration is None:
                    offers.append((transfer.seq, transfer.source))
                else:
                    transfer.source.stay(transfer.seq, now_s)
                    self._loop.free.add(transfer.source.index)
        for move in [m for m in self.under_way.values() if replica in (m.source, m.target)]:
            self.abort(move, "a replica went down", now_s)
        return offers
