"""Logs of chats with their text (JSON lines: timestamp, input, output, session_id), as LMCache's agent traces."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from harness.errors import UsageError, no_such
from workloads.content._tokens import open_tokenizer
from workloads.readers import _cells
from workloads.readers._collect import Block
from workloads.readers._requests import Requests, empty

_PER_S = {"s": 1, "ms": 1000, "us": 1_000_000}
_NEEDS_TOKENIZER = "give the reader one: --reader chat-log:tokenizer=PATH/tokenizer.json"
_ID_BITS = 59  # of the names of blocks, below those that bench makes itself


@dataclass(frozen=True, slots=True)
class ChatLog:
    """Prompts and answers as text, counted by the given `tokenizer`; prompts that begin alike share their blocks.

    `input` is the whole prompt, a text or a list of messages with role and content (joined without a chat template),
    `output` the answer. Stamps are in `unit` (us, ms, s). Blocks of `block_tokens` tokens are named by all tokens up to
    their end, in all sessions alike. A turn follows the one before it of its session; where stamps fall, order the file
    first (`bench trace convert --sort`). The text itself is not sent again. `tokenizer` is the path of a Hugging Face
    `tokenizer.json`. Source of the format: LMCache/lmcache-agent-trace.
    """

    tokenizer: str | None = None
    block_tokens: int = 64
    unit: str = "us"
    loaded: Any = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input", "output", "session_id")
    stamp: ClassVar[str] = "timestamp"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "unit of the reader option, microseconds by default (--reader chat-log:unit=s for seconds)",
        "prefixes": "blocks named by their tokens and all before them",
    }

    def __post_init__(self) -> None:
        _cells.block_size(self.block_tokens)
        if self.unit not in _PER_S:
            raise no_such("unit", self.unit, _PER_S)
        if self.tokenizer is not None:
            object.__setattr__(self, "loaded", open_tokenizer(self.tokenizer, "Counting tokens of a text")[0])

    def requests(self, block: Block) -> Requests:
        """Every row; one without prompt or answer is reported as dropped."""
        if self.loaded is None:
            raise UsageError(f"Trace '{block.file}' holds text, no token counts; {_NEEDS_TOKENIZER}.")
        prompts = block.each("input", _text)
        answers = block.each("output", _text)
        tokens = [encoded.ids for encoded in self.loaded.encode_batch(prompts, add_special_tokens=False)]
        output = [len(encoded.ids) for encoded in self.loaded.encode_batch(answers, add_special_tokens=False)]
        prompt_tokens, output_tokens = np.array([len(ids) for ids in tokens], np.int64), np.array(output, np.int64)
        return Requests(
            "timestamp",
            block.numbers("timestamp"),
            _PER_S[self.unit],
            prompt_tokens,
            output_tokens,
            drops=empty("input", prompt_tokens, "output", output_tokens),
            session=block.names("session_id", optional=True),
            prefix_ids=pa.array([self._names(ids) for ids in tokens], pa.list_(pa.int64())),
        )

    def _names(self, ids: list[int]) -> list[int]:
        """A name for each whole block: of its tokens, and the block before."""
        size, before, names = self.block_tokens, b"", []
        words = np.array(ids, np.int64)
        for end in range(size, len(ids) + 1, size):
            before = hashlib.blake2b(before + words[end - size : end].tobytes(), digest_size=8).digest()
            names.append(int.from_bytes(before) >> (64 - _ID_BITS))
        return names


def _text(cell: object, refuse: _cells.Fail) -> str:
    """A text, or the contents of messages with their roles."""
    if isinstance(cell, str) and not _cells.half_characters(cell):
        return cell
    messages = cell if isinstance(cell, list) else [cell]
    parts = []
    for message in messages:
        given = message if isinstance(message, dict) else {}
        role, content = given.get("role"), given.get("content")
        if isinstance(content, list):  # parts of several kinds: those that are text
            content = "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
        calls = given.get("tool_calls")
        if not isinstance(role, str) or not isinstance(content, str | None) or _cells.half_characters(content or ""):
            refuse(f"a text, or messages with role and content expected, got {_cells.shown(message)}")
        parts.append(f"{role}: {content or ''}{'' if calls is None else calls}")
    return "\n\n".join(parts)
