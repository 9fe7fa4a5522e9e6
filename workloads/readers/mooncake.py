"""Mooncake traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import UsageError
from workloads.readers._collect import MISSING, Block, Floats, Ints
from workloads.readers._requests import Requests, empty

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Mooncake:
    """Stamps in milliseconds, counts in tokens; `hash_ids` become the prefix ids, one per 512-token block.

    Source: kvcache-ai/Mooncake, FAST'25 release (repository Apache-2.0; the trace folder names no licence of its
    own). Every row has ceil(input_length / 512) ids. The recorded stamps sit on a 3-second grid, about ten
    requests at each, and are replayed as they are. The tokenizer is not published.
    """

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length", "hash_ids")
    stamp: ClassVar[str] = "timestamp"
    block_tokens: ClassVar[int] = BLOCK_TOKENS
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not published",
        "stamps": "on a grid of about 3 s in the recorded traces, replayed as they are: several requests share one",
        "prefixes": f"ids of {BLOCK_TOKENS}-token blocks kept",
    }

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        stamp, prompt, output, ids = self.needs
        at_ms = stamps(block, stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        return Requests(
            stamp,
            at_ms,
            1000,
            prompt_tokens,
            output_tokens,
            drops=empty(prompt, prompt_tokens, output, output_tokens),
            prefix_ids=one_per_block(block, ids, prompt_tokens, BLOCK_TOKENS),
        )


def stamps(block: Block, column: str) -> Ints | Floats:
    """The stamps. Raises UsageError for turns that have a `delay` after the answer before instead of a stamp.

    They are not read: their lengths may be those of the whole prompt or of what a turn adds, and the file does not say.
    """
    for row, (at, delay) in enumerate(zip(block.cells(column), block.cells("delay"), strict=True)):
        if at in (MISSING, None) and delay not in (MISSING, None):
            raise UsageError(
                f"Trace '{block.file}', {block.where(row)}: a turn with `delay` instead of `{column}`, as AIPerf has "
                "sessions. Write every turn with timestamp_ms (that of the turn before + delay), delay_s (seconds), "
                "session_id, input_length (the whole prompt, with the turns before and their answers) and "
                "output_length, and replay them with --turns think-only."
            )
    return block.numbers(column)


def one_per_block(block: Block, column: str, prompt_tokens: Ints, block_tokens: int) -> pa.ListArray:
    """The ids, of which every prompt has one per block, the last block begun included."""
    ids = block.id_lists(column)
    counts = pc.list_value_length(ids).to_numpy(zero_copy_only=False)
    expected = -(-prompt_tokens // block_tokens)
    for row in np.flatnonzero(counts != expected).tolist():
        what = f"{expected[row]} ids expected for {prompt_tokens[row]} tokens in blocks of {block_tokens}"
        block.leave_out(row, column, f"{what}, got {counts[row]}")
    return ids
