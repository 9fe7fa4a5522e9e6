"""What the result formats of other tools need of a run: its measured requests by that tool's own definitions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harness import registry
from harness.data.folder import Run
from harness.data.lists import lists, number
from harness.data.run_json import RunInfo
from harness.errors import UsageError
from harness.experiments.rescore import reading
from harness.experiments.rescore.side_by_side import events_of_run, gaps_of_run
from harness.metrics.measure import missing
from harness.metrics.profiles._base import Events, Times
from harness.metrics.summary import peak_in_flight
from harness.validity.warnings import is_closed
from reports import _data

Floats: TypeAlias = npt.NDArray[np.float64]
Facts: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """The measured requests of a run as one tool lists them, (requests,) each, in seconds of the run.

    `gaps_s` are those of its ITL, None where the run has none. `epoch_s` is the start of the run in
    Unix time, 0 where it is unknown.
    """

    run: Run
    events: Events
    times: Times
    gaps_s: Floats | None
    epoch_s: float

    @property
    def info(self) -> RunInfo:
        """What run.json has."""
        return self.run.info

    def column(self, name: str) -> Floats:
        """A numeric column of the requests, NaN where null."""
        return number(self.run.requests, name)


def listed(run: Run, profile: str, needs: Sequence[str] = ()) -> Listed:
    """The requests by a definition profile. Raises UsageError for a run that does not hold what the format `needs`."""
    lost = missing(run.requests)
    if not len(run.requests):
        raise UsageError(f"'{run.path}' holds no single requests, which the format is made of.")
    for name, what in (("sent_s", "when requests were sent"), ("itl", "the gaps between tokens")):
        if name in lost and name in ("sent_s", *needs):
            raise UsageError(f"'{run.path}' does not hold {what}, which the format is made of.")
    source, definition = reading.of_run(run), registry.make("profiles", profile)
    events, gaps = events_of_run(source, lost), gaps_of_run(source, lost)
    started = run.info.started
    return Listed(
        _data.measured(run), events, definition.times(events), None if gaps is None else definition.itl(gaps),
        datetime.fromisoformat(started).timestamp() if started else 0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One request: when its token events came, and how it ended."""

    token_s: Floats
    status: str
    error: str


def rows(run: Run) -> Iterator[Row]:
    """The requests in the order of the table, read piece by piece; `error` is empty where a request ended well."""
    for piece in run.pieces():
        stamps, status = lists(piece, "token_s"), piece["status"].to_pylist()
        errors = piece["error"].to_pylist() if "error" in piece.column_names else status  # large runs: not in memory
        for i, ended in enumerate(status):
            span = slice(stamps.offsets[i], stamps.offsets[i + 1])
            error = "" if ended == "ok" else errors[i] or ended
            yield Row(stamps.values[span], ended, error)


def arrivals(found: Listed) -> tuple[str, float | None, int | None]:
    """Name of the arrivals, the coefficient of variation of their gaps where the law is a gamma, users of a loop.

    Of a loop whose users are not known, as in a file of another tool, they are the most requests under way.
    """
    text = found.info.workload.arrivals or ""
    name = text.partition(":")[0]
    if is_closed(found.info.workload):
        stated = None if found.info.source else int(registry.make("arrivals", text).users)
        return name, None, stated or max(1, peak_in_flight(found.events.sent_s, found.events.end_s))
    cv = {"poisson": 1.0, "constant": 0.0}.get(name)
    return name, float(registry.make("arrivals", text).cv) if name == "gamma" else cv, None


def system(info: RunInfo) -> tuple[str, str]:
    """Model and address of what was measured, by the names of the backend."""
    backend = info.backend
    return str(backend.get("model") or "unknown"), str(backend.get("url") or backend.get("base_url") or "")


def chunks(value: object) -> Iterator[str]:
    """The JSON text of a value in pieces; an iterator in it is a list that is never held."""
    if isinstance(value, Mapping):
        for i, (name, member) in enumerate(value.items()):
            yield f"{', ' if i else '{'}{json.dumps(name)}: "
            yield from chunks(member)
        yield "}" if value else "{}"
    elif isinstance(value, Iterator):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from chunks(item)
        yield "]"
    else:
        yield json.dumps(value, allow_nan=False)
