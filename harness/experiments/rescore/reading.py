"""Stored runs as they are scored again: a row per measured request with its first and last token.

Everything but the gaps follows from these two, so that a run of a million requests is read row group by row group,
in threads, without ever holding all of its token times.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from harness.data import large
from harness.data.folder import Run, read_info
from harness.data.lists import pieces
from harness.data.records import REQUESTS
from harness.data.run_json import RunInfo
from harness.experiments import imports
from harness.metrics.slo import Seen
from harness.validity.conclude import completed


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A stored run. `seen` has its measured requests, `left_out` more stand before the cut of the warm-up.

    The table of `seen` has the first and the last token in `token_s` and their number of events in `events`;
    `seen.pieces()` gives the same requests with all tokens. `wire()` is what was seen of a remote run on the wire,
    `schedule()` what was to be sent, with the prefixes that requests share; None where it was not stored.
    """

    path: Path
    info: RunInfo
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
    ours = imports.run_folders(folder)
    yield from map(_of_folder, ours)
    yield from map(of_run, imports.foreign_below(folder) if ours else imports.open(path))


def of_run(run: Run) -> Source:
    """A run that is in memory."""
    run = completed(run)
    table = run.measured
    if run.whole is not None:
        since_s = large.cut_s(run.info)
        seen = Seen(table, lambda: (large.since(piece, since_s) for piece in run.pieces()))
    else:
        whole = table.drop_columns([c for c in ("error",) if c in table.column_names])
        seen = Seen(large.thinned(whole), lambda: pieces(whole))
    return Source(run.path, run.info, seen, len(run.requests) - len(table), lambda: run.http, lambda: run.schedule)


def _of_folder(path: Path) -> Source:
    """A run folder: a finished one is read piece by piece, any other as it stands."""
    info = read_info(path)
    file = path / "requests.parquet"
    if info.state == "running" or not info.concluded or not file.exists():
        return of_run(imports.open(path)[0])
    since_s = large.cut_s(info)
    table = large.read(file, since_s)
    left_out = large.opened(file).metadata.num_rows - len(table)
    seen = Seen(table, lambda: _whole(file, since_s))
    wire, schedule = (partial(_table, path / f"{name}.parquet") for name in ("http", "schedule"))
    return Source(path, info, seen, left_out, wire, schedule)


def _whole(file: Path, since_s: float | None) -> Iterator[pa.Table]:
    columns = [name for name in REQUESTS.names if name != "error"]
    for group in range(large.opened(file).metadata.num_row_groups):
        for part in large.parts(file, group, REQUESTS, columns):
            yield large.since(part, since_s)


def _table(file: Path) -> pa.Table | None:
    if not file.exists():
        return None
    try:
        with large.opened(file) as source:
            return source.read()
    except MemoryError:  # an ArrowException too, where Arrow has no memory
        raise
    except (pa.ArrowException, OSError) as error:
        raise large.unreadable(file, error) from None
