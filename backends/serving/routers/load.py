"""Load: the replica whose memory is asked for least, by what runs and what waits; of equals the least busy one.

Source: the load `kv_blocks_ratio` of Llumnix (Sun et al., OSDI 2024): blocks in use and blocks that the queue demands,
over all blocks. It adds up the queue at every arrival, so that it is slow where queues are thousands long.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Load:
    """Knows the free blocks of each replica and the lengths in its queue."""

    @property
    def watches(self) -> bool:
        """True: free blocks change with every step."""
        return True

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  the load is what it was
        """Index of the replica with the smallest share of memory used or waited for."""
        return min(range(len(replicas)), key=lambda i: _load(replicas[i]))


def _load(replica: Replica) -> tuple[float, int]:
    blocks = replica.blocks
    wanted = blocks.total - blocks.free + sum([blocks.blocks_for(seq.prompt) for seq in replica.waiting])
    return wanted / blocks.total, len(replica.waiting) + replica.running
