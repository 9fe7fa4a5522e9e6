"""Stored runs as they are scored again, a row per measured request, and the requests of a run in groups.

Everything but the gaps follows from the first and the last token, so that a run of a million requests is read row group
by row group, in threads, without ever holding all of its token times.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.data import large
from harness.data.folder import Run
from harness.data.lists import first, lists, number, pieces
from harness.data.records import since
from harness.data.run_json import RunInfo
from harness.errors import no_such
from harness.experiments import imports
from harness.metrics.objective import UNTAGGED, Seen
from harness.validity.conclude import completed

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Grouping: TypeAlias = tuple[Ints, list[str]]
"""(requests,) the number of the group of each request, and the names of the groups."""
TENTHS = 10
MOST = 20
"""Groups that are shown apart; the others, which have fewer requests, stand together."""


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


def check(by: str) -> str:
    """The name of a grouping. Raises UsageError for one that is not known."""
    name = by.strip().lower()
    if name not in GROUPINGS:
        raise no_such("grouping", by.strip(), GROUPINGS)
    return name


def grouped(source: Source, by: str) -> Grouping:
    return GROUPINGS[check(by)](source)


def _classes(source: Source) -> Grouping:
    coded = source.seen.classes()
    if coded is None:
        return np.zeros(len(source.table), np.int64), [UNTAGGED] * min(1, len(source.table))
    codes, names = coded
    order = sorted(range(len(names)), key=names.__getitem__)
    return np.argsort(order)[codes], [names[i] for i in order]


def _cached(source: Source) -> Grouping:
    share = number(source.table, "cached_tokens") / np.maximum(number(source.table, "prompt_tokens"), 1)
    place = np.where(np.isnan(share), 3, np.where(share <= 0, 0, np.where(share < 0.5, 1, 2))).astype(np.int64)
    return _used(place, ["nothing cached", "under half cached", "half or more cached", "not known"])


def _times(source: Source) -> Grouping:
    """Ten parts of the run that last equally long."""
    due_s = number(source.table, "scheduled_s")
    if not len(due_s):
        return np.empty(0, np.int64), []
    edges = np.linspace(due_s.min(), due_s.max(), TENTHS + 1)
    place = np.clip(np.searchsorted(edges, due_s, side="right") - 1, 0, TENTHS - 1)
    decimals = max(0, 1 - math.floor(math.log10(edges[1] - edges[0]))) if edges[1] > edges[0] else 0
    return _used(place, [f"{a:,.{decimals}f} to {b:,.{decimals}f} s" for a, b in pairwise(edges.tolist())])


def _prefixes(source: Source) -> Grouping:
    """By the first block of a prompt that others have too, as the schedule names it."""
    schedule = source.schedule
    if schedule is None:
        return np.zeros(len(source.table), np.int64), ["not known"] * min(1, len(source.table))
    blocks = first(lists(schedule, "prefix_ids"))
    ids = schedule["id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], source.table["request_id"].to_numpy())
    block = blocks[order][np.minimum(place, len(ids) - 1)]
    prefixes, code, count = np.unique(block, return_inverse=True, return_counts=True)
    unshared = (count == 1) | np.isnan(prefixes)
    shared = np.where(unshared[code], np.nan, block)
    return _each_value(shared, lambda value: f"prefix {value:.0f}", without="no shared prefix")


GROUPINGS: Mapping[str, Callable[[Source], Grouping]] = MappingProxyType(
    {
        "class": _classes,
        "turn": lambda run: _each_value(number(run.table, "turn") + 1, lambda turn: f"turn {turn:.0f}"),
        "prompt": lambda run: _tenths(number(run.table, "prompt_tokens")),
        "output": lambda run: _tenths(number(run.table, "output_tokens_asked")),
        "prefix": _prefixes,
        "cached": _cached,
        "replica": lambda run: _each_value(number(run.table, "replica"), lambda replica: f"replica {replica:.0f}"),
        "time": _times,
    }
)
"""What `--by` can name."""


def _tenths(values: Floats) -> Grouping:
    """Groups of about a tenth each; equal values stay together, so that there may be fewer."""
    if not len(values):
        return np.empty(0, np.int64), []
    inner = np.quantile(values, np.arange(1, TENTHS) / TENTHS, method="inverted_cdf")
    edges = np.unique(inner)
    place = np.searchsorted(edges, values)
    return _used(place, [_between(values[place == i]) for i in range(len(edges) + 1)])


def _between(values: Floats) -> str:
    if not len(values):
        return ""
    low, high = f"{values.min():,.0f}", f"{values.max():,.0f}"
    return f"{low} tokens" if low == high else f"{low} to {high} tokens"


def _each_value(values: Floats, name: Callable[[float], str], *, without: str = "not known") -> Grouping:
    """A group per value, the most frequent ones; the others together, and those without a value."""
    distinct, count = np.unique(values[~np.isnan(values)], return_counts=True)
    top = np.sort(distinct[np.argsort(-count, kind="stable")][:MOST])
    place = np.searchsorted(top, values)
    inside = np.isin(values, top)
    place = np.where(inside, place, np.where(np.isnan(values), len(top) + 1, len(top))).astype(np.int64)
    return _used(place, [*(name(v) for v in top), "others", without])


def _used(place: Ints, names: list[str]) -> Grouping:
    """The same without empty groups."""
    filled = np.bincount(place, minlength=len(names)) > 0
    return (np.cumsum(filled) - 1)[place].astype(np.int64), [n for n, used in zip(names, filled, strict=True) if used]
