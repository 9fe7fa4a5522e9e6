"""Metrics applied to tables: all of them by name, in pieces that bound memory, on chosen requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.metrics._lists import first, last, lists

if TYPE_CHECKING:
    from harness.api import Metric

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

CHUNK = 65_536
"""Rows that a metric sees at one time."""


@cache
def metrics() -> Mapping[str, Metric]:
    """Every metric of the registry by its `name`, built from defaults."""
    found = [registry.make("metrics", name) for name in registry.names("metrics")]
    return MappingProxyType({metric.name: metric for metric in found})


def is_pooled(metric: Metric) -> bool:
    """Whether the metric has a value per event instead of one per request."""
    return bool(getattr(metric, "pooled", False))


def succeeded(table: pa.Table) -> Mask:
    """(requests,) bool: the request ended well."""
    found: Mask = pc.equal(table["status"], "ok").to_numpy()
    return found


def per_request(metric: Metric, table: pa.Table) -> Floats:
    """(requests,) values, NaN where undefined; of a pooled metric the worst value of each request."""
    one: Callable[[pa.Table], np.ndarray] = getattr(metric, "worst", metric.of)
    return _joined([one(piece) for piece in pieces(table)])


def sample(metric: Metric, table: pa.Table, ok: Mask) -> Floats:
    """The defined values of the requests in `ok` (requests,): (n,), a copy that the caller may change."""
    if not is_pooled(metric):
        values = per_request(metric, table)[ok]
        return values[~np.isnan(values)]
    return _joined([metric.of(piece) for piece in kept(table, ok)])


def first_last(table: pa.Table) -> tuple[Floats, Floats]:
    """First and last token time of each request, both (requests,) seconds, NaN for a request without a token."""
    stamps = [lists(piece, "token_s") for piece in pieces(table)]
    return _joined([first(s) for s in stamps]), _joined([last(s) for s in stamps])


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The table in slices of `CHUNK` rows, without a copy."""
    for start in range(0, len(table), CHUNK):
        yield table.slice(start, CHUNK)


def kept(table: pa.Table, mask: Mask) -> Iterator[pa.Table]:
    """The rows in `mask` (requests,), in pieces that copy nothing where nothing is left out."""
    for i, piece in enumerate(pieces(table)):
        wanted = mask[i * CHUNK : (i + 1) * CHUNK]
        yield piece if wanted.all() else piece.filter(pa.array(wanted))


def _joined(parts: Sequence[np.ndarray]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0)
