"""Even context: the replica that has the fewest tokens to work on; running requests move away from the fullest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.serving.routing import ClusterView, Decision, Hold, Migrate, ReplicaView, Send

if TYPE_CHECKING:
    from backends.serving.batch import VisibleRequest


@dataclass(frozen=True, slots=True)
class EvenContext:
    """Every `tick_s` seconds one request migrates if the fullest replica has more than `ratio` times the tokens of the
    emptiest; views of the replicas are `report_s` seconds apart (0: always fresh)."""

    tick_s: float = 0.5
    ratio: float = 1.5
    report_s: float = 0.0

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:  # noqa: ARG002
        """The open replica with the fewest tokens; held while there is none."""
        replicas = view.open()
        return Send(min(replicas, key=_tokens).index) if replicas else Hold()

    def tick(self, now_s: float, view: ClusterView) -> Iterator[Migrate]:  # noqa: ARG002
        """Move the shortest decoding request that makes the difference smaller."""
        replicas = sorted(view.open(), key=_tokens)
        if len(replicas) < 2 or _tokens(replicas[-1]) <= self.ratio * _tokens(replicas[0]):
            return
        least, most = replicas[0], replicas[-1]
        gap = _tokens(most) - _tokens(least)
        for seq in sorted(most.sequences(), key=lambda seq: seq.stored_tokens):
            if 0 < seq.stored_tokens < gap and seq.request_id not in view.migrating:
                yield Migrate(seq.request_id, most.index, least.index)
                return


def _tokens(replica: ReplicaView) -> int:
    return replica.queued_tokens + replica.context_tokens
