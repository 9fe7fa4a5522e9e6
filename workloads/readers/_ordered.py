"""Orders the rows of a trace by stamp; the whole file is held for that."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from workloads.readers._collect import Block
from workloads.readers._requests import Marked, Requests, with_items

FALLS = "earlier than the row before, so all rows are sorted by time"


def ordered(rows: Iterator[tuple[Block, Requests]]) -> Iterator[tuple[Block, Requests]]:
    """All rows as one block, rows of equal stamp in the order of the file."""
    taken = list(rows)
    if not taken:
        return
    joined = _joined([requests for _, requests in taken])
    falls = np.diff(joined.at, prepend=joined.at[:1]) < 0
    if falls.any():
        joined = replace(joined, notes=(*joined.notes, (FALLS, falls)))
    order = np.argsort(joined.at, kind="stable")
    requests = joined.take(order)
    if requests.parent_row is not None:
        requests = replace(requests, parent_row=_moved(requests.parent_row, order))
    if requests.joins is not None:
        joins = requests.joins
        requests = replace(requests, joins=with_items(joins, _moved(joins.flatten(), order).fill_null(-1)))
    blocks = [block for block, _ in taken]

    def identity() -> pa.Table:
        return pa.concat_tables([b.identity() for b in blocks]).combine_chunks().take(pa.array(order))

    size = sum(b.size for b in blocks)
    yield replace(blocks[0], size=size, identity=identity, where=lambda _: "sorted"), requests


def _joined(parts: list[Requests]) -> Requests:
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Requests)):
        columns = [getattr(p, name) for p in parts]
        if columns[0] is None or isinstance(columns[0], str | float | int):
            values[name] = columns[0]
        elif name in ("drops", "notes"):
            values[name] = _marked(columns, [len(p) for p in parts])
        elif name == "more":
            values[name] = {column: pa.concat_arrays([c[column] for c in columns]) for column in columns[0]}
        else:
            values[name] = pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)
    return Requests(**values)


def _marked(parts: list[Marked], sizes: list[int]) -> Marked:
    """Marks of several tables, each of which has some of the texts."""
    texts = list(dict.fromkeys(text for part in parts for text, _ in part))
    empty = [np.zeros(size, bool) for size in sizes]
    masks = [[dict(part).get(text, none) for part, none in zip(parts, empty, strict=True)] for text in texts]
    return tuple((text, np.concatenate(mask)) for text, mask in zip(texts, masks, strict=True))


def _moved(parents: pa.Array, order: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Row numbers before as row numbers after the ordering."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    given = parents.fill_null(-1).to_numpy(zero_copy_only=False)
    known = (given >= 0) & (given < len(order))
    return pa.array(places[np.where(known, given, 0)], pa.int64(), mask=~known)
