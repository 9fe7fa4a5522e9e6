"""What a reader makes of a block of rows, also in the order of their stamps, and what a reader is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.lists import Floats, Ints, Mask
from harness.data.records import listed
from workloads.readers._block import Block

Marked = tuple[tuple[str, Mask], ...]
MORE: Mapping[str, pa.DataType] = {
    "delay_s": pa.float64(),
    "api_s": pa.float64(),
    "agent": pa.string(),
    "common_tokens": pa.int64(),
    "cause": pa.string(),
    "slo_ttft_s": pa.float64(),
    "slo_tpot_s": pa.float64(),
    "slo_e2e_s": pa.float64(),
    "slo_task_s": pa.float64(),
    "priority": pa.int32(),
    "images": pa.int64(),
    "image_tokens": pa.int64(),
    "n": pa.int32(),
    "model": pa.string(),
}
"""Columns that only some traces have, of agents, images, several answers or bounds: see `workloads.traces.Trace`."""

FALLS = "earlier than the row before, so all rows are sorted by time"


def with_items(lists: pa.ListArray, items: pa.Array | np.ndarray) -> pa.ListArray:
    """Lists of the same lengths with other items."""
    return listed(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), items, lists.type)


@dataclass(frozen=True, slots=True)
class Requests:
    """Columns of a block, one value a row.

    `at` is in the units of the file, `per_s` of them a second, and 0 where there is no column `stamp`. `drops` are
    reasons why a row is no request (the first that applies counts), `notes` what is odd about rows that stay. A
    conversation is given in one of three ways:
    `session` names it; or `chat` and `parent` name each turn and the one before; or, beside `session`, `parent_row` is
    the number of the row of the turn before. `joins` are the numbers of further rows whose answers a row waits for.
    Where the rows of a session tell how long they took and nothing of that, their times tell it; then `chat` may name
    the span that a row is, and `inside` those around it.
    `turn` is the recorded turn, from 0, where there is one. `more` holds the columns of `MORE` that the format knows.
    `expanded` says that a row of the file holds several requests; `rows` are then the rows of the block that they are
    of, and `numbers` the messages of each prompt, where the format holds text. Where `adds` is True, the prompt is what
    a turn adds to its session, and without a stamp (NaN) it comes its delay after the turn before. `shares` are the
    leading tokens that a prompt has in common with the one before in its session. `lasts` says that
    stamps and row numbers count from the start of the block, and after how long, in units of `at`, those of the next
    block begin. `dated` stamps are dates, and the unit of `stated` ones is what the user says: others are doubted.
    """

    stamp: str | None
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
    shares: Ints | None = None
    joins: pa.ListArray | None = None
    inside: pa.ListArray | None = None
    more: Mapping[str, pa.Array] = field(default_factory=dict)
    lasts: float | None = None
    dated: bool = False
    stated: bool = False

    def __len__(self) -> int:
        return len(self.at)

    @property
    def live(self) -> Mask:
        """(n,) which rows are requests."""
        live = np.ones(len(self), np.bool_)
        for _, mask in self.drops:
            live &= ~mask
        return live

    @property
    def by_times(self) -> bool:
        """Whether times alone tell what a row follows."""
        return self.session is not None and self.parent_row is None and "api_s" in self.more

    def values(self) -> pa.Table:
        """Stamp, lengths, session and tag."""
        columns = {"at": self.at, "prompt": self.prompt_tokens, "output": self.output_tokens}
        return pa.table(columns | {n: c for n in ("session", "tag") if (c := getattr(self, n)) is not None})

    def head(self, size: int) -> Requests:
        return _joined([self], lambda columns: columns[0][:size])

    def behind(self, rows: int, at: float) -> Requests:
        """The requests with stamps and row numbers as they are behind so many rows, which end at `at`."""
        parent = None if self.parent_row is None else pc.add(self.parent_row, rows)
        joins = None if self.joins is None else with_items(self.joins, pc.add(self.joins.flatten(), rows))
        return replace(self, at=np.asarray(self.at + at, np.float64), parent_row=parent, joins=joins)

    def take(self, order: Ints) -> Requests:
        """The rows in another order."""
        return _joined([self], lambda columns: columns[0].take(order))


@runtime_checkable
class TextReader(Protocol):
    """A reader of a format that holds the prompts themselves. `tokenizer` counts them; None: nothing does."""

    tokenizer: str | None
    counts: ClassVar[bool]
    """Whether rows tell how many tokens they have, so that the tokenizer is for those that do not."""
    also: ClassVar[tuple[tuple[str, ...], ...]]
    """Other columns that tell the format, in the place of `needs`."""
    body: ClassVar[Callable[[Mapping[str, Any], int], dict[str, object]]]
    """(row, messages of the prompt) -> the body of the request as recorded: messages or prompt, and other fields."""


@runtime_checkable
class MappedReader(Protocol):
    """A reader of a plain table, whose columns the user may name (`--reader at=...,prompt=...,output=...`).

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


def of_rows(
    block: Block, stamp: str | None, prompt: str, output: str, *, at: Ints | Floats | None = None, per_s: float = 1,
    **more: Any,
) -> Requests:  # fmt: skip
    """The requests of a table with one a row; a row without prompt or output tokens is reported as dropped.

    The stamps are numbers, `per_s` of them a second, unless `at` gives them; `more` are other columns.
    """
    if at is None:
        at = np.zeros(block.size) if stamp is None else block.numbers(stamp)
    prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
    drops = empty(prompt, prompt_tokens, output, output_tokens)
    return Requests(stamp, at, per_s, prompt_tokens, output_tokens, drops=drops, **more)


def empty(prompt: str, prompt_tokens: Ints, output: str, output_tokens: Ints) -> Marked:
    """The drops for rows without prompt or output tokens; the names are those of the columns."""
    return ((f"{prompt} is 0", prompt_tokens == 0), (f"{output} is 0", output_tokens == 0))


def ordered(rows: Iterator[tuple[Block, Requests]], *, sort: bool) -> Iterator[tuple[Block, Requests]]:
    """All rows as one block, rows of equal stamp in the order of the file; without `sort` only where that is needed."""
    first = next(rows, None)
    if first is None:
        return
    if not (sort or first[1].by_times):
        yield from chain([first], rows)
        return
    pairs = [(light(block, requests), requests) for block, requests in chain([first], rows)]
    del first
    joined = _joined([requests for _, requests in pairs])
    falls = np.diff(joined.at, prepend=joined.at[:1]) < 0
    if falls.any():
        joined = replace(joined, notes=(*joined.notes, (FALLS, falls)))
    order = np.argsort(joined.at, kind="stable")
    requests = joined.take(order)
    if requests.parent_row is not None:
        requests = replace(requests, parent_row=_moved(requests.parent_row, order))
    if requests.joins is not None:
        joins = requests.joins
        requests = replace(requests, joins=with_items(joins, _moved(joins.flatten(), order).fill_null(-1)))
    blocks = [block for block, _ in pairs]

    def identity() -> pa.Table:
        return pa.concat_tables([b.identity() for b in blocks]).combine_chunks().take(pa.array(order))

    size = sum(b.size for b in blocks)
    yield replace(blocks[0], size=size, identity=identity, where=lambda _: "sorted"), requests


def light(block: Block, requests: Requests) -> Block:
    """A block that is read: where several requests are of a row, nothing that holds text need stay."""
    return replace(block, cells=_gone, identity=requests.values, places=None) if requests.expanded else block


def _gone(column: str) -> Any:
    raise AssertionError(f"the cells of {column} are read already")


def _concatenated(columns: list[Any]) -> Any:
    return pa.concat_arrays(columns) if isinstance(columns[0], pa.Array) else np.concatenate(columns)


def _joined(parts: list[Requests], change: Callable[[list[Any]], Any] = _concatenated) -> Requests:
    """What `change` makes of each column of several tables, of which each has some of the marks."""
    values: dict[str, Any] = {}
    for name in (f.name for f in fields(Requests)):
        columns = [getattr(p, name) for p in parts]
        if columns[0] is None or isinstance(columns[0], str | float | int):
            values[name] = columns[0]
        elif name in ("drops", "notes"):
            marks = [(dict(column), np.zeros(len(p), bool)) for column, p in zip(columns, parts, strict=True)]
            texts = dict.fromkeys(text for mark, _ in marks for text in mark)
            values[name] = tuple((text, change([mark.get(text, none) for mark, none in marks])) for text in texts)
        elif name == "more":
            values[name] = {column: change([c[column] for c in columns]) for column in columns[0]}
        else:
            values[name] = change(columns)
    return Requests(**values)


def _moved(parents: pa.Array, order: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Row numbers before as row numbers after the ordering."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    before = parents.fill_null(-1).to_numpy(zero_copy_only=False)
    valid = (before >= 0) & (before < len(order))
    return pa.array(places[np.where(valid, before, 0)], pa.int64(), mask=~valid)
