"""What is to be sent and when: drawn once from one seed, stored with its hash, never moved afterwards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat, takewhile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.api import Request, Workload
from harness.errors import UsageError
from harness.records import SCHEDULE, scheduled_table

CHUNK = 65_536
"""Requests that are Python objects at one time; the rest is columns."""

ENDLESS = 10_000_000
"""A workload that passes this many requests without being cut is taken for endless."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The requests of a run in columns (`harness.records.SCHEDULE`), and the SHA-256 of what they say."""

    table: pa.Table
    sha256: str

    @classmethod
    def draw(
        cls, workload: Workload, *, seed: int, requests: int | None = None, duration_s: float | None = None
    ) -> Schedule:
        """The first `requests` requests due before `duration_s`, from one generator seeded with `seed`.

        Equal arguments give equal schedules. Raises UsageError for a limit that lets nothing through, for a
        workload that has neither end nor limit, and for one that breaks its contract (times that fall).
        """
        _check_limits(requests, duration_s)
        stream = workload.start(np.random.default_rng(np.random.SeedSequence(seed)))
        if duration_s is not None:
            stream = takewhile(lambda request: request.scheduled_s < duration_s, stream)
        stream = islice(stream, ENDLESS + 1 if requests is None and duration_s is None else requests)
        chunks = [scheduled_table(rows) for rows in iter(lambda: list(islice(stream, CHUNK)), [])]
        if not chunks:
            raise UsageError(_nothing(duration_s))
        table = pa.concat_tables(chunks)
        if requests is None and duration_s is None and len(table) > ENDLESS:
            raise UsageError(
                f"The workload has no end (more than {ENDLESS:,} requests); give --requests or --duration."
            )
        _check_contract(table)
        return cls(table, digest(table))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """A stored schedule. Raises UsageError for a file that is none, or that was changed since."""
        path = Path(path)
        try:
            with pq.ParquetFile(path) as source:  # not read_table: it would import pyarrow.dataset
                table = source.read()
        except FileNotFoundError:
            raise UsageError(f"No schedule '{path}'.") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise UsageError(f"'{path}' is not a schedule: {str(error).splitlines()[0]}") from None
        missing = [name for name in SCHEDULE.names if name not in table.column_names]
        if missing:
            raise UsageError(f"'{path}' is not a schedule: it has no column '{missing[0]}'.")
        stored = (table.schema.metadata or {}).get(b"bench.sha256", b"").decode()
        table = table.select(SCHEDULE.names).cast(SCHEDULE)
        found = digest(table)
        if stored and stored != found:
            raise UsageError(
                f"'{path}' was changed after it was drawn: its rows no longer give its hash {stored[:12]}."
            )
        return cls(table, found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a Parquet file that carries its hash; an existing file is replaced in one step."""
        path = Path(path)
        part = path.with_name(path.name + ".part")
        metadata = {**self.table.schema.metadata, b"bench.sha256": self.sha256.encode()}
        pq.write_table(self.table.replace_schema_metadata(metadata), part, compression="zstd")
        part.replace(path)

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last scheduled time."""
        times = self.table["scheduled_s"]
        return float(times[-1].as_py() - times[0].as_py()) if len(times) else 0.0

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[Request]:
        for batch in self.table.to_batches(max_chunksize=8192):
            yield from map(Request, *(_python(batch.column(name)) for name in SCHEDULE.names))

    def __repr__(self) -> str:
        return f"<Schedule {len(self)} requests in {self.span_s:.6g} s, sha256 {self.sha256[:12]}>"


def _check_limits(requests: int | None, duration_s: float | None) -> None:
    if requests is not None and requests < 1:
        raise UsageError(f"The number of requests must be at least 1, got {requests}.")
    if duration_s is not None and not duration_s > 0:
        raise UsageError(f"The duration must be longer than 0 s, got {duration_s:g} s.")


def _nothing(duration_s: float | None) -> str:
    if duration_s is None:
        return "The workload holds no request."
    return f"No request is due in the first {duration_s:g} s; give a longer --duration, or a workload a higher --rate."


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


def _python(values: pa.Array) -> Iterator[object] | list[object]:
    if pa.types.is_list(values.type):
        return map(tuple, values.to_pylist()) if len(values.flatten()) else repeat((), len(values))
    plain: list[object] = values.to_pylist()
    return plain


def digest(table: pa.Table) -> str:
    """SHA-256 of the rows as little-endian columns in the schema's order, whatever chunks they came in."""
    whole = hashlib.sha256()
    for field in SCHEDULE:
        whole.update(f"{field.name}:{len(table)};".encode())
        for part in _column_digests(table[field.name]):
            whole.update(part)
    return whole.hexdigest()


def _column_digests(values: pa.ChunkedArray) -> tuple[bytes, bytes, bytes]:
    """Digests of which rows are there, of how long each is, and of the items one after the other."""
    valid, lengths, items = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for chunk in values.chunks:
        valid.update(chunk.is_valid().to_numpy(zero_copy_only=False).astype("u1").tobytes())
        if pa.types.is_list(chunk.type):
            lengths.update(chunk.value_lengths().to_numpy().astype("<i8").tobytes())
            items.update(chunk.flatten().to_numpy().astype("<i8").tobytes())
        elif pa.types.is_string(chunk.type):
            words = [("" if word is None else word).encode() for word in chunk.to_pylist()]
            lengths.update(np.fromiter(map(len, words), "<i8", len(words)).tobytes())
            items.update(b"".join(words))
        else:
            plain = chunk.fill_null(0).to_numpy().astype("<f8" if pa.types.is_floating(chunk.type) else "<i8")
            items.update(plain.tobytes())
    return valid.digest(), lengths.digest(), items.digest()
