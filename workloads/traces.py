"""Reads a slice of a recorded trace of any format, and reports what was left out and what is odd."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness import registry
from harness.errors import UsageError
from harness.spec import Spec, build, parse
from workloads.readers import _cells, _known, _lines, _plain, _source
from workloads.readers._block import Block, headed
from workloads.readers._calls import followed
from workloads.readers._collect import BEFORE, Collector, FallingStamps, Slice
from workloads.readers._requests import MappedReader, Reader, TextReader, ordered
from workloads.readers._sessions import Conversations
from workloads.readers._source import Source
from workloads.readers._texts import Texts, counting, recorded_texts, text_facts, with_places
from workloads.readers._usable import Clock, Unusable, implausible, parsed

__all__ = ["BEFORE", "Blocks", "FallingStamps", "Slice", "Trace", "blocks", "read"]


WHOLE = Slice()
NO_STAMPS = "no column of stamps: every request is at 0 s; take arrivals from elsewhere"
"""What a report says of a plain table without a column of stamps."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a slice as a table, one row each; `at_s` never falls.

    Columns: `at_s` float64 (0 = first row kept, or the start of the slice where one was given), `prompt_tokens`
    and `output_tokens` int64; where the format knows them `prefix_ids` list<int64> (blocks of `block_tokens`),
    `session` int64, `turn` int32, `parent` int64 (row number of the turn before, null for a root; the first request of
    a sub-agent follows the one that started it), `tag` string; of agents `joins` list<int64> (row numbers of other
    requests whose answers a row waits for: the last ones of sub-agents), `delay_s` float64 (from the last answer that
    a request waited for to the request: its think time), `api_s` float64 (how long its answer took; null: unknown),
    `agent` string (the sub-agent that sends it; null: the one of the session), `common_tokens` int64 (leading tokens
    of tools and system prompt, which sessions have in common) and `cause` string (what a request brings: the results
    of a `tool`, or the words of a `person`; null: unknown); of images `images` and `image_tokens` int64 (how many,
    and how many tokens of the prompt they are); of requests with bounds of their own `slo_ttft_s`, `slo_tpot_s`,
    `slo_e2e_s`, `slo_task_s` float64 and `priority` int32; `n` int32 (answers, each of the output tokens; 0: one),
    `model` string. Where prompts are to be read again (`texts`), also `text_at`, `text_bytes` (where the row of the
    file stands) and `text_number` int64 (messages of the prompt).
    """

    table: pa.Table
    block_tokens: int
    facts: Mapping[str, object]
    texts: Texts | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def at_s(self) -> NDArray[np.float64]:
        """Arrival times in seconds, (N,)."""
        return np.asarray(self.table.column("at_s"), np.float64)

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second between the first and the last; 0 where all come at once."""
        at_s = self.at_s
        span_s = float(at_s[-1] - at_s[0])
        return (len(self) - 1) / span_s if span_s > 0 else 0.0


def clock(facts: Mapping[str, object]) -> object:
    """Whose clock the stamps are of, as the reader of the first file says of which this one was made: that of a
    `session`, or that of `answers`, which later turns wait for."""
    origin = facts.get("made_from")
    return facts.get("clock") or (clock(origin) if isinstance(origin, dict) else None)


class Blocks:
    """A trace as tables of bounded size, to be iterated once; `facts` are complete after the last one.

    The columns are those of `Trace`. Memory does not grow with the file, only with the number of its sessions.
    """

    def __init__(
        self, source: Source, name: str, reader: Reader, part: Slice, limits: _lines.Limits, *, sort: bool,
        texts: bool = False,
    ) -> None:  # fmt: skip
        stated = source.block_tokens
        valid = stated.isdigit() and 0 < int(stated) < _cells.LARGEST_TOKENS
        self.block_tokens = int(stated) if valid else reader.block_tokens
        self._source, self._name, self._reader, self._part, self._sort = source, name, reader, part, sort
        self.texts = recorded_texts(source.file, source.plain, reader) if texts else None
        self._limits = limits
        self._unusable = Unusable(limits.max_unusable, _lines.more("max_unusable"))
        self._clock, self._conversations = Clock(), Conversations(self.block_tokens)
        self._any_text, self._stamped = False, True

    def __iter__(self) -> Iterator[pa.Table]:
        return self._read()

    def _read(self) -> Iterator[pa.Table]:
        part = self._part
        collector = Collector(part)
        try:
            rows = parsed(
                self._counted(), self._reader, self._unusable, self._clock, self._conversations, self._limits.max_tokens
            )
            if self.texts is not None:
                rows = with_places(rows)
            for block, requests in ordered(rows, sort=self._sort):
                self._stamped &= requests.stamp is not None
                self._any_text |= requests.numbers is None or bool((requests.numbers >= 0).any())
                yield from collector.take(block, followed(requests))
                if collector.done:
                    break
            collector.dropped.update(self._unusable.lost)
            self._unusable.check(collector.rows, collector.dropped)
            if not collector.kept:
                raise UsageError(_nothing(self._source.file, collector, part))
            self.facts = self._finished(collector)
        finally:
            self._source.close()

    def _counted(self) -> Iterator[Block]:
        for block in headed(self._source.blocks):
            if block.start + block.size > self._limits.max_rows:
                more = _lines.more("max_rows")
                raise UsageError(f"Trace '{self._source.file}' has more than {self._limits.max_rows:,} rows{more}.")
            yield block

    def _finished(self, seen: Collector) -> Mapping[str, object]:
        part, file = self._part, self._source.file
        dropped = seen.left_out()
        rows = seen.kept + sum(dropped.values())
        digest = self._source.sha256()
        origin, doubts = _known.facts(file, digest, rows, whole=not seen.done)
        span_s = (seen.last_s or 0.0) - (seen.zero_s or 0.0)
        units = [] if self._clock.doubted is None else [*implausible(self._clock.doubted, seen.kept, span_s)]
        lost = [f"{_cells.counted(count)} left out: {reason}." for reason, count in dropped.items() if reason != BEFORE]
        return {
            "file": file.name,
            "sha256": digest,
            **origin,
            "bytes": self._source.size_bytes,
            "reader": self._name,
            **self._reader.facts,
            **text_facts(self._reader, self._any_text),
            **({} if self._stamped else {"stamps": NO_STAMPS}),
            **({"clock": "answers"} if self._conversations.any else {}),
            "rows": rows,
            "requests": seen.kept,
            "dropped": dropped,
            "time_0": "first row kept" if part.start_s is None else f"start of the slice, {part.start_s:g} s",
            "start_s": part.start_s,
            "stop_s": part.stop_s,
            "limit": part.limit,
            **({"sorted": True} if self._sort else {}),
            "span_s": span_s,
            "grain_s": seen.oddities.grain_s,
            "distinct_stamps": seen.oddities.distinct,
            "duplicates": seen.oddities.duplicates,
            **({"doubts": units} if units else {}),
            "oddities": [*doubts, *units, *lost, *seen.oddities.sentences()],
        }


def read(
    path: str,
    reader: str | None = None,
    part: Slice = WHOLE,
    *,
    sort: bool = False,
    block_bytes: int = _source.BLOCK_BYTES,
    texts: bool = False,
) -> Trace:
    """The slice of the trace file; raises UsageError naming file, line and column for whatever is wrong with it.

    `reader` is the spec of a reader, with limits (`_lines.Limits`) among its arguments, or maps our names to the
    columns of a plain file, 'at=ts,prompt=in,output=out'; without it the columns decide. Rows are ordered by stamp
    where stamps fall: logs are written as answers end. With `texts` the prompts can be read again, and counts are
    estimated where no tokenizer is given.
    """
    try:
        parts = blocks(path, reader, part, sort=sort, block_bytes=block_bytes, texts=texts)
        table = pa.concat_tables(list(parts))
    except FallingStamps:
        return read(path, reader, part, sort=True, block_bytes=block_bytes, texts=texts)
    return Trace(table, parts.block_tokens, parts.facts, parts.texts)


def blocks(
    path: str,
    reader: str | None = None,
    part: Slice = WHOLE,
    *,
    sort: bool = False,
    block_bytes: int = _source.BLOCK_BYTES,
    texts: bool = False,
) -> Blocks:
    """The same as `read`, block by block in bounded memory (with `sort`, the whole file is held)."""
    limits, reader = _limits(reader)
    source = _source.open_source(path, block_bytes, limits)
    try:
        name, chosen = _chosen(source, reader, texts=texts)
        chosen = counting(chosen) if texts else chosen
        return Blocks(source, name, chosen, part, limits, sort=sort, texts=texts)
    except BaseException:
        source.close()
        raise


def _limits(reader: str | None) -> tuple[_lines.Limits, str | None]:
    """The limits among the arguments of a reader, and its spec without them."""
    if reader is None or _is_map(reader):
        return _lines.Limits(), reader
    spec = parse(reader)
    limits = {key: value for key, value in spec.args.items() if key.startswith("max")}
    rest = {key: value for key, value in spec.args.items() if key not in limits}
    return build(_lines.Limits, Spec(spec.name, limits)), str(replace(spec, args=rest))


def _is_map(reader: str) -> bool:
    """Whether it names the columns of a plain file, and no reader."""
    return "=" in reader.partition(":")[0]


def _chosen(source: Source, reader: str | None, *, texts: bool) -> tuple[str, Reader]:
    """Spec and reader: the given one, a plain one where columns are mapped, else one whose columns are there."""
    columns = {"columns": reader} if reader is not None and _is_map(reader) else {}
    if columns:
        reader = source.form.replace("json", "jsonl")
    spec = parse(reader or _detect(source, texts=texts))
    chosen = registry.make("readers", spec, **columns)
    mapped = isinstance(chosen, MappedReader)
    source.require(() if mapped else _needs(chosen, source.columns), spec.name, chosen.form)
    if mapped:
        _plain.resolved(source.file, source.columns, chosen.columns)
    return str(spec), chosen


def _detect(source: Source, *, texts: bool) -> str:
    """The reader that needs most of what is there; a plain one only where no format is known, or only its text."""
    kinds = {name: registry.find("readers", name) for name in registry.names("readers")}
    kinds = {name: kind for name, kind in kinds.items() if kind.form == source.form}
    needs = {n: _needs(k, source.columns) for n, k in kinds.items() if not isinstance(k, MappedReader)}
    fitting = [name for name, columns in needs.items() if set(columns) <= set(source.columns)]
    best = max(fitting, key=lambda name: len(needs[name]), default=None)
    counted = _plain.fits(source.columns) and not texts
    if best is not None and not (counted and isinstance(kinds[best], TextReader) and not kinds[best].counts):
        return best
    plain = next(n for n, k in kinds.items() if isinstance(k, MappedReader))
    if _plain.fits(source.columns, stamped=False):
        return plain
    form = source.form.upper().replace("PARQUET", "Parquet")
    close = {n: k for n, k in kinds.items() if n != plain and {*k.needs} & {*source.columns}}  # all would be too long
    wants = "; ".join(f"{n} needs {', '.join(k.needs)}" for n, k in close.items())
    wants = wants.replace("needs", f"needs {form} with", 1)
    raise UsageError(
        f"Trace '{source.file}'{source.where}: no reader knows the columns {_cells.shown_columns(source.columns)}; "
        f"{wants}{'; ' if wants else ''}name others with --reader 'at=...,prompt=...,output=...' "
        "('bench list readers' shows the formats)."
    )


def _needs(kind: Reader | type[Reader], columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that tell the format: of its forms the one that is there, else the usual one."""
    forms = kind.also if isinstance(kind, TextReader) else ()
    return next((form for form in (kind.needs, *forms) if set(form) <= set(columns)), kind.needs)


def _nothing(file: Path, seen: Collector, part: Slice) -> str:
    if seen.last_s is None and part.stop_s is None:
        return f"Trace '{file}' has a header but no rows."
    reasons = ", ".join(f"{count} {reason}" for reason, count in seen.left_out().items())
    last = f" ({reasons}; the last row read is {seen.last_s:g} s after the first)" if seen.last_s is not None else ""
    return f"Trace '{file}': no request is left{last}; change start, stop or the file."
