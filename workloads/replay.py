"""A recorded trace as a workload: its stamps, lengths, sessions and shared prefixes."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.api import Extra, Loaded
from harness.data.records import schedule_chunk
from harness.errors import UsageError, no_such
from harness.spec import Spec
from workloads import traces, transforms
from workloads.trace_tools import write
from workloads.traces import Trace

CHUNK = 65_536
"""Rows of a chunk of the schedule."""

OFFLINE = "offline"
"""The tag of rows that are offline requests."""

Turns = Literal["recorded", "answered"]
TURNS: tuple[Turns, ...] = ("recorded", "answered")


def load(
    path: str,
    *,
    reader: str | None = None,
    columns: str | None = None,
    start_s: float | None = None,
    stop_s: float | None = None,
    limit: int | None = None,
    where: str | None = None,
    jitter: str | None = None,
    scale: str | None = None,
    turns: str | None = None,
    content: str | None = None,
    seed: int = 0,
) -> Loaded:
    """The workload that replays a trace file, or a slice of it (see `traces.Slice`).

    In this order: the slice, `where` (conditions, see `transforms.filtered`), `limit`, `jitter` (a time, or 'grain'),
    `scale` (`transforms.scaling`). What was done, and with which seed, stands in the
    provenance. `turns` 'answered' holds a later turn of a conversation back until the one before is answered.
    Raises UsageError naming file, line and column for whatever is wrong with the file, and for wrong options.
    """
    if turns is not None and turns not in TURNS:
        raise no_such("way to time turns", turns, TURNS)
    trace = read(path, reader, columns, start_s=start_s, stop_s=stop_s, limit=limit, where=where)
    trace = changed(trace, scale=scale, jitter=jitter, seed=seed)
    if turns == "answered" and "parent" not in trace.table.column_names and "session" not in trace.table.column_names:
        raise UsageError(f"--turns answered needs conversations, and '{path}' names none; leave it out.")
    replayed = Replay(trace, "answered" if turns == "answered" else "recorded")
    given = {"path": path, "reader": reader, "columns": columns, "start_s": start_s, "stop_s": stop_s, "limit": limit,
             "where": where, "jitter": jitter, "scale": scale, "turns": turns}  # fmt: skip
    # a comma ends a value of a spec, and file names and conditions may hold some
    texts = {key: str(value).replace(",", ";") for key, value in given.items() if value is not None}
    return Loaded(
        name=str(trace.facts["file"]),
        workload=replayed,
        content=registry.make("content", content or "tokens", seed=seed),
        arrivals_text=str(Spec("trace", texts)),
        lengths_text="those of the trace",
        rate_rps=trace.mean_rate_rps,
        requests=len(trace),
        provenance=replayed.describe(),
        timing="recorded",
    )


def read(
    path: str,
    reader: str | None = None,
    columns: str | None = None,
    *,
    start_s: float | None = None,
    stop_s: float | None = None,
    limit: int | None = None,
    where: str | None = None,
) -> Trace:
    """A slice of a trace file, filtered; `limit` counts the requests that pass. Raises UsageError."""
    try:
        part = traces.Slice(start_s, stop_s, None if where else limit)
    except ValueError as error:
        raise UsageError(f"Trace '{path}': {error}") from None
    trace = traces.read(path, reader, part, columns)
    if (origin := write.origin(path)) is not None:
        trace = transforms.with_facts(trace, made_from=origin)
    return trace if where is None else transforms.first(transforms.filtered(trace, where), limit)


def changed(trace: Trace, *, scale: str | None = None, jitter: str | None = None, seed: int = 0) -> Trace:
    """The trace jittered and scaled, from generators of `seed`: one cannot change the draws of the other.

    Jitter comes first: it is about the clock of the recorder, in recorded time.
    """
    scaling, jittering = np.random.SeedSequence(seed).spawn(2)
    if jitter is not None:
        trace = transforms.jittered(trace, jitter, np.random.default_rng(jittering))
    if scale is not None:
        trace = transforms.scaled(trace, scale, np.random.default_rng(scaling))
    return trace if scale is None and jitter is None else transforms.with_facts(trace, seed=seed)


@dataclass(frozen=True, slots=True)
class Replay:
    """The requests of a trace, in its order, at its times (s), whatever the seed.

    `turns` 'recorded': later turns of a conversation come at the recorded times too, and do not wait for the
    answer before. 'answered': each comes at its recorded time or when the turn before is answered, whichever is
    later. No one waits for the answers to rows with the tag `offline`.
    """

    trace: Trace
    turns: Turns = "recorded"

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # nothing is random here
        """All requests of the trace; ids are row numbers."""
        for start in range(0, len(self.trace), CHUNK):
            yield self._chunk(self.trace.table.slice(start, CHUNK), start)

    def _chunk(self, part: pa.Table, start: int) -> pa.Table:
        given = {name: part[name] for name in ("prompt_tokens", "output_tokens")}
        known = {name: part[name] for name in ("prefix_ids", "session", "tag") if name in part.column_names}
        optional: dict[str, Any] = {}
        if "prefix_ids" in known:
            optional["prefix_block_tokens"] = np.full(len(part), self.trace.block_tokens)
        if "turn" in part.column_names:
            optional["turn"] = part["turn"].fill_null(0)
        if self.turns == "answered" and "parent" in part.column_names:
            optional["after"] = _lists(part["parent"])
        if "tag" in known and pc.any(offline := pc.equal(known["tag"], OFFLINE)).as_py():
            extra = asdict(Extra(offline=True))
            optional["extra"] = [extra if one else None for one in offline.to_pylist()]
        ids = np.arange(start, start + len(part))
        return schedule_chunk(len(part), id=ids, scheduled_s=part["at_s"], **given, **known, **optional)

    def describe(self) -> Mapping[str, object]:
        """File, hash, format, rows, what was left out, and what was done to the rest."""
        return {**self.trace.facts, "turns": self.turns}


def _lists(parents: pa.ChunkedArray) -> pa.ListArray:
    """A list with the parent, or an empty one where there is none."""
    known = np.asarray(parents.is_valid())
    offsets = pa.array(np.concatenate(([0], np.cumsum(known))), pa.int32())
    return pa.ListArray.from_arrays(offsets, parents.drop_null().combine_chunks())
