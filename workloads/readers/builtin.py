"""Plain tables of any origin: stamps, prompt and output tokens under usual names, or under those of `--columns`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from harness.bounds import Checked
from workloads.readers import _plain
from workloads.readers._cells import BlockTokens
from workloads.readers._collect import Block
from workloads.readers._requests import Requests

_NEEDS = ("at_s", "prompt_tokens", "output_tokens")
_FACTS = {"tokenizer": "not stated by the file", "stamps": "as the file gives them"}


@dataclass(frozen=True, slots=True)
class Csv:
    """A plain CSV table: stamps, prompt and output tokens under usual names, or under those that `--columns` gives.

    Any CSV table with a header; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out,session=user'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates such as 2024-05-12T00:00:00.5Z, counts are
    tokens. `session`, `turn`, `parent` (row number of the turn before) and `tag` may be there. Source: the user's file.
    """

    columns: str | None = None

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    block_tokens: ClassVar[int] = 512
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)


@dataclass(frozen=True, slots=True)
class Jsonl(Checked):
    """Plain JSON lines: stamps, prompt and output tokens under usual names, or under those that `--columns` gives.

    Any JSON lines, or one JSON list of objects; `columns` maps our names to its keys: 'at=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates, counts are tokens. `session`, `turn`, `parent`
    (row number of the turn before), `tag` and `prefix_ids` (lists of ids of blocks of `block_tokens` tokens) may be
    there. Source: the user's file.
    """

    columns: str | None = None
    block_tokens: BlockTokens = 512

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every object; one without prompt or output tokens is reported as dropped."""
        found = _plain.requests(block, self.columns)
        if found.prefix_ids is None:
            return found
        blocks = found.prefix_ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        over = (blocks - 1) * self.block_tokens >= np.maximum(found.prompt_tokens, 1)
        note = (
            f"more prefix blocks of {self.block_tokens} tokens than the prompt has room for; tell their size with "
            "--reader jsonl:block_tokens=N"
        )
        return replace(found, notes=(*found.notes, (note, over)))


@dataclass(frozen=True, slots=True)
class Parquet(Checked):
    """A Parquet table: one that `bench trace convert` wrote, the schedule or the requests of a run, or any other.

    Any Parquet table; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or timestamps, counts are tokens. `session`, `turn`,
    `parent` (row number of the turn before), `tag` and `prefix_ids` may be there; a converted trace says the size of
    its blocks itself. Of the requests of a run, the output is the requested one. Source: the user's file.
    """

    columns: str | None = None
    block_tokens: BlockTokens = 512

    form: ClassVar[str] = "parquet"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)
