"""Queue: the replica with the fewest waiting requests; of equals the one with the fewest running, then the first.

Source: the policy `queue` of Llumnix (Sun et al., OSDI 2024), its comparison "queue-size balancing".
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Queue:
    """Knows how many requests hold no memory yet, and how many do."""

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the replica with the shortest queue."""
        return min(range(len(replicas)), key=lambda i: (len(replicas[i].waiting), replicas[i].running))
