"""BurstGPT traces, parts 1 to 3 (CSV with the column names of either release)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.readers._cells import Fail, tokens
from workloads.readers._collect import Block, Ints, Mask
from workloads.readers._requests import Marked, Requests

_TAGS = {"Conversation log": "conversation", "API log": "api"}
SESSION, ELAPSED, TOTAL, LOG = "Session ID", "Elapsed time", "Total tokens", "Log Type"
_NO_TIME = "Elapsed time is no number of seconds of 0 or more (it is not used)"


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """Stamps in whole seconds since day 0 of the collection, counts in tokens.

    Source: HPMLL/BurstGPT, data CC-BY-4.0 (Wang et al., KDD 2025). Part 3 inserts `Session ID` and `Elapsed
    time`, so columns go by name. `Response tokens` 0 marks a failure: such rows are dropped. Equal rows
    are kept: whole-second stamps make them legitimate. The log type becomes the tag, `conversation` or `api`.
    """

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("Timestamp", "Request tokens", "Response tokens")
    stamp: ClassVar[str] = "Timestamp"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "OpenAI's, of ChatGPT and GPT-4",
        "stamps": "whole seconds: several requests may share one",
    }

    def requests(self, block: Block) -> Requests:
        """Every row, failures included (as dropped); a total that is not the sum means a damaged row."""
        stamp, prompt, output = self.needs
        at = block.numbers(stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        if block.has(TOTAL):
            _check_totals(block, prompt_tokens + output_tokens)
        tag = None
        if block.has(LOG):
            logs = block.names(LOG).dictionary_encode()
            tags = pa.array([_TAGS.get(log, log) for log in logs.dictionary.to_pylist()], pa.string())
            tag = tags.take(logs.indices)
        return Requests(
            stamp,
            at,
            1,
            prompt_tokens,
            output_tokens,
            drops=(("failed (Response tokens is 0)", output_tokens == 0), ("Request tokens is 0", prompt_tokens == 0)),
            session=block.names(SESSION) if block.has(SESSION) else None,
            tag=tag,
            notes=_elapsed(block),
        )


def _check_totals(block: Block, sums: Ints) -> None:
    """In every published row the total is the sum of both counts."""
    cells = block.cells(TOTAL)
    given: Mask = pc.not_equal(pc.utf8_trim_whitespace(cells), "").to_numpy(zero_copy_only=False)

    def total(cell: object, refuse: Fail) -> int:
        return 0 if not str(cell).strip() else tokens(cell, refuse)

    totals = block.tokens(TOTAL) if given.all() else np.array(block.each(TOTAL, total, blank=0), np.int64)
    for row in np.flatnonzero(given & (totals != sums)).tolist():
        block.leave_out(row, TOTAL, f"{sums[row]} expected (request + response), got {cells[row].as_py()[:40]!r}")


def _elapsed(block: Block) -> Marked:
    """The one use of `Elapsed time`: to count rows with an impossible value."""
    if not block.has(ELAPSED):
        return ()
    cells = block.cells(ELAPSED)
    numbers = pc.match_substring_regex(cells, r"^\s*\d+(\.\d*)?\s*$")
    return ((_NO_TIME, ~numbers.to_numpy(zero_copy_only=False)),)
