"""What a reader makes of a block of rows, and what a reader is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.readers._collect import Block, Floats, Ints, Mask

Marked = tuple[tuple[str, Mask], ...]

MORE: Mapping[str, pa.DataType] = {
    "delay_s": pa.float64(),
    "api_s": pa.float64(),
    "agent": pa.string(),
    "common_tokens": pa.int64(),
    "cause": pa.string(),
    "images": pa.int64(),
    "image_tokens": pa.int64(),
}
"""Columns that only traces of agents, or of images, have: see `workloads.traces.Trace`."""


def with_items(lists: pa.ListArray, items: pa.Array) -> pa.ListArray:
    """Lists of the same lengths with other items."""
    offsets = np.concatenate(([0], np.cumsum(lists.value_lengths().to_numpy())))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


@dataclass(frozen=True, slots=True)
class Requests:
    """Columns of a block, one value a row.

    `at` is in the units of the file, `per_s` of them a second. `drops` are reasons why a row is no request (the first
    that applies counts), `notes` what is odd about rows that stay. A conversation is given in one of three ways:
    `session` names it; or `chat` and `parent` name each turn and the one before; or, beside `session`, `parent_row` is
    the number of the row of the turn before. `joins` are the numbers of further rows whose answers a row waits for.
    `turn` is the recorded turn, from 0, where there is one. `more` holds the columns of `MORE` that the format knows.
    `expanded` says that a row of the file holds several requests; `rows` are then the rows of the block that they are
    of, and `numbers` the messages of each prompt, where the format holds text. Where `adds` is True, the prompt is what
    a turn adds to its session, and without a stamp (NaN) it comes its delay after the turn before. `lasts` says that
    stamps and row numbers count from the start of the block, and after how long, in units of `at`, those of the next
    block begin. `dated` stamps are dates, and the unit of `stated` ones is what the user says: others are doubted.
    """

    stamp: str
    at: Ints | Floats
    per_s: float
    prompt_tokens: Ints
    output_tokens: Ints
    drops: Marked = ()
    session: pa.Array | None = None
    chat: pa.Array | None = None
    parent: pa.Array | None = None
    parent_row: pa.Array | None = None
    turn: Ints | None = None
    tag: pa.Array | None = None
    prefix_ids: pa.ListArray | None = None
    notes: Marked = ()
    expanded: bool = False
    rows: Ints | None = None
    numbers: Ints | None = None
    adds: Mask | None = None
    joins: pa.ListArray | None = None
    more: Mapping[str, pa.Array] = field(default_factory=dict)
    lasts: float | None = None
    dated: bool = False
    stated: bool = False

    def __len__(self) -> int:
        return len(self.at)

    def values(self) -> pa.Table:
        """Stamp, lengths, session and tag."""
        columns = {"at": self.at, "prompt": self.prompt_tokens, "output": self.output_tokens}
        return pa.table(columns | {n: c for n in ("session", "tag") if (c := getattr(self, n)) is not None})

    def head(self, size: int) -> Requests:
        return self._each(lambda column: column[:size])

    def behind(self, rows: int, at: float) -> Requests:
        """The requests with stamps and row numbers as they are behind so many rows, which end at `at`."""
        parent = None if self.parent_row is None else pc.add(self.parent_row, rows)
        joins = None if self.joins is None else with_items(self.joins, pc.add(self.joins.flatten(), rows))
        return replace(self, at=np.asarray(self.at + at, np.float64), parent_row=parent, joins=joins)

    def take(self, order: Ints) -> Requests:
        """The rows in another order."""
        return self._each(
            lambda column: column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]
        )

    def _each(self, change: Any) -> Requests:
        changed: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if name in ("drops", "notes"):
                changed[name] = tuple((text, change(mask)) for text, mask in value)
            elif name == "more":
                changed[name] = {column: change(values) for column, values in value.items()}
            else:
                changed[name] = value if value is None or isinstance(value, str | float | int) else change(value)
        return Requests(**changed)


@runtime_checkable
class TextReader(Protocol):
    """A reader of a format that holds the prompts themselves. `tokenizer` counts them; None: nothing does."""

    tokenizer: str | None
    body: ClassVar[Callable[[Mapping[str, Any], int], dict[str, object]]]
    """(row, messages of the prompt) -> the body of the request as recorded: messages or prompt, and other fields."""


@runtime_checkable
class MappedReader(Protocol):
    """A reader of a plain table, whose columns the user may name (`columns=at=...,prompt=...,output=...`).

    It needs no column of a certain name, so it is taken only where no other reader knows the file. Its class shows it:
    a format is chosen before a reader is built. `mapped` are the usual names of columns by those of the map.
    """

    mapped: ClassVar[Mapping[str, tuple[str, ...]]]


class Reader(Protocol):
    """Reads one format of trace by column name.

    `needs` are the columns that tell the format, `stamp` that of the times. `facts` tell the tokenizer and what to
    know about the stamps.
    """

    form: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    stamp: ClassVar[str]
    facts: ClassVar[Mapping[str, str]]

    @property
    def block_tokens(self) -> int:
        """Tokens of the blocks that the prefix ids name."""
        ...

    def requests(self, block: Block) -> Requests:
        """The requests of a block, failures included; raises UsageError naming line and column for a bad row."""
        ...


def empty(prompt: str, prompt_tokens: Ints, output: str, output_tokens: Ints) -> Marked:
    """The drops for rows without prompt or output tokens; the names are those of the columns."""
    return ((f"{prompt} is 0", prompt_tokens == 0), (f"{output} is 0", output_tokens == 0))
