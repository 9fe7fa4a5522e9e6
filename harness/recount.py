"""Tokens that were counted after the run, put into the rows that were written while it went on."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from harness.api import CountedBy

Recounts: TypeAlias = Mapping[int, tuple[CountedBy, Sequence[int]]]
"""Of a request: what its tokens were counted by, and how many came with each of its token events."""


def corrections(table: str, recounted: Recounts) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """What corrects a batch of rows of that table; None where nothing is to be corrected."""
    changes = {"requests": _requests, "http": _http}
    if not recounted or table not in changes:
        return None
    return lambda batch: changes[table](batch, recounted)


def _requests(batch: pa.RecordBatch, recounted: Recounts) -> pa.RecordBatch:
    ids = batch["request_id"].to_pylist()
    if not any(i in recounted for i in ids):
        return batch
    token_n = [
        [*recounted[i][1]] if i in recounted else old for i, old in zip(ids, batch["token_n"].to_pylist(), strict=True)
    ]
    tokens = [
        sum(n) if i in recounted else old
        for i, n, old in zip(ids, token_n, batch["output_tokens"].to_pylist(), strict=True)
    ]
    return _with(_with(batch, "token_n", token_n), "output_tokens", tokens)


def _http(batch: pa.RecordBatch, recounted: Recounts) -> pa.RecordBatch:
    pairs = zip(batch["request_id"].to_pylist(), batch["counted_by"].to_pylist(), strict=True)
    return _with(batch, "counted_by", [recounted[i][0] if i in recounted else old for i, old in pairs])


def _with(batch: pa.RecordBatch, name: str, values: Sequence[object]) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    field = batch.schema.field(at)
    arrays = [pa.array(values, field.type) if i == at else batch.column(i) for i in range(batch.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
