"""The table of a heat map or contour: a row per y and a column per x, of chosen cells or of added counts."""

from itertools import pairwise
from typing import Any

import numpy as np

from reports import _format
from reports.figures.style import COUNTS

COLUMNS = 8
ROWS = 16


def table(trace: Any) -> tuple[list[str], list[tuple[str, ...]], str]:
    """Of a trace with `z` (rows, columns): labels of the columns, rows that begin with their label, what they are."""
    z = np.asarray(trace.z, np.float64)
    return _added(trace, np.nan_to_num(np.round(10.0**z))) if trace.meta == COUNTS else _chosen(trace, z)


def _chosen(trace: Any, z: np.ndarray) -> tuple[list[str], list[tuple[str, ...]], str]:
    rows, columns = (
        np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        for n, most in zip(z.shape, (ROWS, COLUMNS), strict=True)
    )
    down, across = ([_cell(v) for v in np.asarray(a)[at]] for a, at in ((trace.y, rows), (trace.x, columns)))
    cells = z[np.ix_(rows, columns)]
    some = f"{cells.size:,} of the {z.size:,} cells drawn, evenly chosen"
    said = some if cells.size < z.size else f"all {z.size:,} cells drawn"
    return across, [(y, *map(_cell, row)) for y, row in zip(down, cells, strict=True)], said


def _added(trace: Any, z: np.ndarray) -> tuple[list[str], list[tuple[str, ...]], str]:
    rows, columns = (
        np.unique(np.linspace(0, n, min(n, most) + 1).astype(np.int64))
        for n, most in zip(z.shape, (ROWS, COLUMNS), strict=True)
    )
    cells = np.add.reduceat(np.add.reduceat(z, rows[:-1], axis=0), columns[:-1], axis=1)
    down, across = (
        [f"{low} to {high}" for low, high in pairwise(map(_cell, np.asarray(a)[at]))]
        for a, at in ((trace.y, rows), (trace.x, columns))
    )
    filled = [(y, *(f"{n:,.0f}" for n in row)) for y, row in zip(down, cells, strict=True) if np.any(row)]
    return across, filled, f"the {np.count_nonzero(z):,} cells drawn, counts of neighbouring cells added up"


def _cell(value: float) -> str:
    return _format.number(float(value))
