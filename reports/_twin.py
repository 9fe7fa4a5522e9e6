"""The table twin of a figure: the same points as rows, for readers who do not see or draw it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from reports import _cells, _numbers
from reports.figures._style import MARKS

MOST_ROWS = 40
SERIES = "series"
"""Head of the first column where points of several series stand below one another."""


@dataclass(frozen=True, slots=True)
class Twin:
    """Column heads with units, printed rows, and how many points the figure holds in all.

    `said` is what the rows are of the points, where they are neither all of them nor an even choice.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    points: int
    said: str = ""


def twin(figure: go.Figure, most: int = MOST_ROWS) -> Twin:
    """The points of `figure`, one row per shared x (or y), else one row per point; evenly thinned to `most` rows.

    Of a heat map or contour a row per y and a column per x. A figure may bring a table of its own.
    """
    if (own := figure.layout.meta.get("table")) is not None:
        heads, rows, points, said = own
        return Twin(tuple(heads), tuple(map(tuple, rows)), points, said)
    traces = [t for t in figure.data if t.meta != MARKS]
    if grids := [t for t in traces if getattr(t, "z", None) is not None]:
        return _grids(figure, grids)
    xs = [np.asarray(t.x) for t in traces]
    ys = [np.asarray(t.y) for t in traces]
    if _equal(xs):
        heads = [_title(figure, traces[-1], "x"), *(f"{t.name}: {_title(figure, t, 'y')}" for t in traces)]
        columns = [xs[0], *ys]
    elif _equal(ys):
        heads = [_title(figure, traces[0], "y"), *(f"{t.name}: {_title(figure, t, 'x')}" for t in traces)]
        columns = [ys[0], *xs]
    else:
        heads = [
            SERIES,
            _title(figure, traces[-1], "x"),
            " or ".join(dict.fromkeys(_title(figure, t, "y") for t in traces)),
        ]
        names = np.concatenate([np.full(len(x), t.name, dtype=object) for t, x in zip(traces, xs, strict=True)])
        columns = [names, np.concatenate(xs), np.concatenate(ys)]
    kept = _thinned(columns[0] if heads[0] == SERIES else np.zeros(len(columns[0])), most)
    printed = tuple(
        tuple(
            _plain(value) if isinstance(value, str) else "-" if value is None else _numbers.option(float(value))
            for value in (column[i] for column in columns)
        )
        for i in kept
    )
    return Twin(tuple(_plain(head) for head in heads), printed, len(columns[0]))


def _grids(figure: go.Figure, traces: Sequence[Any]) -> Twin:
    """Grids over the same columns stand below one another, those of each series."""
    found = [_cells.table(trace) for trace in traces]
    across, first, said = found[0]
    if len(found) == 1 or any(other != across for other, _, _ in found):
        name = traces[0].name
        heads = [_title(figure, traces[0], "y"), *(f"{name} at {_title(figure, traces[0], 'x')} {x}" for x in across)]
        return Twin(tuple(map(_plain, heads)), tuple(first), np.asarray(traces[0].z).size, said)
    heads = [SERIES, _title(figure, traces[0], "y"), *(f"{_title(figure, traces[-1], 'x')} {x}" for x in across)]
    rows = [(_plain(trace.name), *row) for trace, (_, rows, _) in zip(traces, found, strict=True) for row in rows]
    return Twin(tuple(map(_plain, heads)), tuple(rows), sum(np.asarray(t.z).size for t in traces), f"of each, {said}")


def _thinned(series: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` rows, evenly chosen within each series, its first and last among them."""
    names = list(dict.fromkeys(series.tolist()))
    each = max(2, most // max(1, len(names)))
    places = [np.flatnonzero(series == name) for name in names]
    chosen = [at[np.unique(np.linspace(0, len(at) - 1, min(each, len(at))).astype(np.int64))] for at in places]
    found: np.ndarray = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
    return found


def _equal(arrays: Sequence[np.ndarray]) -> bool:
    return all(len(a) == len(arrays[0]) and bool(np.array_equal(a, arrays[0])) for a in arrays)


def _title(figure: go.Figure, trace: Any, letter: str) -> str:
    anchor = getattr(trace, f"{letter}axis") or letter
    number = anchor[1:]
    axis = getattr(figure.layout, f"{letter}axis{number}")
    return str(axis.title.text or "")


def _plain(text: str) -> str:
    """Figure text as plain text again: it is escaped once more where it is printed."""
    for name, mark in (("<br>", " "), ("&lt;", "<"), ("&gt;", ">"), ("&#123;", "{"), ("&amp;", "&")):
        text = text.replace(name, mark)
    return re.sub(r"\s+", " ", text)
