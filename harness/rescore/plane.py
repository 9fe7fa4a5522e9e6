"""Attainment under every pair of two bounds, exactly: each request falls into one cell, and sums do the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness.missing import check_bounds
from harness.rescore.scale import first_within
from harness.slo import Seen

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """`met` (limits of the first, limits of the second) requests that keep both; `first` and `second` those of one."""

    metrics: tuple[str, str]
    limits_s: tuple[Floats, Floats]
    met: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    requests: int


def plane(seen: Seen, limits_s: dict[str, Sequence[float]]) -> Plane:
    """The plane over the rising limits of two metrics; bounds that requests bring along play no part in it.

    Raises UsageError for a metric that the table cannot tell.
    """
    check_bounds(seen.table, limits_s)
    (one, other), (one_s, other_s) = limits_s.keys(), [np.asarray(v, np.float64) for v in limits_s.values()]
    shape = len(one_s) + 1, len(other_s) + 1
    row, column = (first_within(seen.values(m)[seen.ok], 1.0, v) for m, v in ((one, one_s), (other, other_s)))
    cells = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)
    met = cells.cumsum(axis=0).cumsum(axis=1)
    return Plane((one, other), (one_s, other_s), met[:-1, :-1], met[:-1, -1], met[-1, :-1], len(seen.ok))
