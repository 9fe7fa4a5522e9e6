"""Shortest prefill queue: the replica with the fewest requests whose prompts are not computed; the first of equals.

Source: Zhong et al., DistServe, OSDI 2024, section 4.3; LLMServe/DistServe @82831f1, simdistserve/base/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class ShortestPrefillQueue:
    """Counts requests that wait or are being prefilled."""

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the replica."""
        counts = [
            len(replica.waiting) + (len(replica.prefilling) if replica.pipeline is None else replica.prefill_seqs)
            for replica in replicas
        ]
        return counts.index(min(counts))
