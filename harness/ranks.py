"""The one rank correlation: whether long prompts have long answers, whatever the shape of either."""

import math

import numpy as np
import numpy.typing as npt


def spearman(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's rank correlation of two series (N,), ties at their mean rank; NaN where one of them is constant."""
    centred = []
    for values in (one, other):
        _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # (N,) from 1
        centred.append(ranks - ranks.mean())
    a, b = centred
    total = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / total if total > 0 else math.nan
