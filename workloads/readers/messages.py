"""Requests in the form of OpenAI's chat API (JSON lines with `messages`), with or without their answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np

from harness.bounds import AtLeastOne, check
from workloads.readers import _cells, _texts
from workloads.readers._collect import MISSING, Block
from workloads.readers._requests import Requests
from workloads.readers.chat_log import PER_S, Unit


@dataclass(frozen=True, slots=True)
class Messages:
    """One request a line: its `messages`, of which a last one of the assistant is the recorded answer.

    An answer has as many tokens as the recorded one, else `max_completion_tokens` or `max_tokens` of the line, else
    `output_tokens` of the reader. `timestamp` (in `unit`: s, ms, us) and `session_id` are read where the first line
    has them; without stamps every request is at 0 s. `tools` are counted as text before the messages. `--content
    recorded` sends messages, tools and sampling fields as they are. Prompts that begin alike share blocks of
    `block_tokens` tokens. `tokenizer` is the path of a Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes
    a token. Source of the format: platform.openai.com/docs/api-reference/chat.
    """

    tokenizer: str | None = None
    output_tokens: AtLeastOne | None = None
    block_tokens: _cells.BlockTokens = 64
    unit: Unit = "s"
    encode: _texts.Encode | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("messages",)
    stamp: ClassVar[str] = "messages"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "unit of the reader option, seconds by default; without stamps every request is at 0 s",
        "prefixes": "blocks named by their tokens and all before them",
    }

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "encode", _texts.encoder(self.tokenizer))

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The messages of a row without the answer, and the fields beside them."""
        return {"messages": _texts.parted(row["messages"])[0], **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one without a prompt, or of which nothing tells how long its answer is, is reported as dropped."""
        return recorded(self, block, "messages", self.encode)


def recorded(reader: Messages, block: Block, name: str, encode: _texts.Encode | None) -> Requests:
    """The requests of rows whose prompt is in the column `needs`."""
    (column,) = reader.needs
    encode = _texts.needed(encode, block, name)
    names = (column, "tools", *_texts.ANSWERS)
    cells_of = [block.cells(field) for field in names]
    chats = []
    for row, cells in enumerate(zip(*cells_of, strict=True)):
        body = {field: cell for field, cell in zip(names, cells, strict=True) if cell is not MISSING}
        chats.append(_texts.chat_of(body, partial(block.fail, row, column)))
    timed = block.has("timestamp")
    at = block.numbers("timestamp") if timed else np.zeros(block.size, np.int64)
    session = block.names("session_id", optional=True) if block.has("session_id") else None
    option, stamp = f"--reader {name}:output", "timestamp" if timed else reader.stamp
    return _texts.chat_requests(
        chats, encode, reader.block_tokens, reader.output_tokens, option, stamp, at, PER_S[reader.unit], session
    )
