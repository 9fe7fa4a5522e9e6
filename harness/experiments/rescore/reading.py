"""Stored runs as they are scored again: a row per measured request with its first and last token.

Everything but the gaps follows from these two, so that a run of a million requests is read row group by row group,
in threads, without ever holding all of its token times.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from harness.data import large
from harness.data.folder import Run
from harness.data.lists import pieces
from harness.data.records import since
from harness.data.run_json import RunInfo
from harness.experiments import imports
from harness.metrics.objective import Seen
from harness.validity.conclude import completed


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A stored run. `seen` has its measured requests, `left_out` more stand before the cut of the warm-up.

    The table of `seen` has the first and the last token in `token_s` and their number of events in `events`;
    `seen.pieces()` gives the same requests with all tokens. `wire` is what was seen of a remote run on the wire,
    `schedule` what was to be sent, with the prefixes that requests share; None where it was not stored.
    """

    path: Path
    info: RunInfo
    seen: Seen
    left_out: int
    wire: pa.Table | None
    schedule: pa.Table | None

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
        yield of_run(large.load(folder, large=0))
        return
    folders = imports.run_folders(folder)
    yield from (of_run(large.load(run_path, large=0)) for run_path in folders)
    yield from map(of_run, imports.foreign_below(folder) if folders else imports.open(path))


def of_run(run: Run) -> Source:
    """A run that is in memory."""
    run = completed(run)
    table = run.measured
    table = table.drop_columns([c for c in ("error",) if c in table.column_names])
    if run.whole is not None:
        since_s = run.info.warmup.since_s
        seen = Seen(table, lambda: (since(piece, since_s) for piece in run.pieces()))
    else:
        seen = Seen(large.thinned(table), lambda: pieces(table))
    return Source(run.path, run.info, seen, len(run.requests) - len(table), run.http, run.schedule)
