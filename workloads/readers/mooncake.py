"""Mooncake traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.readers._collect import Block, Ints
from workloads.readers._plain import known_numbers
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
        """As `rows_of`."""
        return rows_of(block, 1000, BLOCK_TOKENS)


def rows_of(block: Block, per_s: int, block_tokens: int) -> Requests:
    """Every row; a row without prompt or output tokens is reported as dropped.

    Rows with a `session_id` are turns as AIPerf replays them: `input_length` is what a turn adds to the prompt and the
    answer before, unless its `context_mode` is that of whole message arrays, and a turn without a stamp comes `delay`
    after that answer. Source: ai-dynamo/aiperf, docs/reference/conversation-context-mode.md, and its fixed schedule.
    """
    stamp, prompt, output, ids = Mooncake.needs
    prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
    in_sessions = block.has("session_id")
    at = np.array(known_numbers(block, stamp), np.float64) if in_sessions else block.numbers(stamp)
    requests = Requests(
        stamp,
        at,
        per_s,
        prompt_tokens,
        output_tokens,
        drops=empty(prompt, prompt_tokens, output, output_tokens),
        prefix_ids=one_per_block(block, ids, prompt_tokens, block_tokens) if block.has(ids) else None,
    )
    if not in_sessions:
        return requests
    return replace(
        requests,
        session=block.names("session_id", optional=True),
        adds=np.array([not str(mode).startswith("message_array") for mode in block.cells("context_mode")]),
        more={"delay_s": pa.array(np.array(known_numbers(block, "delay"), np.float64) / per_s)},
    )


def one_per_block(block: Block, column: str, prompt_tokens: Ints, block_tokens: int) -> pa.ListArray:
    """The ids, of which every prompt has one per block, the last block begun included."""
    ids = block.id_lists(column)
    counts = pc.list_value_length(ids).to_numpy(zero_copy_only=False)
    expected = -(-prompt_tokens // block_tokens)
    for row in np.flatnonzero(counts != expected).tolist():
        what = f"{expected[row]} ids expected for {prompt_tokens[row]} tokens in blocks of {block_tokens}"
        block.leave_out(row, column, f"{what}, got {counts[row]}")
    return ids
