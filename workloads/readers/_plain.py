"""The columns of a plain table: which of them is the stamp, the prompt, the output; by a map or by usual names.

Rows of a Parquet file in blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from harness import untrusted
from harness.data.lists import Floats, Ints
from harness.errors import UsageError, nearest, no_such
from workloads.readers import _cells, _lines
from workloads.readers._block import Block
from workloads.readers._cells import may_be_timestamp, shown_columns
from workloads.readers._requests import MORE, Marked, Requests, of_rows

UNITS: Mapping[str, float] = {
    "at": 1,
    "at_ms": 1_000,
    "at_us": 1_000_000,
    "at_ns": 1_000_000_000,
    "at_days": 1 / 86_400,
}
ALIASES: Mapping[str, tuple[str, ...]] = {
    "at": ("at_s", "at", "scheduled_s", "arrival_s", "arrived_at", "arrival_time", "arrival_timestamp", "timestamp",
         "start_time", "request_created_at", "created_at", "created", "request_time", "time_generated", "time",
         "ts", "datetime", "zeit"),
    "at_ms": ("at_ms", "timestamp_ms", "arrival_ms"),
    "at_us": ("at_us", "timestamp_us"),
    "at_ns": ("at_ns", "timestamp_ns"),
    "at_days": (),
    "prompt": ("prompt_tokens", "input_tokens", "num_prefill_tokens", "input_length", "prompt_len", "input_len",
         "tokens_prompt", "prompt_token_count", "num_prompt_tokens", "input.input_token_count", "context_tokens",
         "llm_input_token", "usage.input", "usage_details.input"),
    # the requested length comes first: a failed request of a run has fewer output tokens
    "output": ("output_tokens_asked", "output_tokens", "num_decode_tokens", "output_length", "output_len",
         "completion_tokens", "tokens_completion", "candidates_token_count", "num_completion_tokens",
         "output.output_token_count", "generated_tokens", "llm_output_token", "usage.output",
         "usage_details.output"),
    "session": ("session", "session_id", "conversation_id"),
    "turn": ("turn",),
    "tag": ("tag", "tier"),
    "prefix_ids": ("prefix_ids", "hash_ids"),
    "parent": ("parent",),
    "joins": ("joins",),
    "delay": ("delay_s",),
    "api": ("api_s",),
    "agent": ("agent",),
    "common": ("common_tokens",),
    "cause": ("cause",),
    "slo_ttft": ("slo_ttft_s", "ttft_slo_s"),
    "slo_tpot": ("slo_tpot_s", "tpot_slo_s"),
    "slo_e2e": ("slo_e2e_s", "e2e_slo_s", "deadline_s"),
    "slo_task": ("slo_task_s",),
    "priority": ("priority",),
    "images": ("images", "num_images", "image_count"),
    "image": ("image_tokens",),
    "n": ("n",),
    "model": (),  # a log has that of the recorded system: only where a map names it
}  # fmt: skip
SEVERAL = "several answers (column n), each of the output tokens of the row"
MOST_ANSWERS = 128
"""Of one request in the API of OpenAI; more in a column `n` are rather numbers of rows."""
_EXAMPLE = "'at=ts,prompt=in,output=out'"
MAGIC = b"PAR1"
_DATES = ("date", "day", "datum")


def fits(columns: tuple[str, ...], *, stamped: bool = True) -> bool:
    """Whether the usual names of both lengths are there, and that of a stamp."""
    mapping = _by_name(columns)
    return "prompt" in mapping and "output" in mapping and (not stamped or any(unit in mapping for unit in UNITS))


def resolved(file: Path, columns: tuple[str, ...], given: str | None) -> dict[str, str]:
    """The file's column for each of our names; raises UsageError for a map that does not fit the file.

    A map names all that is read; without one, the usual names do.
    """
    mapping = _parsed(given) if given is not None else _by_name(columns)
    for name, column in mapping.items():
        if column not in columns:
            raise UsageError(
                f"--reader {name}={column}: trace '{file}' has no such column; found: {shown_columns(columns)}."
                f"{nearest(column, columns)}"
            )
    units = [unit for unit in UNITS if unit in mapping]
    missing = [name for name in ("prompt", "output") if name not in mapping]
    if missing:
        missing_names = " or ".join(missing)
        what = (
            f"no column is known as {missing_names}"
            if given is None
            else f"--reader names all that is read, and no {missing_names}"
        )
        raise UsageError(f"Trace '{file}': {what}; found: {shown_columns(columns)}; write --reader {_EXAMPLE}.")
    if len(units) > 1:
        raise UsageError(f"Trace '{file}': both {mapping[units[0]]} and {mapping[units[1]]} are stamps; use --reader.")
    return mapping


def _parsed(text: str) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for part in text.split(","):
        name, equals, column = (p.strip() for p in part.partition("="))
        if not equals or not column:
            raise UsageError(f"--reader '{text}': '{part.strip()}' names no column of the file; write {_EXAMPLE}.")
        if name not in ALIASES:
            raise no_such("column", name, ALIASES, f"Write --reader {_EXAMPLE}.")
        if name in mapping:
            raise UsageError(f"--reader '{text}': {name} is given twice.")
        mapping[name] = column
    return mapping


def _by_name(columns: tuple[str, ...]) -> dict[str, str]:
    """The columns with usual names, by our names: Prompt Tokens and promptTokens are prompt_tokens, and so is the
    prompt_tokens of an object inside, such as response.usage.prompt_tokens."""
    paths: dict[str, str] = {}
    for column in sorted(columns, key=lambda c: c.count(".")):
        parts = [re.sub(r"[^a-z0-9]", "", part) for part in column.lower().split(".")]
        for i in range(len(parts)):
            paths.setdefault(".".join(parts[i:]), column)
    plain = {name: [alias.replace("_", "") for alias in names] for name, names in ALIASES.items()}
    return {name: next(paths[a] for a in names if a in paths) for name, names in plain.items() if paths.keys() & names}


def requests(block: Block, given: str | None) -> Requests:
    """The requests of a block of a plain table."""
    mapping = resolved(block.file, block.columns, given)
    unit = next((u for u in UNITS if u in mapping), "at")
    stamp, prompt, output = mapping.get(unit), mapping["prompt"], mapping["output"]
    times, per_s, dated = (None, 1.0, True) if stamp is None else _stamps(block, stamp, UNITS[unit])
    stated = given is not None and unit != "at"
    more = _more(block, mapping)
    several: Marked = ()
    if "n" in more:
        answers = np.asarray(more["n"])
        several = ((SEVERAL, answers > 1),)
        for row in np.flatnonzero((answers < 0) | (answers > MOST_ANSWERS)).tolist():
            block.leave_out(row, mapping["n"], f"0 to {MOST_ANSWERS} answers expected, got {answers[row]}")
    return replace(
        of_rows(block, stamp, prompt, output, at=times, per_s=per_s, dated=dated, stated=stated),
        session=block.names(mapping["session"], optional=True) if "session" in mapping else None,
        turn=block.tokens(mapping["turn"]) if "turn" in mapping else None,
        parent_row=_whole_numbers(block, mapping["parent"], of_rows=True) if "parent" in mapping else None,
        tag=block.names(mapping["tag"], optional=True) if "tag" in mapping else None,
        prefix_ids=block.id_lists(mapping["prefix_ids"]) if "prefix_ids" in mapping else None,
        joins=block.id_lists(mapping["joins"]) if "joins" in mapping and "parent" in mapping else None,
        notes=several,
        more=more,
    )


def known_numbers(block: Block, column: str) -> list[float | None] | pa.Array:
    """Numbers, None where there is none."""
    cells = block.cells(column)
    if isinstance(cells, pa.Array) and pa.types.is_floating(cells.type):
        usable = pc.all(pc.and_(pc.is_finite(cells), pc.greater_equal(cells, 0)))
        if usable.as_py() is not False:
            return cells.cast(pa.float64())

    def number(cell: object, refuse: _cells.Fail) -> float | None:
        return None if cell is None or cell == "" else _cells.number(cell, refuse)

    return block.each(column, number, optional=True, blank=None)


def _more(block: Block, mapping: Mapping[str, str]) -> dict[str, pa.Array]:
    """The columns of `MORE` that the map has."""
    more = {}
    for name, kind in MORE.items():
        column = mapping.get(name.removesuffix("_s").removesuffix("_tokens"))
        if column is None:
            continue
        if kind == pa.string():
            more[name] = block.names(column, optional=True)
        elif kind == pa.int64():
            more[name] = pa.array(block.tokens(column), kind)
        elif kind == pa.int32():
            more[name] = _whole_numbers(block, column)
        else:  # how long an answer took need not be known, a think time must be
            more[name] = pa.array((Block.numbers if name == "delay_s" else known_numbers)(block, column), kind)
    return more


def _whole_numbers(block: Block, column: str, *, of_rows: bool = False) -> pa.Array:
    """Whole numbers, which may be negative, 0 where there is none; or numbers `of_rows`, null where there is none."""
    kind, sign, blank = (pa.int64(), "", None) if of_rows else (pa.int32(), "-?", 0)
    cells = block.cells(column)
    if isinstance(cells, pa.Array) and pa.types.is_integer(cells.type):
        return (cells if blank is None else cells.fill_null(blank)).cast(kind)

    def number(cell: object, refuse: _cells.Fail) -> int | None:
        text = _cells.name_of(cell, refuse)
        if text and not re.fullmatch(sign + "[0-9]{1,9}", text):
            what = "the number of a row" if of_rows else "a whole number"
            refuse(f"{what} expected, got {_cells.shown(cell)}")
        return int(text) if text else blank

    return pa.array(block.each(column, number, optional=True, blank=blank), kind)


def _stamps(block: Block, column: str, per_s: float) -> tuple[Ints | Floats, float, bool]:
    cells = block.cells(column)
    typed = isinstance(cells, pa.Array) and pa.types.is_timestamp(cells.type)
    first = block.first[column]
    dates = [name for name in block.columns if name.strip().lower() in _DATES]
    if dates and any(map(_cells.is_clock, first)):  # days would be laid over one another
        what = f"these are times of day, and column {_cells.shown(dates[0])} has their date"
        raise UsageError(f"Trace '{block.file}', column {_cells.shown(column)}: {what}; write both into one column.")
    if typed or any(map(may_be_timestamp, first)):
        return block.stamps_ns(column), UNITS["at_ns"], True
    return block.numbers(column, f"a finite number, or {_cells.STAMP}"), per_s, False


def open_table(file: Path, limits: _lines.Limits) -> parquet.ParquetFile:
    """The open file; raises UsageError where it is damaged, or beyond a limit."""
    try:
        return untrusted.open_parquet(file, limits.max_expansion, _lines.more("max_expansion"))
    except (OSError, ValueError) as error:  # Arrow's errors are these
        raise UsageError(f"Trace '{file}' is not a complete Parquet file: {_lines.reason(error)}.") from None


def rows_of(table: parquet.ParquetFile, size_bytes: int) -> int:
    """Rows that take about so many bytes in memory, by the number of values that the footer states."""
    footer = table.metadata
    groups = (footer.row_group(i) for i in range(footer.num_row_groups))
    values = sum(int(group.column(i).num_values) for group in groups for i in range(footer.num_columns))
    rows = int(footer.num_rows)
    return max(1, size_bytes * max(1, rows) // max(64 * rows, 8 * values, 1))


def blocks(file: Path, table: parquet.ParquetFile, rows: int, limits: _lines.Limits) -> Iterator[Block]:
    """All rows; raises UsageError where the file is damaged."""
    names = tuple(table.schema_arrow.names)
    repeated = [c for c in names if names.count(c) > 1]
    if repeated:
        raise UsageError(f"Trace '{file}': column {_cells.shown(repeated[0])} appears twice.")
    start = text_bytes = 0
    size_bytes, hint = file.stat().st_size, _lines.more("max_expansion")
    batches = table.iter_batches(batch_size=rows, use_threads=False)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            text_bytes += sum(map(untrusted.text_bytes, batch.columns))
            untrusted.check_expansion(file, text_bytes, size_bytes, limits.max_expansion, hint)
            arrays = {n: _plain(a) for n, a in zip(names, batch.columns, strict=True)}
        except MemoryError:  # an ArrowException too, where Arrow has no memory
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UsageError(f"Trace '{file}' cannot be read after row {start}: {_lines.reason(error)}.") from None
        if batch.num_rows:
            yield _block(file, arrays, batch.num_rows, start)
            start += batch.num_rows


def _block(file: Path, arrays: Mapping[str, pa.Array], rows: int, start: int) -> Block:
    return Block(
        file,
        tuple(arrays),
        rows,
        arrays.__getitem__,
        lambda: pa.table({n: a for n, a in arrays.items() if _comparable(a.type)}),
        lambda row: f"row {start + row + 1}",
        start=start,
    )


def _plain(array: pa.Array) -> pa.Array:
    """Dictionaries unpacked, all text as one type."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = pc.cast(array, pa.string())
    return array


def _comparable(kind: pa.DataType) -> bool:
    """Whether such a column can identify rows (lists of ids cannot)."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_timestamp)
    return any(is_one(kind) for is_one in kinds)
