"""What is to be sent and when: drawn once from one seed, stored with its hash, never moved afterwards."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import untrusted
from harness.api import Request, Workload
from harness.data import files
from harness.data.mapped import Growing, Mapped
from harness.data.records import SCHEDULE, completed, extra_of, listed, places
from harness.errors import NothingDue, UsageError

ENDLESS = 10_000_000
"""A workload that passes this many requests without being cut is taken for endless."""
PAIRS = 65_536
"""Requests and their follow-ups whose blocks are compared at a time."""
GROUP = 1 << 20
"""Requests in a row group of a stored schedule."""
_SCHEDULED = SCHEDULE.get_field_index("scheduled_s")


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The requests of a run in columns (`harness.data.records.SCHEDULE`), and the SHA-256 of what they say."""

    table: pa.Table | Mapped
    sha256: str

    @classmethod
    def draw(
        cls,
        workload: Workload,
        *,
        seed: int,
        requests: int | None = None,
        duration_s: float | None = None,
        live: bool = False,
    ) -> Schedule:
        """The first `requests` requests due before `duration_s`, from one generator seeded with `seed`.

        Where answers are `live`, what a follow-up repeats is the answer itself (see `with_answers`).

        A task with a deadline (`slo_task_s`) that has begun among them is there as a whole: half a task has no latency,
        and would keep any deadline. Equal arguments give equal schedules. Raises UsageError for a limit that lets
        nothing through, for a workload that has neither end nor limit, and for one that breaks its contract.
        """
        if requests is not None and requests < 1:
            raise UsageError(f"The number of requests must be at least 1, got {requests}.")
        if duration_s is not None and not duration_s > 0:
            raise UsageError(f"The duration must be longer than 0 s, got {duration_s:g} s.")
        drawn, tasks = Growing(SCHEDULE), [_tasks(SCHEDULE.empty_table())]
        most = ENDLESS if requests is None and duration_s is None else requests
        stream = workload.start(np.random.default_rng(np.random.SeedSequence(seed)))
        for chunk in stream:
            part = chunk
            if duration_s is not None:  # rows are in order of time
                part = chunk[: int(np.searchsorted(chunk["scheduled_s"].to_numpy(), duration_s))]
            if most is not None and drawn.rows + len(part) > most:
                if requests is None:
                    raise UsageError(
                        f"The workload has no end (more than {ENDLESS:,} requests); give --requests or --duration."
                    )
                part = part[: most - drawn.rows]
            drawn.add(part)
            tasks.append(_tasks(part))
            if len(part) < len(chunk) or drawn.rows == requests:
                for stages in _rest_of_tasks(pa.concat_tables(tasks), chain([chunk[len(part) :]], stream)):
                    drawn.add(stages)
                break
        if not drawn.rows:
            if duration_s is None:
                raise UsageError("The workload holds no request.")
            raise NothingDue(
                f"No request is due in the first {duration_s:g} s; give a longer --duration, or a workload a higher "
                "--rate."
            )
        part, chunk = None, None  # so that long prompts are in memory once
        table = drawn.table()
        _check_contract(table)
        table = with_answers(table) if live else table
        return cls(table, digest(table))

    @classmethod
    def received(cls, schedule: str | bytes) -> Schedule:
        """What the process that started this one has saved: the path of the file, or its bytes."""
        stored, table = _stored(pq.ParquetFile(pa.BufferReader(schedule) if isinstance(schedule, bytes) else schedule))
        return cls(table, stored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """A stored schedule. Raises UsageError for a file that is none, or that was changed since."""
        path = Path(path)
        try:
            stored, table = _stored(untrusted.open_parquet(path), path)
        except FileNotFoundError:
            raise UsageError(f"No schedule '{path}'.") from None
        except (ValueError, OSError) as error:  # pa.ArrowInvalid among them
            if files.has_no_room(error):  # for temporary files
                raise
            raise UsageError(f"'{path}' is not a schedule: {str(error).splitlines()[0]}") from None
        sha256 = digest(table)
        if stored and stored != sha256:
            raise UsageError(
                f"'{path}' was changed after it was drawn: its rows no longer give its hash {stored[:12]}."
            )
        return cls(table, sha256)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file that contains its hash; an existing file is replaced in one step."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        metadata = {**SCHEDULE.metadata, b"bench.sha256": self.sha256.encode()}
        sizes = np.unique(self.table["prefix_block_tokens"].to_numpy()[_lengths(self.table["prefix_ids"]) > 0])
        if len(sizes) == 1:  # for reading the file as a trace
            metadata[b"bench.block_tokens"] = str(sizes[0]).encode()
        extra = has_extra(self.table)  # whose texts in a dictionary could unpack to more than is read of a file
        schema = pa.schema([field for field in SCHEDULE if extra or field.name != "extra"], metadata)
        with pq.ParquetWriter(part, schema, compression="zstd", use_dictionary=not extra) as writer:
            for start in range(0, max(1, len(self)), GROUP):
                rows = self.table[start : start + GROUP]
                writer.write_table(pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema))
        part.replace(path)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last scheduled time."""
        times = self.table["scheduled_s"]
        return float(times[-1].as_py() - times[0].as_py()) if len(times) else 0.0

    @property
    def has_follow_ups(self) -> bool:
        """Whether any request waits for the answer to another."""
        return bool(_lengths(self.table["after"]).any())

    def planned(self) -> Iterator[Request]:
        """The requests that wait for no answer, in order of time."""
        alone = _lengths(self.table["after"]) == 0
        return iter(self) if alone.all() else requests_of(self.table.filter(pa.array(alone)))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[Request]:
        return requests_of(self.table)

    def __repr__(self) -> str:
        return f"<Schedule {len(self)} requests in {self.span_s:.6g} s, sha256 {self.sha256[:12]}>"


def _stored(file: pq.ParquetFile, path: Path | None = None) -> tuple[str, pa.Table | Mapped]:
    """The hash that stands in the file of a schedule, empty where none does, and its rows.

    The file is that at `path` where another has written it.
    """
    with file as source:
        schema, drawn = source.schema_arrow, Growing(SCHEDULE)
        if missing := [name for name in SCHEDULE.names if name not in (*schema.names, "extra")]:
            raise UsageError(f"'{path}' is not a schedule: it has no column '{missing[0]}'.")
        for batch in source.iter_batches(PAIRS):
            rows = pa.Table.from_batches([batch])
            drawn.add(completed(rows if path is None else untrusted.decoded(rows, path), SCHEDULE))
    return (schema.metadata or {}).get(b"bench.sha256", b"").decode(), drawn.table()


def _lengths(lists: pa.ChunkedArray) -> np.ndarray:
    """(rows,) how many values are in each list."""
    return np.concatenate([np.zeros(0, np.int32), *(np.diff(chunk.offsets.to_numpy()) for chunk in lists.chunks)])


def flat(lists: pa.ListArray) -> pa.Array:
    """All values in lists of which none is null; its method of that purpose would import pyarrow.compute."""
    return lists.values[lists.offsets[0].as_py() : lists.offsets[-1].as_py()]


def _tasks(begun: pa.Table) -> pa.Table:
    """The rows of tasks with a deadline, with what tells these."""
    return begun.select(["scheduled_s", "slo_task_s", "session"]).drop_null()


def _rest_of_tasks(tasks: pa.Table, rest: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows of `rest` that belong to `tasks` that have begun; those due after all deadlines do not.

    A stage that cannot be due before its task's deadline is missed already.
    """
    if not len(tasks):
        return
    last_s = (tasks["scheduled_s"].to_numpy() + tasks["slo_task_s"].to_numpy()).max()
    for chunk in rest:
        count = int(np.searchsorted(chunk["scheduled_s"].to_numpy(), last_s, side="right"))
        stages = chunk[:count].filter(np.isin(chunk[:count]["session"].to_numpy(), tasks["session"].to_numpy()))
        if len(stages):
            yield stages
        if count < len(chunk):
            return


def _check_contract(table: pa.Table) -> None:
    times = table["scheduled_s"].to_numpy()
    bad = np.flatnonzero(~np.isfinite(times) | (times < np.concatenate(([0.0], times[:-1]))))
    if len(bad):
        row = int(bad[0])
        before = times[row - 1] if row else 0.0
        raise UsageError(
            f"The workload schedules request {table['id'][row].as_py()} at {times[row]:g} s, after one at "
            f"{before:g} s; a workload must give its requests in order of time, from 0."
        )
    _check_links(table)


def _check_links(table: pa.Table) -> None:
    """Ids are unique; what a row comes after stands above it; delays are finite and not negative."""
    ids, delay_s = table["id"].to_numpy(), table["delay_s"].to_numpy()
    ordered = ids if (ids[1:] > ids[:-1]).all() else np.sort(ids)
    if len(twice := np.flatnonzero(ordered[1:] == ordered[:-1])):
        raise UsageError(f"The workload gives two requests the id {ordered[twice[0]]}; ids must be unique.")
    if len(bad := np.flatnonzero(~np.isfinite(delay_s) | (delay_s < 0))):
        raise UsageError(f"Request {ids[bad[0]]} has a delay of {delay_s[bad[0]]:g} s; it must be 0 s or more.")
    child, parent = links(table)
    if len(bad := np.flatnonzero(parent >= child)):
        raise UsageError(
            f"Request {ids[child[bad[0]]]} comes after a request that does not stand above it in the schedule."
        )


def with_answers(table: pa.Table) -> pa.Table:
    """The schedule in which a request names the blocks of its answer too, where a follow-up has them in its prompt.

    That is one of its session whose prompt is as long as prompt and answer together, and begins with all whole blocks
    of the prompt: its ids up to the end of the answer are then those of the request.
    """
    child, parent = links(table)
    lists = table["prefix_ids"].combine_chunks()
    if not len(child) or not len(lists.values):
        return table
    session, count = table["session"].to_numpy(), len(table)
    prompt, output, size = (table[n].to_numpy() for n in ("prompt_tokens", "output_tokens", "prefix_block_tokens"))
    total, full = prompt + output, prompt // size  # (N,) tokens that a follow-up may repeat; whole blocks of the prompt
    counts, starts, ids = lists.value_lengths().to_numpy(), lists.offsets.to_numpy()[:-1], lists.values.to_numpy()
    pairs = np.flatnonzero(
        (session[child] == session[parent]) & (size[child] == size[parent]) & (prompt[child] >= total[parent])
        & (counts[child] * size[child] >= total[parent]) & (counts[parent] >= full[parent])
    )  # fmt: skip
    source = np.arange(count)  # (N,) the row whose ids a row takes
    for part in np.array_split(pairs[::-1], len(pairs) // PAIRS + 1):  # the first of several follow-ups last: it stays
        a, b, n = parent[part], child[part], full[parent[part]]
        place, pair = places(n), np.repeat(np.arange(len(part)), n)
        other = ids[starts[a][pair] + place] != ids[starts[b][pair] + place]
        goes_on = np.bincount(pair[other], minlength=len(part)) == 0
        source[a[goes_on]] = b[goes_on]
    most = np.maximum(-(-total // size), -(-prompt // size) + 1)  # one more than the prompt's: see `names_answer`
    counts = np.where(source == np.arange(count), counts, np.minimum(most, counts[source]))
    block_ids = ids[np.repeat(starts[source], counts) + places(counts)]
    column = table.schema.get_field_index("prefix_ids")
    return table.set_column(column, SCHEDULE.field("prefix_ids"), listed(counts, block_ids, lists.type))


def has_extra(table: pa.Table) -> bool:
    """Whether any request of a schedule has an `extra`; else the column counts neither in its hash nor in its file."""
    return bool(table["extra"].null_count < len(table))


def links(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(L,) rows of the requests that come after others, and the row of each of those others.

    A row that is not there stands as the number of rows.
    """
    after = table["after"].combine_chunks()
    if isinstance(after, pa.ChunkedArray):  # an empty table has no chunk to combine
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    parent_ids, ids = flat(after).to_numpy(), table["id"].to_numpy()
    if not len(parent_ids):
        return np.zeros(0, np.int64), parent_ids
    child = np.repeat(np.arange(len(table)), after.value_lengths().to_numpy())
    order = np.argsort(ids, kind="stable")
    parent = order[np.minimum(np.searchsorted(ids, parent_ids, sorter=order), len(ids) - 1)]
    return child, np.where(ids[parent] == parent_ids, parent, len(ids))


_Unfrozen: Any = make_dataclass("_Unfrozen", SCHEDULE.names, slots=True)
"""The fields of a request before it is one: the constructor of what is frozen takes five times as long."""


def requests_of(table: pa.Table) -> Iterator[Request]:
    """The rows of a `schedule` table as requests."""
    for start in range(0, len(table), 8192):
        part = table[start : start + 8192]
        for request in map(_Unfrozen, *(_python(part[name].combine_chunks()) for name in SCHEDULE.names)):
            request.__class__ = Request
            yield request


class Rows:
    """Single rows of a `schedule` table as requests, each in a few microseconds, in any order."""

    def __init__(self, table: pa.Table) -> None:
        self._read = [_reader(table[name].combine_chunks()) for name in SCHEDULE.names] if len(table) else []

    def at(self, row: int, due_s: float | None = None) -> Request:
        """The request of a row, as scheduled or, where it is given, due at `due_s`."""
        values = [read(row) for read in self._read]
        if due_s is not None:
            values[_SCHEDULED] = due_s
        return Request(*values)  # type: ignore[arg-type]  # the columns are its fields, in order


def _reader(values: pa.Array) -> Callable[[int], object]:
    """What gives the value of a row of a column; null is None."""
    if pa.types.is_list(values.type):
        starts, items = values.offsets.to_numpy(), values.values.to_numpy()
        if starts[0] == starts[-1]:
            return lambda _: ()
        return lambda row: tuple(items[starts[row] : starts[row + 1]].tolist())
    if pa.types.is_string(values.type):
        coded = values.dictionary_encode()
        words, codes = coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy()
        return lambda row: words[code] if (code := codes[row]) >= 0 else None
    if values.null_count == len(values):
        return lambda _: None
    if pa.types.is_struct(values.type):
        return lambda row: extra_of(values[row].as_py())
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    plain = values.fill_null(0).to_numpy()
    if valid.all() and (plain == plain[0]).all():
        same = plain[0].item()
        return lambda _: same
    return lambda row: plain[row].item() if valid[row] else None


def _python(values: pa.Array) -> Iterator[object] | list[object]:
    if pa.types.is_struct(values.type):
        return repeat(None, len(values)) if values.null_count == len(values) else map(extra_of, values.to_pylist())
    if pa.types.is_list(values.type):
        return map(tuple, values.to_pylist()) if len(flat(values)) else repeat((), len(values))
    plain: list[object] = values.to_pylist()
    return plain


def digest(table: pa.Table) -> str:
    """SHA-256 of the rows as little-endian columns in the schema's order, whatever chunks they came in."""
    hasher = hashlib.sha256()
    for field in SCHEDULE:
        if field.name == "extra" and not has_extra(table):
            continue
        hasher.update(f"{field.name}:{len(table)};".encode())
        for part in _column_digests(table[field.name]):
            hasher.update(part)
    return hasher.hexdigest()


def _column_digests(values: pa.ChunkedArray) -> tuple[bytes, bytes, bytes]:
    """Digests of which rows are there, of how long each is, and of the items one after the other."""
    valid, lengths, items = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for chunk in (whole[start : start + PAIRS] for whole in values.chunks for start in range(0, len(whole), PAIRS)):
        valid.update(chunk.is_valid().to_numpy(zero_copy_only=False).astype("u1").tobytes())
        if pa.types.is_list(chunk.type):
            lengths.update(chunk.value_lengths().to_numpy().astype("<i8").tobytes())
            items.update(np.ascontiguousarray(chunk.flatten().to_numpy().astype("<i8", copy=False)).data)
        elif pa.types.is_struct(chunk.type) or pa.types.is_string(chunk.type):
            is_text = pa.types.is_string(chunk.type)
            texts = ((value or "") if is_text else json.dumps(value, sort_keys=True) for value in chunk.to_pylist())
            words = [text.encode() for text in texts]
            lengths.update(np.fromiter(map(len, words), "<i8", len(words)).tobytes())
            items.update(b"".join(words))
        else:
            plain = chunk.fill_null(0).to_numpy().astype("<f8" if pa.types.is_floating(chunk.type) else "<i8")
            items.update(plain.tobytes())
    return valid.digest(), lengths.digest(), items.digest()
