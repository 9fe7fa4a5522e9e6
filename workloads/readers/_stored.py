"""The prompts of a trace that stay in its files: read again one by one, by their places."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from harness.errors import UsageError
from workloads.readers import _texts
from workloads.readers._collect import Block
from workloads.readers._requests import Reader, Requests, TextReader

AT, SIZE, NUMBER = "text_at", "text_bytes", "text_number"
"""Columns of a trace: the first byte of a row, counted through all files, its bytes, and the messages of its prompt."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Files of a trace, one behind the other, and what makes the body of a request of one of their rows."""

    files: tuple[Path, ...]
    sizes: tuple[int, ...]  # bytes
    body: Callable[[Mapping[str, Any], int], dict[str, object]]

    def prompts(self, table: pa.Table, rows: np.ndarray | None = None) -> "Prompts":
        """Those of the `rows` of a trace, in that order; of all without."""
        names = [name for name in (AT, SIZE, NUMBER) if name in table.column_names]
        columns = [np.asarray(table[name]) if rows is None else np.asarray(table[name])[rows] for name in names]
        return Prompts(self, np.stack(columns, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The body of request i: `places` (N, 2 or 3) has the columns AT, SIZE and NUMBER."""

    texts: Texts
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def body(self, i: int) -> dict[str, object]:
        """Raises ValueError where the file no longer holds what was read of it."""
        at, size, number = (*self.places[i].tolist(), 0)[:3]
        ends = list(accumulate(self.texts.sizes))
        of = bisect_right(ends, at)
        file = self.texts.files[of]
        try:
            with file.open("rb") as stream:
                stream.seek(at - (ends[of] - self.texts.sizes[of]))
                return self.texts.body(json.loads(stream.read(size)), number)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"'{file}' has changed since it was read ({type(error).__name__}).") from None


def recorded_texts(file: Path, plain: tuple[Path, ...], reader: Reader) -> Texts:
    """The texts of an open trace. Raises UsageError where it has none, or is packed."""
    if not isinstance(reader, TextReader):
        raise UsageError(f"--content recorded sends the prompts of a trace, and '{file}' holds no text, only lengths.")
    if not plain:
        raise UsageError(f"--content recorded reads '{file}' again request by request, so unpack it first.")
    return Texts(plain, tuple(f.stat().st_size for f in plain), type(reader).body)


def counting(reader: Reader) -> Reader:
    """The reader, which estimates counts where it has no tokenizer."""
    if not isinstance(reader, TextReader) or reader.tokenizer is not None:
        return reader
    return cast("Reader", replace(reader, tokenizer=_texts.BYTES))  # type: ignore[type-var]  # readers are dataclasses


def text_facts(reader: Reader) -> dict[str, str]:
    """Whether a trace holds the text of its prompts, and what counted their tokens, where nothing did."""
    if not isinstance(reader, TextReader):
        return {}
    estimated = {"tokenizer": _texts.ESTIMATED} if reader.tokenizer == _texts.BYTES else {}
    return {"prompts": "recorded", **estimated}


def with_places(rows: Iterator[tuple[Block, Requests]]) -> Iterator[tuple[Block, Requests]]:
    """The same with the columns of `Texts.prompts`; of the blocks nothing that holds text stays."""
    for block, requests in rows:
        assert block.places is not None  # plain files have them
        at, size = (block.places() if requests.rows is None else block.places()[requests.rows]).T
        more = {**requests.more, AT: pa.array(at), SIZE: pa.array(size)}
        if requests.numbers is not None:
            more[NUMBER] = pa.array(requests.numbers)
        placed = replace(requests, more=more, expanded=True)
        yield replace(block, cells=_gone, identity=placed.values, places=None), placed


def _gone(column: str) -> Any:
    raise AssertionError(f"the cells of {column} are read already")
