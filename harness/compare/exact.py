"""Where two runs of a simulator part: it has no noise, so the first difference is where the cause shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.metrics._lists import lists

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.folder import Run

Mask: TypeAlias = npt.NDArray[np.bool_]


def compared(base: Run, head: Run) -> dict[str, Any]:
    """Whether all rows are equal to the last bit, how many requests are not, and the first request and step."""
    ours, theirs = base.requests.sort_by("request_id"), head.requests.sort_by("request_id")
    differ = _differ(ours, theirs)
    step = _first_step(base.steps, head.steps)
    return {
        "identical": not differ.any() and step is None,
        "requests": max(len(ours), len(theirs)),
        "requests_differ": int(differ.sum()),
        "first_request": _first_request(ours, theirs, differ),
        "steps": None if base.steps is None or head.steps is None else max(len(base.steps), len(head.steps)),
        "first_step": step,
    }


def _differ(base: pa.Table, head: pa.Table) -> Mask:
    """(rows of the longer,) whether a row is not the same in both, in any column."""
    both = min(len(base), len(head))
    found = np.ones(max(len(base), len(head)), bool)
    found[:both] = False
    for name in dict.fromkeys([*base.column_names, *head.column_names]):
        there = name in base.column_names and name in head.column_names
        found[:both] |= _column_differs(base[:both], head[:both], name) if there else True
    return found


def _column_differs(base: pa.Table, head: pa.Table, name: str) -> Mask:
    """(rows,) whether the values of a column differ; null equals null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ours, theirs = base[name], head[name]
    if ours.equals(theirs):
        return np.zeros(len(base), bool)
    if pa.types.is_list(ours.type):
        return _lists_differ(base, head, name)
    other = pc.fill_null(pc.not_equal(ours, theirs), False).to_numpy()
    found: Mask = other | (ours.is_null().to_numpy() != theirs.is_null().to_numpy())
    return found


def _lists_differ(base: pa.Table, head: pa.Table, name: str) -> Mask:
    """(rows,) whether a row has another length, or another item."""
    ours, theirs = lists(base, name), lists(head, name)
    lengths = np.diff(ours.offsets)
    found: Mask = lengths != np.diff(theirs.offsets)
    same = ~found & (lengths > 0)
    place = np.arange(lengths[same].sum()) - np.repeat(np.cumsum(lengths[same]) - lengths[same], lengths[same])
    items = ours.values[np.repeat(ours.offsets[:-1][same], lengths[same]) + place]
    others = theirs.values[np.repeat(theirs.offsets[:-1][same], lengths[same]) + place]
    rows = np.repeat(np.flatnonzero(same), lengths[same])
    found[rows[items != others]] = True
    return found


def _first_request(base: pa.Table, head: pa.Table, differ: Mask) -> dict[str, Any] | None:
    """Of the requests that differ the one that is due first, and the first of its columns that differs."""
    both = min(len(base), len(head))
    if not differ.any():
        return None
    if not differ[:both].any():
        longer = base if len(base) > len(head) else head
        return {"request_id": longer["request_id"][both].as_py(), "column": "request_id", "base": None, "head": None}
    rows = np.flatnonzero(differ[:both])
    row = int(rows[np.argmin(base["scheduled_s"].to_numpy()[rows])])
    return {
        "request_id": base["request_id"][row].as_py(),
        "scheduled_s": base["scheduled_s"][row].as_py(),
        **_first_column(base, head, row),
    }


def _first_step(base: pa.Table | None, head: pa.Table | None) -> dict[str, Any] | None:
    """The first step that is not the same in both, which is the first decision of the schedulers that differs."""
    if base is None or head is None:
        return None
    differ = _differ(base, head)
    if not differ.any():
        return None
    row = int(np.argmax(differ))
    if row >= min(len(base), len(head)):
        return {"step": row, "column": "steps", "base": len(base), "head": len(head)}
    return {"step": row, "start_s": base["start_s"][row].as_py(), **_first_column(base, head, row)}


def _first_column(base: pa.Table, head: pa.Table, row: int) -> dict[str, Any]:
    """Name and both values of the first column in which two rows differ; of a list, the first item that differs."""
    for name in dict.fromkeys([*base.column_names, *head.column_names]):
        ours, theirs = (table[name][row].as_py() if name in table.column_names else None for table in (base, head))
        if ours == theirs:
            continue
        if not (isinstance(ours, list) and isinstance(theirs, list)):
            return {"column": name, "base": ours, "head": theirs}
        place = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        return {"column": name, "item": place, "base": _item(ours, place), "head": _item(theirs, place)}
    raise AssertionError("the row was found to differ")


def _item(values: list[Any], place: int) -> Any:
    return values[place] if place < len(values) else None
