"""A workload that is a list of requests, written out one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from harness.api import Request
from harness.data.records import scheduled_table


@dataclass(frozen=True, slots=True)
class Listed:
    """The given requests, ordered by `scheduled_s`, whatever the seed."""

    requests: tuple[Request, ...]
    facts: Mapping[str, object] = field(default_factory=dict)

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # nothing is random here
        yield scheduled_table(self.requests)

    def describe(self) -> Mapping[str, object]:
        """Where the list comes from."""
        return self.facts
