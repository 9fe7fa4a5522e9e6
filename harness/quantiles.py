"""The one percentile function: raw values, linear interpolation (numpy.percentile, as vLLM and SGLang)."""

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
