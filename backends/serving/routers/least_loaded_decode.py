"""Least loaded decode: the replica with the fewest blocks of context, those on their way included; the first of equals.

Source: Zhong et al., DistServe, OSDI 2024, section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class LeastLoadedDecode:
    """Counts blocks held, and those that queued requests will take for their prompts."""

    @property
    def watches(self) -> bool:
        """True: decoding takes blocks."""
        return True

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the replica."""
        loads = [_load(replica) for replica in replicas]
        return loads.index(min(loads))


def _load(replica: Replica) -> int:
    blocks = replica.blocks
    queued = sum(blocks.blocks_for(seq.prompt) for seq in replica.waiting)
    if replica.inbox is not None:
        queued += sum(blocks.blocks_for(seq.prompt) for seq, _ in replica.inbox.offers)
    return blocks.total - blocks.free + queued
