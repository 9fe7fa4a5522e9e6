"""A Parquet table: one that `bench trace convert` wrote, the schedule or the requests of a run, or any other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads.readers import _plain
from workloads.readers._cells import block_size
from workloads.readers._collect import Block
from workloads.readers._requests import Requests


@dataclass(frozen=True, slots=True)
class Parquet:
    """Any Parquet table; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or timestamps, counts are tokens. `session`, `turn`,
    `parent` (row number of the turn before), `tag` and `prefix_ids` may be there; a converted trace says the size of
    its blocks itself. Of the requests of a run, the output is the requested one. Source: the user's file.
    """

    columns: str | None = None
    block_tokens: int = 512

    form: ClassVar[str] = "parquet"
    needs: ClassVar[tuple[str, ...]] = ("at_s", "prompt_tokens", "output_tokens")
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[bool] = True
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not stated by the file", "stamps": "as the file gives them"}

    def __post_init__(self) -> None:
        block_size(self.block_tokens)

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)
