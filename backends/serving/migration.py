"""Live migration: a running sequence moves to another replica while it goes on decoding.

Stage by stage the blocks that filled since the stage before are copied; when few are left the sequence stops, the rest
is copied, and it goes on at the target. The target reserves memory for each stage and may refuse. An aborted migration
leaves the source as it was. Without `live` the sequence stops first and everything is copied at once.
Source: Sun et al., Llumnix, OSDI 2024, section 4.2; AlibabaPAI/llumnix, `llumnix/config/default.py` (the last stage has
at most 16 blocks, there are at most 3 stages).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from backends.serving.batch import Sequence
from backends.serving.handoff import Links, Transfer

if TYPE_CHECKING:
    from backends.serving.replica import Replica


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
        here = seq.group is not None and any(seq.group is lane.decoding for lane in source.lanes)
        return here and source.alive and self.target.alive and seq.preemptions == self._preemptions

    def next_stage(self, links: Links, now_s: float) -> float | Literal["stop", "abort"]:
        """When the next stage has been copied; or that the sequence must stop for the last one, or stays."""
        size = self.source.blocks.size
        left = self.source.blocks.blocks_for(self.seq.computed - self.copied_tokens)
        if not self.live or left <= self.last_blocks:
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
