"""Logs of chats with their text (JSON lines: timestamp, input, output, session_id), as LMCache's agent traces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from harness.bounds import check
from workloads.readers import _cells, _texts
from workloads.readers._collect import Block
from workloads.readers._requests import Requests, empty

PER_S = {"s": 1, "ms": 1000, "us": 1_000_000}
Unit = Literal["s", "ms", "us"]


@dataclass(frozen=True, slots=True)
class ChatLog:
    """Prompts and answers as text, counted by the given `tokenizer`; prompts that begin alike share their blocks.

    `input` is the whole prompt, a text or a list of messages with role and content (joined without a chat template),
    `output` the answer. Stamps are in `unit` (us, ms, s). Blocks of `block_tokens` tokens are named by all tokens up to
    their end, in all sessions alike. A turn follows the one before it of its session. `--content recorded` sends the
    prompts again, with the fields of the request that stand beside them (tools, response_format, temperature, ...).
    `tokenizer` is the path of a Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Source of the
    format: LMCache/lmcache-agent-trace.
    """

    tokenizer: str | None = None
    block_tokens: _cells.BlockTokens = 64
    unit: Unit = "us"
    encode: _texts.Encode | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input", "output", "session_id")
    stamp: ClassVar[str] = "timestamp"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "unit of the reader option, microseconds by default (--reader chat-log:unit=s for seconds)",
        "prefixes": "blocks named by their tokens and all before them",
    }

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "encode", _texts.encoder(self.tokenizer))

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The prompt of a row and the fields beside it."""
        return {**_texts.prompt_of(row["input"]), **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one without prompt or answer is reported as dropped."""
        encode = _texts.needed(self.encode, block, "chat-log")
        tools = block.each("tools", _texts.tools_of, optional=True, blank="")
        prompts = encode([a + b for a, b in zip(tools, block.each("input", _texts.text_of, blank=""), strict=True)])
        prompt_tokens = np.array([len(ids) for ids in prompts], np.int64)
        output_tokens = np.array([len(ids) for ids in encode(block.each("output", _texts.text_of, blank=""))], np.int64)
        return Requests(
            "timestamp",
            block.numbers("timestamp"),
            PER_S[self.unit],
            prompt_tokens,
            output_tokens,
            drops=empty("input", prompt_tokens, "output", output_tokens),
            session=block.names("session_id", optional=True),
            prefix_ids=_texts.block_names(prompts, self.block_tokens),
        )
