"""Writes traces, converted, cut or under another load too, as Parquet, CSV or JSON lines, block by block.

A file has its name only when it is complete: until then it is called FILE.part.

A drawn schedule as a trace: what would have been recorded had answers of sessions taken their nominal time.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from harness.data import files
from harness.data.records import listed, places
from harness.data.schedule import links
from harness.errors import UsageError, no_such
from workloads import replay, traces
from workloads.content.tokens import mix
from workloads.under_way import ANSWER_TOKEN_S

VERSION = "1"
"""Version of the columns of a trace file, in the metadata of Parquet."""

ENDINGS = (".parquet", ".csv", ".jsonl")
UNITS = {"at_s": "s", "prompt_tokens": "tokens", "output_tokens": "tokens"}


def write(
    path: str,
    tables: Iterable[pa.Table],
    source: Callable[[], Mapping[str, object]],
    *,
    block_tokens: int | None = None,
    force: bool = False,
) -> int:
    """Write the tables and return how many rows they have; `source()` is called after the last.

    `source` is the origin of the rows and the transformations; Parquet holds it as JSON under `bench.source`.
    `block_tokens` is the size of the blocks that the prefix ids name. Raises UsageError for an unknown ending, a file
    that is there (unless `force`), or no folder.
    """
    file = _allowed(path, force)
    part = file.with_name(file.name + ".part")
    stream = iter(tables)
    first = next(stream, None)
    if first is None or not len(first):
        raise UsageError(f"There is no request to write into '{path}'; give more requests or a longer duration.")
    columns = [f.with_metadata({"unit": UNITS[f.name]} if f.name in UNITS else None) for f in first.schema]
    blocks = {} if block_tokens is None else {"bench.block_tokens": str(block_tokens)}
    schema = pa.schema(columns, metadata={"bench.table": "trace", "bench.schema_version": VERSION, **blocks})
    rows = 0
    try:
        with closing(_opened(file.suffix, part, schema)) as writer:
            for table in chain((first,), stream):
                writer.write_table(table.cast(schema))
                rows += len(table)
            if file.suffix == ".parquet":
                writer.add_key_value_metadata({"bench.source": json.dumps(dict(source()), default=str)})
        part.replace(file)
    except OSError as error:
        raise files.refused(path, error) from None
    finally:
        part.unlink(missing_ok=True)
    return rows


def _allowed(path: str, force: bool) -> Path:
    file = Path(path)
    if file.suffix not in ENDINGS:
        raise no_such("form of trace to write", file.suffix or path, ENDINGS, "The ending of --output FILE tells it.")
    files.check(path)
    if file.exists() and not force:
        raise UsageError(f"'{path}' already exists; --force replaces it.")
    return file


class _JsonLines:
    """Writes a row a line; each has the size of its blocks, and nothing the origin of the file."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        size = (schema.metadata or {}).get(b"bench.block_tokens")
        self._same = {"block_tokens": int(size)} if size and "prefix_ids" in schema.names else {}  # for all rows
        self._lines = file.open("w", encoding="utf-8")
        self._first = True

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=8192):
            rows = ({**row, **self._same} for row in batch.to_pylist())
            for row in rows:
                fields = row if self._first else {k: v for k, v in row.items() if v is not None}
                self._first = False  # the first line names all columns, by which the file is read
                self._lines.write(f"{json.dumps(fields)}\n")

    def close(self) -> None:
        self._lines.close()


def _opened(ending: str, file: Path, schema: pa.Schema) -> Any:
    """What writes the form with this ending, by `write_table` and `close`."""
    if ending == ".jsonl":
        return _JsonLines(file, schema)
    if ending == ".parquet":
        return parquet.ParquetWriter(file, schema, compression="zstd", compression_level=1)
    if lists := [f.name for f in schema if pa.types.is_list(f.type)]:
        raise UsageError(f"CSV cannot hold the lists of {lists[0]}; write .parquet or .jsonl.")
    return csv.CSVWriter(file, schema)


def trace_table(schedule: pa.Table) -> pa.Table:
    """The columns of a trace from those of a schedule (`harness.data.records.SCHEDULE`).

    Empty columns (no session, no tag, no prefix) are left out. A request that comes after several is written
    as coming after the last of them.
    """
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "at_s": schedule["scheduled_s"],
        "prompt_tokens": schedule["prompt_tokens"],
        "output_tokens": schedule["output_tokens"],
    }
    if schedule["prefix_ids"].combine_chunks().flatten():
        columns["prefix_ids"] = _prefix_blocks(schedule, block_tokens(schedule))
    if schedule["session"].null_count < len(schedule):
        columns |= {"session": schedule["session"], "turn": schedule["turn"], "parent": _parents(schedule)}
        columns |= {"delay_s": schedule["delay_s"], "api_s": pc.multiply(schedule["output_tokens"], ANSWER_TOKEN_S)}
    if schedule["tag"].null_count < len(schedule):
        columns["tag"] = schedule["tag"]
    return pa.table(columns)


def block_tokens(schedule: pa.Table) -> int:
    """Size of the blocks that a trace of the schedule names: a file has one, classes may have several."""
    sizes = np.asarray(schedule["prefix_block_tokens"])
    used_sizes = sizes[_blocks(schedule) > 0]
    return math.gcd(*(used_sizes if len(used_sizes) else sizes[:1]).tolist())


def _blocks(schedule: pa.Table) -> np.ndarray:
    """How many blocks each request names."""
    lists = schedule["prefix_ids"].combine_chunks()
    return np.asarray(lists.value_lengths().fill_null(0))


def _prefix_blocks(schedule: pa.Table, tokens: int) -> pa.Array | pa.ChunkedArray:
    """The prefix ids, a larger block as several of `tokens` tokens: read at another size, it would share too little."""
    counts, parts = _blocks(schedule), np.asarray(schedule["prefix_block_tokens"]) // tokens
    if (parts[counts > 0] == 1).all():
        return schedule["prefix_ids"]
    ids = np.asarray(schedule["prefix_ids"].combine_chunks().flatten()).astype(np.uint64)
    each = np.repeat(parts, counts)  # how many small blocks come of each large one
    names = mix(np.repeat(ids, each) + mix(places(each).astype(np.uint64) + np.uint64(1)))
    return listed(counts * parts, (names >> np.uint64(1)).astype(np.int64))


def _parents(schedule: pa.Table) -> pa.Array:
    """Row number of the last request that each row comes after, null for none."""
    child, parent = links(schedule)
    last = np.full(len(schedule), -1)
    np.maximum.at(last, child, parent)
    return pa.array(last, pa.int64(), mask=last < 0)


def convert(
    source: str,
    target: str,
    *,
    scale: str | None = None,
    jitter: str | None = None,
    seed: int = 0,
    force: bool = False,
    **part: Any,
) -> tuple[int, Mapping[str, object]]:
    """Write a trace, a part of it or the trace under another load; return how many rows it has, and its facts.

    `part` are the other options of `replay.read`, `scale` and `jitter` those of `replay.changed`. Without them memory
    is bounded, whatever the length, unless stamps fall: then all rows are held to order them.
    """
    if Path(source).resolve() == Path(target).resolve():
        raise UsageError(f"'{target}' is the trace that is read; give another --output.")
    reader = part.pop("reader", None)
    if scale or jitter or any(value is not None for value in part.values()):
        trace = replay.changed(replay.read(source, reader, **part), scale=scale, jitter=jitter, seed=seed)
        tables, tokens = [trace.table], trace.block_tokens
        return write(target, tables, lambda: trace.facts, block_tokens=tokens, force=force), trace.facts
    try:
        return _in_blocks(traces.blocks(source, reader), target, force)
    except traces.FallingStamps:
        return _in_blocks(traces.blocks(source, reader, sort=True), target, force)


def _in_blocks(blocks: traces.Blocks, target: str, force: bool) -> tuple[int, Mapping[str, object]]:
    tokens = blocks.block_tokens
    return write(target, blocks, lambda: blocks.facts, block_tokens=tokens, force=force), blocks.facts
