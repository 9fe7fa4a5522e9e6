"""Fewer points with the same picture: at most `MOST` a trace, and the extremes always stay."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

MOST = 2000
RANKS = "evenly spaced ranks, tails whole"
TAIL_RANKS = "ranks evenly spaced on the log axis, the greatest hundred whole"


def extremes(columns: Sequence[np.ndarray], most: int = MOST) -> np.ndarray:
    """Indices to keep of equally long `columns`: of each run of neighbours the least and the greatest of each.

    First and last stay too; the result is sorted and holds at most `most` indices.
    """
    n = len(columns[0]) if columns else 0
    if n <= most:
        return np.arange(n)
    bins = max(1, (most - 2) // (2 * len(columns)))
    edges = np.linspace(0, n, bins + 1).astype(np.int64)
    keep = [np.array([0, n - 1])]
    for column in columns:
        values = np.nan_to_num(np.asarray(column, dtype=np.float64), nan=0.0)
        keep.append(np.array([a + np.argmin(values[a:b]) for a, b in pairwise(edges)]))
        keep.append(np.array([a + np.argmax(values[a:b]) for a, b in pairwise(edges)]))
    return np.unique(np.concatenate(keep))


def sampled(values: np.ndarray, most: int = MOST) -> np.ndarray:
    """Indices to keep of a cloud of points: evenly chosen ones, so that its density stays, and the extremes."""
    even = np.linspace(0, len(values) - 1, min(len(values), most * 3 // 4)).astype(np.int64)
    return np.union1d(even, extremes([values], most // 4)) if len(values) > most else np.arange(len(values))


def ranks(n: int, most: int = MOST) -> np.ndarray:
    """Ranks (from 0) of `n` sorted values to draw: all, or evenly spaced ones with both tails kept whole."""
    if n <= most:
        return np.arange(n)
    tail = most // 20
    middle = np.linspace(tail, n - tail - 1, most - 2 * tail).astype(np.int64)
    return np.unique(np.concatenate([np.arange(tail), middle, np.arange(n - tail, n)]))


def tail_ranks(n: int, most: int = MOST) -> np.ndarray:
    """Ranks (from 0) of `n` sorted values for a tail on a log axis: thinner the more values are greater still.

    The greatest hundred stay whole.
    """
    above = np.unique(np.geomspace(1, max(n, 1), most - 100).astype(np.int64)) if n > most else np.arange(1, n + 1)
    return np.sort(n - np.union1d(above, np.arange(1, min(100, n) + 1)))


def note(n: int, drawn: int, what: str, how: str) -> str:
    """The sentence that names a reduction; empty where nothing was left out."""
    return f"{drawn:,} of {n:,} {what} are drawn ({how})." if drawn < n else ""
