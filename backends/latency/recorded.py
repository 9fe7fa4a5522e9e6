"""Recorded step times: the simulator runs on the clock of a stored run, such as one of the engine.

Each step starts and ends when it did in that run, and each request arrives when that run's scheduler saw it
(`arrived_s`). With the same policy and memory the simulator then gives every token time of the run, equal to the last
bit: its error is its latency model's error and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from backends.serving.batch import Batch
from harness import untrusted
from harness.api import FollowUps, Request, RequestRecord
from harness.errors import NotValid, UsageError

if TYPE_CHECKING:
    from backends.serving.replica import Replica


@dataclass(slots=True)
class Recorded:
    """`run` is the folder of a run that has `steps.parquet` and `requests.parquet`.

    Not a LatencyModel: times are looked up by the place of a step, not computed from its load.
    """

    run: str
    _rows: dict[int, list[tuple[float, float, int, int]]] = field(init=False)  # replica: (start, end, prefill, decodes)
    _next: dict[int, int] = field(default_factory=dict, init=False)
    _arrived: dict[int, tuple[float, float]] = field(init=False)  # request id: (arrived, sent)

    def __post_init__(self) -> None:
        steps, requests = (self._read(f"{name}.parquet") for name in ("steps", "requests"))
        self.load(steps, requests)

    def _read(self, name: str) -> pa.Table:
        path = Path(self.run) / name
        if not path.is_file():
            raise UsageError(f"'{path}' does not exist; recorded needs the folder of a finished run of the engine.")
        return untrusted.read_parquet(path)

    def load(self, steps: pa.Table, requests: pa.Table) -> None:
        """Take the step times and arrival times of these tables."""
        self._rows = {}
        columns = (steps[name].to_pylist() for name in ("replica", "start_s", "end_s", "prefill_tokens", "decode_seqs"))
        for replica, *row in zip(*columns, strict=True):
            self._rows.setdefault(replica, []).append(tuple(row))
        columns = (requests[name].to_pylist() for name in ("request_id", "arrived_s", "sent_s"))
        self._arrived = {i: (arrived, sent) for i, arrived, sent in zip(*columns, strict=True) if arrived is not None}
        if not self._arrived:
            raise UsageError(f"'{self.run}' has no arrived_s: its backend did not record arrivals at its scheduler.")

    def retimed(
        self,
        requests: Iterable[Request],
        follow_ups: FollowUps | None,
        simulate: Callable[[Iterator[Request], FollowUps | None], Iterator[RequestRecord]],
    ) -> Iterator[RequestRecord]:
        """Simulate the requests that arrived in the run, in that order; records have the sending times of the run."""

        def arriving(incoming: Iterable[Request]) -> list[Request]:
            return sorted((request for request in incoming if request.id in self._arrived), key=self.arrived)

        more = None if follow_ups is None else lambda record: arriving(follow_ups(record))
        for record in simulate(iter(arriving(requests)), more):
            record.sent_s = self._arrived[record.request_id][1]
            yield record

    def arrived(self, request: Request) -> tuple[float, float, int]:
        """When the scheduler of the run saw a request, and the order of those of one instant: that of sending."""
        return *self._arrived[request.id], request.id

    def next_start_s(self, replica: int) -> float:
        """When the next recorded step of a replica starts, inf after the last."""
        rows, place = self._rows.get(replica, []), self._next.get(replica, 0)
        return rows[place][0] if place < len(rows) else inf

    def end_s(self, replica: Replica, batch: Batch) -> float:
        """When that step ended. Raises NotValid if the simulator formed another batch than the run did."""
        place = self._next.get(replica.index, 0)
        start_s, end_s, *ran = self._rows[replica.index][place]
        formed = [sum(tokens for _, tokens in batch.prefills), len(replica.decoding) if batch.decode_seqs else 0]
        if ran != formed:
            raise NotValid(
                f"Step {place} of replica {replica.index} (at {start_s:.6f} s) ran {ran[0]} prompt tokens and {ran[1]} "
                f"decodes, the simulator would run {formed[0]} and {formed[1]}; give it the run's policy and memory."
            )
        self._next[replica.index] = place + 1
        return end_s
