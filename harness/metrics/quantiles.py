"""The one percentile function: raw values, linear interpolation (numpy.percentile, as vLLM and SGLang).

The one rank correlation: whether long prompts have long answers, whatever the shape of either.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


def quantile(values: Floats, q: float) -> float:
    """Quantile `q` (0..1) of the values that are not NaN; NaN when there are none."""
    return float(quantiles(values[~np.isnan(values)], [q])[0])


def quantiles(values: Floats, qs: Sequence[float]) -> list[float]:
    """Several quantiles in one pass over values without NaN, which it reorders in place; NaN of no values."""
    if not len(values):
        return [float("nan")] * len(qs)
    return [float(v) for v in np.quantile(values, qs, method="linear", overwrite_input=True)]


def with_failures(values: Floats, failed: int, q: float) -> float:
    """Quantile `q` of `values` and of `failed` infinite ones: a request that failed took for ever."""
    known = values[~np.isnan(values)]
    place = (len(known) + failed - 1) * q
    if len(known) + failed == 0:
        return float("nan")
    if place > len(known) - 1 + 1e-9:  # 1e-9: (n - 1) * q may miss a whole number by rounding
        return float("inf")
    return quantile(known, min(1.0, place / (len(known) - 1)) if len(known) > 1 else 0.0)


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
