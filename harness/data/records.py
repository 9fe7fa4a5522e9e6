"""Tables of a run: a row per request (`requests`), per executor call (`steps`), per request due (`schedule`), and of
a remote server a row of what the wire saw of each request (`http`).

The schemas are stable: version and units stand in the metadata, so that a Parquet file explains itself.

Tokens that were counted after the run, put into the rows that were written while it went on.
"""

import contextlib
import ctypes
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import islice
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa

from harness.api import (
    VERSION,
    ActionEvent,
    CountedBy,
    DeadlineSlo,
    Exchange,
    Extra,
    LatencySlo,
    ProgramSlo,
    Request,
    RequestRecord,
    SloClass,
    Step,
)
from harness.data import pandas_later  # noqa: F401  # before the first conversion
from harness.errors import BackendError

pa.set_memory_pool(pa.system_memory_pool())  # which gives back what is free; the others keep a third more of a run
# Where malloc is that of glibc it uses freed arrays again from the first on, as it does later; others have no mallopt,
# and Windows or a static interpreter no library of the process.
with contextlib.suppress(AttributeError, OSError, TypeError):
    for threshold, size_bytes in ((-1, 64 << 20), (-3, 32 << 20)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
        ctypes.CDLL(None).mallopt(threshold, size_bytes)

T = TypeVar("T")

TABLE_ROWS = 4096
"""Rows that a simulator gives at a time: few enough to stay in the processor's cache."""

INTS = pa.list_(pa.int64())

_UNITS = {"_s": "s", "_tokens": "tokens", "_n": "tokens"}
"""Units that the end of a column's name tells."""
_OTHER_UNITS = {
    "prompt_tokens_server": "tokens", "output_tokens_asked": "tokens", "decode_seqs": "sequences",
    "waiting": "sequences", "running": "sequences", "free_blocks": "blocks", "reads": "reads",
    "process_stamps": "reads", "shared_events": "events", "held_events": "events", "n": "answers",
    "answers": "answers",
}  # fmt: skip
_SMALL = frozenset(("turn", "priority", "stage", "n", "answers", "instances", "token_n", "replica", "target",
                    "preemptions", "sender", "http_status"))  # fmt: skip
"""Whole numbers of 32 bits; all others have 64."""
_KINDS = {float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_SLO_CLASSES = (LatencySlo, DeadlineSlo, ProgramSlo)
_DEFAULTS = {"prefix_block_tokens": 512, "turn": 0, "priority": 0, "delay_s": 0.0}
Recounts: TypeAlias = Mapping[int, tuple[CountedBy, Sequence[int]]]
"""Of a request: what its tokens were counted by, and how many came with each of its token events."""


def _fields_of(cls: type, names: Sequence[str] = (), *, nullable: bool = False) -> list[pa.Field]:
    """Return the columns of a dataclass of `harness.api`, or those named in their order; None may stand where its type
    has it, or anywhere."""
    hints = get_type_hints(cls)
    return [_field(name, hints[name], nullable=nullable) for name in names or hints]


def _field(name: str, hint: Any, *, nullable: bool = False) -> pa.Field:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kind = next(option for option in options if option is not NoneType)
    unit = _OTHER_UNITS.get(name) or next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    listed = get_origin(kind) in (tuple, Sequence)
    item = _arrow_type(name, get_args(kind)[0] if listed else kind)
    column = pa.list_(pa.field("item", item, nullable=False)) if listed else item
    missing = not listed and (nullable or NoneType in options)
    return pa.field(name, column, nullable=missing, metadata={"unit": unit} if unit else None)


def _arrow_type(name: str, kind: Any) -> pa.DataType:
    if kind is Extra:
        return EXTRA
    if kind is int:
        return pa.int32() if name in _SMALL else pa.int64()
    return _KINDS[type(get_args(kind)[0]) if get_origin(kind) is Literal else kind]


def _schema(table: str, fields: Sequence[pa.Field]) -> pa.Schema:
    return pa.schema(fields, metadata={"bench.table": table, "bench.schema_version": str(VERSION)})


REQUESTS: pa.Schema = _schema(
    "requests",
    _fields_of(RequestRecord, (
        "request_id", "session", "turn", "tag", "scheduled_s", "sent_s", "token_s", "token_n", "prompt_tokens",
        "prompt_tokens_server", "cached_tokens", "output_tokens", "output_tokens_asked", "status", "error", "replica",
        "preemptions", "prefill_start_s", "prefill_end_s", "handoff_start_s", "handoff_end_s", "decode_start_s",
        "slo_ttft_s", "slo_tpot_s", "arrived_s", "ended_s", "slo_task_s", "unseen_tokens",
        "slo_e2e_s", "cap_wait_s", "answers", "cache_hit",
    )),
)  # fmt: skip
"""What happened, one row per request, whatever happened."""

STEPS: pa.Schema = _schema("steps", _fields_of(Step))
"""One row per executor call, its parts where the latency model of a simulation knows them."""

ACTIONS: pa.Schema = _schema("actions", _fields_of(ActionEvent))
"""What routers did, and what befell replicas."""

HTTP: pa.Schema = _schema("http", [_field("request_id", int), *_fields_of(Exchange)])
"""What the wire saw of each request that was sent."""

_EXTRA_SLO = pa.struct([column for cls in _SLO_CLASSES for column in _fields_of(cls, nullable=True)])
EXTRA: pa.StructType = pa.struct([
    *_fields_of(Extra, [f.name for f in fields(Extra) if f.name != "slo"], nullable=True), pa.field("slo", _EXTRA_SLO),
])  # fmt: skip
"""The fields of `harness.api.Extra`; of its `slo` those that its class has."""

SCHEDULE: pa.Schema = _schema("schedule", _fields_of(Request))
"""What is to be sent."""

SERVER_METRICS: pa.Schema = _schema(
    "server_metrics",
    [_field(name, kind) for name, kind in {"time_s": float, "name": str, "labels": str, "value": float}.items()],
)
"""What a server counted about itself, a row per series and reading; a value as at the last reading is left out."""


def to_table(records: Sequence[RequestRecord]) -> pa.Table:
    """The `requests` table of some records, in their order. `token_n` None becomes ones."""
    return table_of(dict(zip(REQUESTS.names, _columns(records, REQUESTS.names), strict=True)))


def table_of(columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """The `requests` table of some columns; one that is left out is null. `token_n` None becomes ones."""
    token_s, arrays = columns["token_s"], []
    for f in REQUESTS:
        if f.name == "token_s":
            arrays.append(ragged(token_s, "d", f.type))
        elif f.name == "token_n":
            arrays.append(_token_n(token_s, columns["token_n"]))
        else:
            arrays.append(column(columns[f.name], f.type) if f.name in columns else pa.nulls(len(token_s), f.type))
    return pa.Table.from_arrays(arrays, schema=REQUESTS)


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns of the schema; those that an earlier version did not write are null."""
    for new in schema:
        if new.nullable and new.name not in table.column_names:
            table = table.append_column(new, pa.nulls(len(table), new.type))
    table = table.select(schema.names)
    return pa.Table.from_arrays(table.columns, schema=schema) if table.schema.equals(schema) else table.cast(schema)


def since(table: pa.Table, since_s: float | None) -> pa.Table:
    """The requests due at `since_s` or after it; all where it is None."""
    import pyarrow.compute as pc  # heavy: a sender does without it

    return table if since_s is None else table.filter(pc.greater_equal(table["scheduled_s"], since_s))


def in_tables(rows: Iterator[T], count: int, table: Callable[[list[T]], pa.Table]) -> Iterator[pa.Table]:
    """Tables of `count` rows, and of those that are left where an error or an interrupt ends the rows."""
    batch: list[T] = []
    try:
        while True:
            batch.extend(islice(rows, count))
            if not batch:
                return
            yield table(batch)
            batch = []
    except (BackendError, KeyboardInterrupt):
        if batch:
            yield table(batch)
        raise


def http_table(records: Sequence[RequestRecord]) -> pa.Table:
    """The `http` table of those records that have an `exchange`, in their order."""
    seen = [record for record in records if record.exchange is not None]
    return _table(HTTP, _columns(seen, ["request_id", *(f"exchange.{name}" for name in HTTP.names[1:])]))


def steps_table(steps: Sequence[Step]) -> pa.Table:
    """The `steps` table of some steps, in their order."""
    return _table(STEPS, _columns(steps, STEPS.names))


def actions_table(actions: Sequence[ActionEvent]) -> pa.Table:
    """The `actions` table of some actions, in their order."""
    return _table(ACTIONS, _columns(actions, ACTIONS.names))


def server_metrics_table(rows: Sequence[tuple[float, str, str, float]]) -> pa.Table:
    """The `server_metrics` table of (time_s, name, labels, value) rows."""
    return _table(SERVER_METRICS, zip(*rows, strict=True) if rows else [()] * len(SERVER_METRICS))


def _table(schema: pa.Schema, columns: Iterable[Sequence[Any]]) -> pa.Table:
    return pa.Table.from_arrays([column(v, f.type) for v, f in zip(columns, schema, strict=True)], schema=schema)


def scheduled_table(requests: Sequence[Any]) -> pa.Table:
    """The `schedule` table of some `harness.api.Request`s, in their order."""
    values = dict(zip(SCHEDULE.names, _columns(requests, SCHEDULE.names), strict=True))
    values["extra"] = tuple(None if extra is None else asdict(extra) for extra in values["extra"])
    arrays = [
        ragged(values[f.name], "q", f.type) if pa.types.is_list(f.type) else column(values[f.name], f.type)
        for f in SCHEDULE
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEDULE)


def extra_of(values: Mapping[str, Any] | None) -> Extra | None:
    """The `extra` of a request from its value in the schedule."""
    if values is None:
        return None
    bounds = {} if values["slo"] is None else {name: v for name, v in values["slo"].items() if v is not None}
    classes: dict[frozenset[str], Callable[..., SloClass]] = {
        frozenset(f.name for f in fields(cls)): cls for cls in _SLO_CLASSES
    }
    slo = classes[frozenset(bounds)](**bounds) if bounds else None
    return Extra(**{**values, "slo": slo})


def schedule_chunk(rows: int, **columns: Any) -> pa.Table:
    """`rows` rows of the `schedule` table from columns (numpy or Arrow arrays, lists); the others get their default.

    `id`, `scheduled_s`, `prompt_tokens` and `output_tokens` have none. Raises ValueError for a column that is not
    `rows` long or not of the schedule.
    """
    if unknown := set(columns) - set(SCHEDULE.names):
        raise ValueError(f"the schedule has no column {', '.join(sorted(unknown))}")
    arrays = [_arrow(columns[f.name], f.type) if f.name in columns else _default(rows, f) for f in SCHEDULE]
    for name, values in zip(SCHEDULE.names, arrays, strict=True):
        if len(values) != rows:
            raise ValueError(f"column {name} has {len(values)} values for {rows} rows")
    return pa.Table.from_arrays(arrays, schema=SCHEDULE)


def _arrow(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    return pa.array(values, kind)


def _default(rows: int, field: pa.Field) -> pa.Array:
    if pa.types.is_list(field.type):
        return listed(np.zeros(rows, np.int64), [], field.type)
    if field.nullable:
        return pa.nulls(rows, field.type)
    if field.name not in _DEFAULTS:
        raise ValueError(f"column {field.name} of the schedule must be given")
    return pa.repeat(pa.scalar(_DEFAULTS[field.name], field.type), rows)


def _columns(rows: Sequence[Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
    if not rows:
        return [()] * len(names)
    return list(zip(*map(attrgetter(*names), rows), strict=True))


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """An Arrow array of Python values, None as null; a column of one value throughout is not looked at one by one."""
    if values and values[0] is values[-1] and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def listed(counts: np.ndarray, values: Any, kind: pa.DataType = INTS) -> pa.ListArray:
    """An Arrow list array: so many of the values in each list, one list after another."""
    return pa.ListArray.from_arrays(pa.array(_offsets(counts), pa.int32()), _arrow(values, kind.value_type), type=kind)


def places(counts: np.ndarray) -> np.ndarray:
    """The place of each value in its list, from 0, where so many are in each list."""
    ends = np.cumsum(counts)
    positions: np.ndarray = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return positions


def ragged(lists: Sequence[Any], typecode: str, kind: pa.DataType) -> pa.Array:
    """An Arrow list array of `array(typecode)`s, sequences or arrays, without a look at each item."""
    dtype = np.dtype(typecode)
    buffers: list[Any] = []
    for x in lists:
        if type(x) is array and x.typecode == typecode:
            buffers.append(x)
        elif len(x):
            buffers.append(np.ascontiguousarray(x, dtype).data.cast("B"))
    return listed(np.fromiter(map(len, lists), np.int64, len(lists)), np.frombuffer(b"".join(buffers), dtype), kind)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("too many tokens for one table; convert the records in batches")
    return offsets


def _token_n(token_s: Sequence[Any], token_n: Sequence[Any]) -> pa.Array:
    """Tokens per event, (events,) in lists; rows that are None get a one per event."""
    events = np.fromiter(map(len, token_s), np.int64, len(token_s))
    offsets = _offsets(events)
    values = np.ones(offsets[-1], np.int32)  # (events,)
    for i, counts in enumerate(token_n) if token_n.count(None) < len(token_n) else ():
        if counts is not None:
            if len(counts) != offsets[i + 1] - offsets[i]:
                raise ValueError(f"row {i}: {len(counts)} token counts for {offsets[i + 1] - offsets[i]} stamps")
            values[offsets[i] : offsets[i + 1]] = counts
    return listed(events, values, REQUESTS.field("token_n").type)


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
    index = batch.schema.get_field_index(name)
    field = batch.schema.field(index)
    arrays = [pa.array(values, field.type) if i == index else batch.column(i) for i in range(batch.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
