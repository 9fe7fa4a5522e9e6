"""Stored runs as they are scored again: a row per measured request with its first and last token.

Everything but the gaps follows from these two, so that a run of a million requests is read row group by row group,
in threads, without ever holding all of its token times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness import results, warmup
from harness.conclude import completed
from harness.errors import UsageError
from harness.folder import read_info
from harness.measure import pieces
from harness.metrics._lists import lists
from harness.records import REQUESTS
from harness.slo import Seen

if TYPE_CHECKING:
    from harness.folder import Run

PART = 4096
"""Rows that are read at one time: with 128 tokens each, 4 MB of stamps."""
_LEFT_OUT = ("token_n", "error")
"""Columns that no score needs of every request at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A stored run. `seen` has its measured requests, `left_out` more stand before the cut of the warm-up.

    The table of `seen` has the first and the last token in `token_s` and their number of events in `events`;
    `seen.pieces()` gives the same requests with all tokens. `wire()` is what was seen of a remote run on the wire,
    `schedule()` what was to be sent, with the prefixes that requests share; None where it was not stored.
    """

    path: Path
    info: dict[str, Any]
    seen: Seen
    left_out: int
    wire: Callable[[], pa.Table | None]
    schedule: Callable[[], pa.Table | None]

    @property
    def table(self) -> pa.Table:
        """The measured requests, thin."""
        return self.seen.table


def sources(path: str | os.PathLike[str]) -> Iterator[Source]:
    """The runs at `path`: a run folder, a folder of them (a sweep), or the result file of another tool.

    Raises UsageError where there is none.
    """
    path = Path(path)
    folder = path.parent if path.name == "run.json" else path
    if (folder / "run.json").exists():
        yield _of_folder(folder)
        return
    ours = results.run_folders(folder)
    yield from map(_of_folder, ours)
    yield from map(of_run, results.foreign_below(folder) if ours else results.open(path))


def of_run(run: Run) -> Source:
    """A run that is in memory."""
    run = completed(run)
    table = run.measured
    whole = table.drop_columns([c for c in ("error",) if c in table.column_names])
    seen = Seen(thinned(whole), lambda: pieces(whole))
    return Source(run.path, run.info, seen, len(run.requests) - len(table), lambda: run.http, lambda: run.schedule)


def _of_folder(path: Path) -> Source:
    """A run folder: a finished one is read piece by piece, any other as it stands."""
    info = read_info(path)
    file = path / "requests.parquet"
    if info.get("state") == "running" or "summary" not in info or not file.exists():
        return of_run(results.open(path)[0])
    since_s = _since_s(info)
    groups = _thin_groups(file, since_s)
    table = pa.concat_tables([_EMPTY, *(part for part, _ in groups)])
    seen = Seen(table.combine_chunks(), lambda: _whole(file, since_s))
    wire, schedule = (partial(_table, path / f"{name}.parquet") for name in ("http", "schedule"))
    return Source(path, info, seen, sum(rows for _, rows in groups) - len(table), wire, schedule)


def thinned(table: pa.Table) -> pa.Table:
    """The table with nothing but the first and the last time in `token_s`, and their number in `events`.

    Every metric that says nothing of gaps has the same values, bit for bit.
    """
    rows = lists(table, "token_s")
    events = np.diff(rows.offsets)
    ends = np.zeros(len(events) + 1, np.int64)
    np.cumsum(np.minimum(events, 2), out=ends[1:])
    values = np.empty(ends[-1])
    values[ends[:-1][events > 0]] = rows.values[rows.offsets[:-1][events > 0]]
    values[ends[1:][events > 1] - 1] = rows.values[rows.offsets[1:][events > 1] - 1]
    both = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values), type=REQUESTS.field("token_s").type)
    table = table.drop_columns([c for c in _LEFT_OUT if c in table.column_names])
    table = table.set_column(table.schema.get_field_index("token_s"), "token_s", both)
    return table.append_column("events", pa.array(events, pa.int32()))


_EMPTY = thinned(REQUESTS.empty_table())


def _columns(*without: str) -> list[str]:
    return [name for name in REQUESTS.names if name not in without]


def _thin_groups(file: Path, since_s: float | None) -> list[tuple[pa.Table, int]]:
    """Per row group its measured requests, thin, and its rows; groups are read in threads."""
    count = _opened(file).metadata.num_row_groups

    def read(group: int) -> tuple[pa.Table, int]:
        table = pa.concat_tables([_EMPTY, *(thinned(part) for part in _parts(file, group, _columns(*_LEFT_OUT)))])
        return _since(table, since_s), len(table)

    with ThreadPoolExecutor(max(1, min(count, os.cpu_count() or 1))) as pool:
        return list(pool.map(read, range(count)))


def _whole(file: Path, since_s: float | None) -> Iterator[pa.Table]:
    for group in range(_opened(file).metadata.num_row_groups):
        for part in _parts(file, group, _columns("error")):
            yield _since(part, since_s)


def _parts(file: Path, group: int, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a group, a few at a time: their memory can be used again, which costs less than new memory."""
    schema = pa.schema([REQUESTS.field(name) for name in columns])
    try:
        with _opened(file) as source:
            for batch in source.iter_batches(PART, [group], columns, use_threads=False):
                yield pa.Table.from_batches([batch]).select(columns).cast(schema)
    except (pa.ArrowException, KeyError, OSError) as error:
        raise _unreadable(file, error) from None


def _table(file: Path) -> pa.Table | None:
    if not file.exists():
        return None
    try:
        with _opened(file) as source:
            return source.read()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _opened(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: Exception) -> UsageError:
    return UsageError(f"'{file}' cannot be read: {str(error).splitlines()[0].rstrip('.')}.")


def _since_s(info: dict[str, Any]) -> float | None:
    """From when requests are measured; None where nothing was cut."""
    cut = warmup.restored(info)
    return cut.at_s if cut.requests else None


def _since(table: pa.Table, since_s: float | None) -> pa.Table:
    return table if since_s is None else table.filter(pc.greater_equal(table["scheduled_s"], since_s))
