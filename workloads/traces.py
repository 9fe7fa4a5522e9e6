"""Reads a slice of a recorded trace, whatever its format, and says what was left out."""

from __future__ import annotations

import tomllib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import registry
from harness.errors import UsageError
from workloads.readers import _lines, _table

if TYPE_CHECKING:
    from workloads.readers._table import Reader, Row, Table

BEFORE = "before the slice"


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a trace: rows from `start_s` up to but without `stop_s`, at most `limit` requests.

    Seconds count from the first row of the file.
    """

    start_s: float | None = None
    stop_s: float | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.start_s is not None and self.start_s < 0:
            raise ValueError(f"start_s must not be negative, got {self.start_s:g}.")
        if self.stop_s is not None and self.stop_s <= (self.start_s or 0):
            raise ValueError(f"stop_s must be above start_s = {self.start_s or 0:g}, got {self.stop_s:g}.")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}.")


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a slice as columns, (N,) each; `at_s` never falls.

    Time 0 is the first row kept, or the start of the slice where one was given. `prefix_ids`, `sessions`
    (number, turn) and `tags` are empty where the format has none.
    """

    at_s: array[float]
    prompt_tokens: array[int]
    output_tokens: array[int]
    prefix_ids: list[tuple[int, ...]]
    sessions: list[tuple[int, int] | None]
    tags: list[str | None]
    facts: Mapping[str, object]

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def mean_rate_rps(self) -> float:
        """Requests per second between the first and the last; 0 where all come at once."""
        span_s = self.at_s[-1] - self.at_s[0]
        return (len(self.at_s) - 1) / span_s if span_s > 0 else 0.0


def read(path: str, reader: str | None, part: Slice) -> Trace:
    """The slice of the trace file; raises UsageError naming file, line and column for whatever is wrong with it."""
    file = _lines.checked(path)
    table = _table.open_table(file)
    name = reader or _detect(table)
    chosen: Reader = registry.make("readers", name)
    table.require(chosen.needs, name, chosen.form)
    return _collect(file, name, chosen, _sorted(table, chosen), part)


def _detect(table: Table) -> str:
    readers = {name: registry.find("readers", name) for name in registry.names("readers")}
    for name, kind in readers.items():
        if kind.form == table.form and set(kind.needs) <= set(table.columns):
            return name
    needs = "; ".join(f"{n} needs {k.form.upper()} with {', '.join(k.needs)}" for n, k in readers.items())
    raise UsageError(
        f"Trace '{table.file}', line 1: no reader knows the columns {_table.shown_columns(table.columns)}; {needs}."
    )


def _sorted(table: Table, reader: Reader) -> Iterator[Row]:
    last_s = 0.0
    for row in reader.rows(table):
        if row.at_s < last_s:
            table.fail(row.line, reader.stamp, f"stamps must not fall, this one is {last_s - row.at_s:g} s earlier")
        last_s = row.at_s
        yield row


def _collect(file: Path, name: str, reader: Reader, rows: Iterator[Row], part: Slice) -> Trace:
    kept = Trace(array("d"), array("q"), array("q"), [], [], [], {})
    dropped: Counter[str] = Counter()
    numbers: dict[str, int] = {}
    turns: Counter[str] = Counter()
    last: Row | None = None
    for row in rows:
        if part.stop_s is not None and row.at_s >= part.stop_s:
            break
        last = row
        turn = turns[row.session] if row.session else 0
        if row.session and not row.dropped:
            turns[row.session] += 1
        if row.at_s < (part.start_s or 0):
            dropped[BEFORE] += 1
        elif row.dropped:
            dropped[row.dropped] += 1
        else:
            session = (numbers.setdefault(row.session, len(numbers)), turn) if row.session else None
            _append(kept, row, session, reader.extras)
            if len(kept.at_s) == part.limit:
                break
    if not kept.at_s:
        raise UsageError(_nothing(file, last, dropped, part))
    return _finished(kept, file, name, reader, dropped, part)


def _append(kept: Trace, row: Row, session: tuple[int, int] | None, extras: tuple[str, ...]) -> None:
    kept.at_s.append(row.at_s)
    kept.prompt_tokens.append(row.prompt_tokens)
    kept.output_tokens.append(row.output_tokens)
    if "prefix_ids" in extras:
        kept.prefix_ids.append(row.prefix_ids)
    if "sessions" in extras:
        kept.sessions.append(session)
    if "tags" in extras:
        kept.tags.append(row.tag)


def _nothing(file: Path, last: Row | None, dropped: Counter[str], part: Slice) -> str:
    if last is None and part.stop_s is None:
        return f"Trace '{file}' has a header but no rows."
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    seen = f" ({reasons}; the last row read is {last.at_s:g} s after the first)" if last else ""
    return f"Trace '{file}': no request is left{seen}; change start, stop or the file."


def _finished(kept: Trace, file: Path, name: str, reader: Reader, dropped: Counter[str], part: Slice) -> Trace:
    zero_s = kept.at_s[0] if part.start_s is None else part.start_s
    digest = _lines.sha256(file)
    known = tomllib.loads(Path(_lines.__file__).with_name("_known.toml").read_text(encoding="utf-8")).get(digest)
    facts: dict[str, object] = {
        "file": file.name,
        "sha256": digest,
        "known": known["name"] if known else "not a file of our list of official traces",
        **({"source": known["source"], "licence": known["licence"]} if known else {}),
        "reader": name,
        **reader.facts,
        "rows": len(kept) + sum(dropped.values()),
        "requests": len(kept),
        "dropped": dict(dropped),
        "time_0": "first row kept" if part.start_s is None else f"start of the slice, {part.start_s:g} s",
        "start_s": part.start_s,
        "stop_s": part.stop_s,
        "limit": part.limit,
    }
    return Trace(
        array("d", (at_s - zero_s for at_s in kept.at_s)),
        kept.prompt_tokens,
        kept.output_tokens,
        kept.prefix_ids,
        kept.sessions,
        kept.tags,
        facts,
    )
