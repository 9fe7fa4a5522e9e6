"""Qwen-Bailian traces (JSON lines: chat_id, parent_chat_id, timestamp in s, lengths, type, turn, 16-token hash_ids)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from workloads.readers._collect import Block
from workloads.readers._requests import Requests, empty

BLOCK_TOKENS = 16
CHAT, PARENT, TURN, TYPE, IDS = "chat_id", "parent_chat_id", "turn", "type", "hash_ids"
_ROOT = "-1"


@dataclass(frozen=True, slots=True)
class Bailian:
    """Stamps in seconds, counts in tokens; `hash_ids` become the prefix ids, one per 16-token block.

    Source: alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0. A chat is one turn and names the one before (-1:
    none); a session is a tree of chats, known by its root. The type (text, search, image, file) becomes the tag. Turns
    are counted from the root, from 0; the recorded ones, from 1, count where the chat before is not in the file.
    """

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = (CHAT, PARENT, "timestamp", "input_length", "output_length", IDS)
    stamp: ClassVar[str] = "timestamp"
    block_tokens: ClassVar[int] = BLOCK_TOKENS
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "Qwen's, as the trace names no other",
        "stamps": "seconds with decimals",
        "prefixes": f"ids of {BLOCK_TOKENS}-token blocks kept",
    }

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        _, _, stamp, prompt, output, _ = self.needs
        chat, parent = block.names(CHAT), block.names(PARENT)
        at_s = block.numbers(stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        turn = block.tokens(TURN) if block.has(TURN) else None
        ids = block.id_lists(IDS)
        counts, blocks = pc.list_value_length(ids).to_numpy(zero_copy_only=False), -(-prompt_tokens // BLOCK_TOKENS)
        for row in np.flatnonzero(counts > blocks).tolist():
            what = f"at most {blocks[row]} ids expected for {prompt_tokens[row]} tokens"
            block.leave_out(row, IDS, f"{what} in blocks of {BLOCK_TOKENS}, got {len(ids[row])}")
        return Requests(
            stamp,
            at_s,
            1,
            prompt_tokens,
            output_tokens,
            drops=empty(prompt, prompt_tokens, output, output_tokens),
            chat=chat,
            parent=pc.if_else(pc.equal(parent, _ROOT), pa.scalar(None, pa.string()), parent),
            turn=None if turn is None else np.maximum(turn - 1, 0),
            tag=block.names(TYPE) if block.has(TYPE) else None,
            prefix_ids=ids,
            notes=((f"{IDS} do not cover the whole prompt in blocks of {BLOCK_TOKENS} tokens", counts < blocks),),
        )
