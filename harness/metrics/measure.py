"""Metrics applied to tables: all of them by name, in pieces that bound memory, on chosen requests.

What a table of requests cannot tell, because the file it was read from does not hold it.

Columns and metrics by name, in the metadata of the table's schema, which slices and filters keep. A metric that is
missing has no value: it is not computed from the placeholders in its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness import registry
from harness.api import ENDED_WELL, Metric, RunMetric
from harness.data.held_back import HELD_BACK
from harness.data.lists import Floats, Mask, first, kept, last, lists, number, pieces
from harness.errors import UsageError

Row = TypeVar("Row", Metric, RunMetric)
_KEY = b"bench.missing"


@cache
def metrics() -> Mapping[str, Metric]:
    """Every metric of the registry by its `name`, built from defaults."""
    plugins = [row(registry.make("metrics", name), Metric) for name in registry.names("metrics")]
    return MappingProxyType({metric.name: metric for metric in plugins})


@cache
def run_metrics() -> Mapping[str, RunMetric]:
    """Every metric of a whole run by its `name`, in their order."""
    plugins = [row(registry.make("run_metrics", name), RunMetric) for name in registry.names("run_metrics")]
    return MappingProxyType({metric.name: metric for metric in sorted(plugins, key=lambda metric: metric.place)})


def row(plugin: Any, kind: type[Row]) -> Row:
    """A plug-in as a row: a class of another package has the members that it needs."""
    if isinstance(plugin, kind):
        return plugin
    members = {f.name: getattr(plugin, f.name) for f in fields(kind) if hasattr(plugin, f.name)}
    return kind(**{"about": registry.about(type(plugin)), **members})


def in_summary() -> list[Metric]:
    """The metrics that every table of a run has, in their order."""
    return [metric for metric in placed() if metric.in_summary]


def headline() -> list[Metric]:
    """The latencies that stand where there is room for one or two."""
    return [metric for metric in placed() if metric.headline and metric.unit == "s"]


def placed() -> list[Metric]:
    """All metrics in their order."""
    return sorted(metrics().values(), key=lambda metric: metric.place)


def succeeded(table: pa.Table) -> Mask:
    """(requests,) bool: the request ended well."""
    mask: Mask = pc.equal(table["status"], "ok").to_numpy()
    return mask


def ended_well(table: pa.Table) -> Mask:
    """(requests,) bool: the request did not fail, although its answer may be empty."""
    mask: Mask = pc.is_in(table["status"], pa.array(ENDED_WELL)).to_numpy()
    return mask


def cached_share(table: pa.Table) -> float | None:
    """Share of the tokens of prompts that was cached, of the requests that tell; None where none does.

    A prompt has as many tokens as the server counted, where it did.
    """
    cached, counted = number(table, "cached_tokens"), number(table, "prompt_tokens_server")
    tokens = np.where(np.isnan(counted), number(table, "prompt_tokens"), counted)[np.isfinite(cached)]
    return float(np.nansum(cached) / tokens.sum()) if tokens.sum() else None


def per_request(metric: Metric, table: pa.Table) -> Floats:
    """(requests,) values, NaN where undefined or unknown (`held_back`); of a pooled metric the worst of each request.

    A metric that is `whole` sees the table at once. One that the table cannot tell (`missing`) is undefined for all.
    Raises ValueError for a metric of gaps where the table has only the first and the last token of each request.
    """
    _check_whole(metric, table)
    if metric.name in missing(table):
        return np.full(len(table), np.nan)
    measure: Callable[[pa.Table], np.ndarray] = metric.worst or metric.of
    values = measure(table) if metric.whole else joined(map(measure, pieces(table)), len(table))
    if (unknown := held_back(metric, table)) is not None:
        values[unknown] = np.nan
    return values


def sample(metric: Metric, table: pa.Table, ok: Mask) -> Floats:
    """The defined, finite values of the requests in `ok` (requests,): (n,), a copy that the caller may change.

    A pooled metric has at most one value per token event. Raises ValueError as `per_request` does.
    """
    _check_whole(metric, table)
    if metric.name in missing(table):
        return np.empty(0)
    if (unknown := held_back(metric, table)) is not None:
        ok = ok & ~unknown
    if metric.pooled:
        events = sum(len(chunk.flatten()) for chunk in table["token_s"].chunks)
        return joined(map(metric.of, kept(table, ok)), events)
    values = per_request(metric, table)
    return values[ok & np.isfinite(values)]


def held_back(metric: Metric, table: pa.Table) -> Mask | None:
    """(requests,) answers of which this metric is not known, as they were held back on their way; None without any."""
    if not metric.needs_token_times or HELD_BACK not in table.column_names:
        return None
    unknown: Mask = table[HELD_BACK].to_numpy()
    return unknown


def _check_whole(metric: Metric, table: pa.Table) -> None:
    if metric.gaps and "events" in table.column_names:
        raise ValueError(f"a thin table has no gaps between tokens, which {metric.name} is made of")


def first_last(table: pa.Table) -> tuple[Floats, Floats]:
    """First and last token time of each request, both (requests,) seconds, NaN for a request without a token."""
    ends = (joined((end(lists(piece, "token_s")) for piece in pieces(table)), len(table)) for end in (first, last))
    first_s, last_s = ends
    return first_s, last_s


def joined(parts: Iterable[np.ndarray], most: int) -> Floats:
    """The parts, at most `most` values in all, one after the other.

    Note: np.concatenate would hold all parts beside the result, twice the memory of a large run.
    """
    values, end = np.empty(most), 0
    for part in parts:
        values[end : end + len(part)] = part
        end += len(part)
    return values[:end]


def marked(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The same table, which says that these columns and metrics are missing."""
    metadata = {**(table.schema.metadata or {}), _KEY: ",".join(sorted(names)).encode()}
    return table.replace_schema_metadata(metadata)


def missing(table: pa.Table) -> frozenset[str]:
    """Names of the columns and metrics that the table lacks; runs of bench lack none."""
    names = (table.schema.metadata or {}).get(_KEY, b"").decode()
    return frozenset(names.split(",")) if names else frozenset()


def check_bounds(table: pa.Table, names: Iterable[str]) -> None:
    """Raises UsageError when an SLO bounds one of these metrics and the table lacks it."""
    lost = sorted(missing(table).intersection(names))
    if lost:
        raise UsageError(f"The file that these requests were read from cannot tell '{lost[0]}'; bound another metric.")
