"""A workload that is a list of requests, written out one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from harness.api import Request, RequestRecord


@dataclass(frozen=True, slots=True)
class Listed:
    """The given requests, ordered by `scheduled_s`, whatever the seed."""

    requests: tuple[Request, ...]
    facts: Mapping[str, object] = field(default_factory=dict)

    def start(self, rng: np.random.Generator) -> Iterator[Request]:  # noqa: ARG002  # nothing is random here
        """All requests."""
        return iter(self.requests)

    def follow_ups(self, record: RequestRecord) -> Iterable[Request]:  # noqa: ARG002  # an open loop
        """None: the list holds every request."""
        return ()

    def describe(self) -> Mapping[str, object]:
        """Where the list comes from."""
        return self.facts
