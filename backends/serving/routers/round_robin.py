"""Round robin: replicas in turn, whatever they are doing."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.api import Request

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(slots=True)
class RoundRobin:
    """Counts the requests that it has routed."""

    _turn: int = field(default=0, init=False)

    def route(self, request: Request, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """The next replica in turn."""
        index = self._turn % len(replicas)
        self._turn += 1
        return index
