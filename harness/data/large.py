"""Large runs made thin: of every request the first and the last token, and all of them piece by piece on demand.

Everything but the gaps follows from these two, so that a run of a million requests is read row group by row group
without ever holding all of its token times; one that is simulated is gathered as its tables pass. What is thin is not
held either (`harness.data.mapped`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import untrusted
from harness.data import folder
from harness.data.folder import Aggregate, Run, RunFolder, Whole
from harness.data.lists import lists
from harness.data.mapped import Growing, Mapped
from harness.data.records import REQUESTS, STEPS, completed, listed, since
from harness.data.schedule import Schedule

PART = 2048
"""Rows that are read at one time: with 128 tokens each, 2 MB of stamps."""

LARGE = 50_000
"""Requests from which on a run is not held whole: with 200 tokens each, 80 MB of stamps."""

SMALL = 10_000
"""Requests up to which the tables of a simulation are held besides being written."""


def passing(requests: int, aggregates: Iterable[type[Aggregate]]) -> Held | Passing | None:
    """What takes the tables of a simulation of so many requests; None where they are better read when it has ended."""
    if requests >= LARGE:
        return Passing(aggregates)
    return Held() if requests <= SMALL else None


class Held:
    """A small simulated run as its tables pass, all of them."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {"requests": [REQUESTS.empty_table()]}

    def add(self, name: str, table: pa.Table) -> None:
        """Take the next rows of the table of that name."""
        self._tables.setdefault(name, []).append(table)

    def run(self, ended: RunFolder, schedule: Schedule) -> Run:
        """The run, whose files are written."""
        tables = {name: pa.concat_tables(parts).combine_chunks() for name, parts in self._tables.items()}
        return folder.load(ended.path, ended.info, {**tables, "schedule": schedule.table})


class Passing:
    """A large simulated run as its tables pass: its requests, thin, and what `aggregates` gather."""

    def __init__(self, aggregates: Iterable[type[Aggregate]]) -> None:
        self._aggregates = {kind: kind() for kind in aggregates}
        self._requests = Growing(THIN)

    def add(self, name: str, table: pa.Table) -> None:
        """Take the next rows of the table of that name, in pieces as `parts` gives them, so that sums are the same."""
        rows = PART if name == "requests" else 32 * PART
        for start in range(0, table.num_rows, rows):
            piece = table[start : start + rows]
            if name == "requests":
                self._requests.add(thinned(piece))
            for aggregate in self._aggregates.values():
                if aggregate.table == name:
                    aggregate.add(piece)

    def run(self, ended: RunFolder, schedule: Schedule) -> Run | None:
        """The run, whose files are written; None where it ended before it was large."""
        if self._requests.rows < LARGE:
            return None
        run = load(ended.path, known={"schedule": schedule.table, "requests": self._requests.table()})
        run.aggregates.update(self._aggregates)
        return run


def load(
    path: str | os.PathLike[str],
    large: int | None = None,
    known: Mapping[str, pa.Table | Mapped | None] = MappingProxyType({}),
) -> Run:
    """Read a run folder as `folder.load` does; a run that has ended, of `large` requests or more (`LARGE`), thin.

    Its `whole` then gives what is not held. Tables that are `known`, of requests thin, are not read again. Raises
    UsageError as `folder.load` does.
    """
    path = Path(path)
    path = path.parent if path.name == "run.json" else path
    info, file, steps = folder.read_info(path), path / "requests.parquet", path / "steps.parquet"
    ended = info.state != "running" and file.exists()
    if not ended or opened(file).metadata.num_rows < (LARGE if large is None else large):
        return folder.load(path, info, known)
    whole = Whole(partial(parts, file, REQUESTS), partial(parts, steps, STEPS) if steps.exists() else None)
    thin = {"requests": known["requests"] if "requests" in known else read(file), "steps": None}
    return folder.load(path, info, {**known, **thin}, whole)


def thinned(table: pa.Table) -> pa.Table:
    """The table with nothing but the first and the last time in `token_s`, their number in `events`, and in `second_s`
    the second of three or more; without `token_n`.

    Every metric that says nothing of gaps has the same values, bit for bit.
    """
    rows = lists(table, "token_s")
    events, starts, ends = np.diff(rows.offsets), rows.offsets[:-1], rows.offsets[1:]
    second_s = np.full(len(events), np.nan)
    second_s[events > 2] = rows.values[starts[events > 2] + 1]
    first_and_last = np.sort(np.concatenate([starts[events > 0], ends[events > 1] - 1]))
    times = listed(np.minimum(events, 2), rows.values[first_and_last], REQUESTS.field("token_s").type)
    table = table.drop_columns([c for c in ("token_n",) if c in table.column_names])
    table = table.set_column(table.schema.get_field_index("token_s"), "token_s", times)
    return table.append_column("events", pa.array(events, pa.int32())).append_column(
        "second_s", pa.array(second_s, from_pandas=True)
    )


THIN = thinned(REQUESTS.empty_table()).schema


def read(file: Path) -> pa.Table | Mapped:
    """The requests of a Parquet file, thin. Raises UsageError for a file that cannot be read."""
    requests = Growing(THIN)
    for piece in parts(file, REQUESTS, [name for name in REQUESTS.names if name != "token_n"]):
        requests.add(thinned(piece))
    return requests.table()


def parts(file: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file, a few at a time: their memory can be used again, which costs less than new memory.

    With the columns named, or all but the texts of errors. Raises UsageError for a file that cannot be read.
    """
    columns = columns or [name for name in schema.names if name != "error"]
    projected = pa.schema([schema.field(name) for name in columns])
    rows = PART if schema is REQUESTS else 32 * PART
    with untrusted.readable(f"'{file}'"), opened(file) as source:
        for group in range(source.metadata.num_row_groups):
            for batch in source.iter_batches(rows, [group], columns):
                yield completed(untrusted.decoded(pa.Table.from_batches([batch]), file), projected)
    pa.default_memory_pool().release_unused()


def opened(file: Path) -> pq.ParquetFile:
    """The Parquet file, to be read in parts. Raises UsageError for one that cannot be read."""
    with untrusted.readable(f"'{file}'"):
        return untrusted.open_parquet(file)


def measured(run: Run) -> Run:
    """The run without the requests before the cut of its warm-up."""
    since_s = run.info.warmup.since_s
    if since_s is None:
        return run
    whole = run.whole
    trimmed = whole and replace(whole, requests=lambda: (since(piece, since_s) for piece in whole.requests()))
    return replace(run, requests=run.measured, whole=trimmed, aggregates={})
