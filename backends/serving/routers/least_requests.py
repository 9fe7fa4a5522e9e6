"""Least requests: the replica with the fewest waiting and running requests; the first of equals."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """Knows the number of requests at each replica, as a gateway does that counts what it sent."""

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the least busy replica."""
        counts = [len(replica.waiting) + replica.running for replica in replicas]
        return counts.index(min(counts))
