"""The one rank correlation: whether long prompts have long answers, whatever the shape of either."""

import math

import numpy as np
import numpy.typing as npt


def spearman(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's rank correlation of two series (N,), ties at their mean rank; NaN where one of them is constant."""
    a, b = (_ranks(np.asarray(values)) for values in (one, other))
    a, b = a - a.mean(), b - b.mean()
    total = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / total if total > 0 else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """(N,) ranks from 1."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return found
