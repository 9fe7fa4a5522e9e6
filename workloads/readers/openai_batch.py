"""Input files of OpenAI's batch API (JSON lines: custom_id, method, url, body), which vLLM and SGLang read too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from harness.bounds import AtLeastOne, check
from workloads.readers import _cells, _texts
from workloads.readers._collect import Block
from workloads.readers._requests import Requests


@dataclass(frozen=True, slots=True)
class OpenAIBatch:
    """One request a line, without stamp and without answer: every request is at 0 s.

    An answer has `max_completion_tokens` or `max_tokens` of the body, else `output_tokens` of the reader. `--content
    recorded` sends the whole body but for what a run decides (model, stream, lengths). Prompts that begin alike share
    blocks of `block_tokens` tokens; `tools` are counted as text before the messages. `tokenizer` is the path of a
    Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Source of the format:
    platform.openai.com/docs/guides/batch.
    """

    tokenizer: str | None = None
    output_tokens: AtLeastOne | None = None
    block_tokens: _cells.BlockTokens = 64
    encode: _texts.Encode | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("custom_id", "method", "url", "body")
    stamp: ClassVar[str] = "custom_id"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "none: every request is at 0 s; take arrivals from elsewhere",
        "prefixes": "blocks named by their tokens and all before them",
    }

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "encode", _texts.encoder(self.tokenizer))

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The body of a row without the fields that a run decides."""
        return {name: value for name, value in row["body"].items() if name not in _texts.DECIDED}

    def requests(self, block: Block) -> Requests:
        """Every row; one without a prompt, or of which nothing tells how long its answer is, is reported as dropped."""
        encode = _texts.needed(self.encode, block, "openai-batch")

        def chat(cell: object, refuse: _cells.Fail) -> _texts.Chat:
            if not isinstance(cell, dict) or not ("messages" in cell or "prompt" in cell):
                refuse(f"the body of a chat or a completion expected, got {_cells.shown(cell)}")
            return _texts.chat_of(cell, refuse, answered=False)

        at = np.zeros(block.size, np.int64)
        option = "--reader openai-batch:output"
        chats = block.each("body", chat, blank=_texts.Chat("", "", 0))
        return _texts.chat_requests(
            chats, encode, self.block_tokens, self.output_tokens, option, self.stamp, at, 1, None
        )  # fmt: skip
