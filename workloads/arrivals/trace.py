"""Arrivals of a recorded trace: its stamps, for use with any lengths (`trace:FILE`)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from workloads import traces


@dataclass(frozen=True, slots=True)
class Trace:
    """The arrival stamps of trace file `path`, in seconds; the stream ends with the trace.

    `start_s` and `stop_s` count from the first row of the file, `limit` is the largest number of requests.
    Time 0 is the first row kept, or `start_s` where one is given. `reader` names the format; without it the
    header tells. Rows that are no requests (failures) are left out and counted. Source: the file, whose
    SHA-256 is in `facts`. The mean rate is (requests - 1) / (last - first), 0 where all come at once. Such
    stamps have no gap law to test a run against.
    """

    path: str
    reader: str | None = None
    start_s: float | None = None
    stop_s: float | None = None
    limit: int | None = None
    trace: traces.Trace = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        part = traces.Slice(self.start_s, self.stop_s, self.limit)
        object.__setattr__(self, "trace", traces.read(self.path, self.reader, part))

    @property
    def mean_rate_rps(self) -> float:
        return self.trace.mean_rate_rps

    @property
    def facts(self) -> dict[str, object]:
        """The file, its hash, and what was left out."""
        return dict(self.trace.facts)

    def times(self, rng: np.random.Generator) -> Iterator[float]:  # noqa: ARG002  # nothing is random here
        """Arrival times in seconds, as many as the trace has."""
        return iter(self.trace.at_s.tolist())
