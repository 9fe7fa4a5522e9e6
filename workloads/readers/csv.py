"""A plain CSV table: stamps, prompt and output tokens under usual names, or under those that `--columns` gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads.readers import _plain
from workloads.readers._collect import Block
from workloads.readers._requests import Requests


@dataclass(frozen=True, slots=True)
class Csv:
    """Any CSV table with a header; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out,session=user'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates such as 2024-05-12T00:00:00.5Z, counts are
    tokens. `session`, `turn`, `parent` (row number of the turn before) and `tag` may be there. Source: the user's file.
    """

    columns: str | None = None

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("at_s", "prompt_tokens", "output_tokens")
    stamp: ClassVar[str] = "at_s"
    block_tokens: ClassVar[int] = 512
    mapped: ClassVar[bool] = True
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not stated by the file", "stamps": "as the file gives them"}

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)
