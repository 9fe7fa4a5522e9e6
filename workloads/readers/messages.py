"""Requests with their text, one a line: of the chat, completions and batch APIs, of AIPerf, and of logs of chats."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from harness.bounds import AtLeastOne
from workloads.readers import _cells, _texts
from workloads.readers._block import MISSING, Block
from workloads.readers._requests import Requests
from workloads.readers._texts import PER_S, Chat, Counting, Unit

PROMPTS = ("messages", "prompt", "text_input", "input", "body")
"""Columns of prompts, of which the first that is there counts."""
UNITS: Mapping[str, Unit] = {"text_input": "ms", "input": "us"}
"""Units of the stamps beside some of them; beside others seconds."""


@dataclass(frozen=True, slots=True)
class Messages(Counting):
    """Requests with their text (JSON lines): `messages`, a `prompt`, `text_input`, `input` and `output`, or a `body`.

    One request a line: `messages` as of OpenAI's chat API, of which a last one of the assistant is the recorded answer;
    a `prompt`, as custom data sets of vLLM have it; the `text_input` of AIPerf (turns with a `delay` in place of their
    stamp are left out: their prompt is only what they add); the `input` (a text or messages) and `output` of a log with
    `timestamp` and `session_id`, as LMCache's agent traces; the `body` of a line of OpenAI's batch API.

    An answer has as many tokens as the recorded one, else `max_completion_tokens` or `max_tokens` of the line, else
    `output_tokens` of the reader. `timestamp` (in `unit`: s, ms, us; by default s, of `text_input` ms, of logs us) and
    `session_id` are read where the first line has them; without stamps every request is at 0 s. `tools` are counted as
    text before the messages. `--content recorded` sends prompt, tools and sampling fields as they are. Prompts that
    begin alike share blocks of `block_tokens` tokens, in all sessions alike. `tokenizer` is the path of a Hugging Face
    `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Source of the formats: platform.openai.com
    (api-reference/chat, guides/batch), docs.vllm.ai (custom data sets of `vllm bench serve`), ai-dynamo/aiperf,
    LMCache/lmcache-agent-trace.
    """

    output_tokens: AtLeastOne | None = None
    unit: Unit | None = None
    block_tokens: _cells.BlockTokens = 64

    needs: ClassVar[tuple[str, ...]] = ("messages",)
    also: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("prompt",), ("text_input",), ("timestamp", "input", "output", "session_id"),
        ("custom_id", "method", "url", "body"),
    )  # fmt: skip
    stamp: ClassVar[str] = "messages"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "unit of the reader option (by default s, of text_input ms, of logs us); without stamps every "
        "request is at 0 s",
        "prefixes": "blocks named by their tokens and all before them",
    }

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The prompt of a row without the answer, and the fields beside it; a body without what a run decides."""
        column = next(name for name in PROMPTS if name in row)
        if column == "body":
            return {name: value for name, value in row["body"].items() if name not in _texts.DECIDED}
        if column == "messages":
            return {"messages": _texts.parted(row["messages"])[0], **_texts.passed(row)}
        return {**_texts.prompt_of(row[column]), **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one without a prompt, or of which nothing tells how long its answer is, is reported as dropped."""
        column = next(name for name in PROMPTS if block.has(name))
        encode, timed = self.needed(block, "messages"), block.has("timestamp")
        if column == "text_input" and timed:
            for row, (stamp, delay) in enumerate(zip(*map(block.cells, ("timestamp", "delay")), strict=True)):
                if stamp in (MISSING, None) and delay not in (MISSING, None):
                    what = "rows with a delay and no timestamp are not read; write input_length, not text_input"
                    block.leave_out(row, "delay", what)
        chats = _chats(block, column)
        prompts = encode([chat.prompt for chat in chats])
        prompt_tokens, answers = (
            np.array([len(ids) for ids in part], np.int64)
            for part in (prompts, encode([chat.answer for chat in chats]))
        )
        limits = np.array([chat.limit for chat in chats], np.int64)
        output_tokens = np.where(answers > 0, answers, np.where(limits > 0, limits, self.output_tokens or 0))
        return Requests(
            "timestamp" if timed else column,
            block.numbers("timestamp") if timed else np.zeros(block.size, np.int64),
            PER_S[self.unit or UNITS.get(column, "s")],
            prompt_tokens,
            output_tokens,
            drops=(
                ("no prompt", prompt_tokens == 0),
                ("no answer and no max_tokens (--reader messages:output=256 sets one)", output_tokens == 0),
            ),
            session=block.names("session_id", optional=True) if block.has("session_id") else None,
            prefix_ids=_texts.block_names(prompts, self.block_tokens),
        )


def _chats(block: Block, column: str) -> list[Chat]:
    """The prompts and answers of the rows."""
    if column == "body":
        return block.each(column, _of_body, blank=Chat("", "", 0))
    names = (column, "tools", "output", *_texts.ANSWERS)
    rows = [*zip(*map(block.cells, names), strict=True)]

    def chat(row: int) -> Chat:
        fields = {name: cell for name, cell in zip(names, rows[row], strict=True) if cell is not MISSING}
        return _texts.chat_of(fields, partial(block.fail, row, column))

    return block.each_row(chat, lambda _: Chat("", "", 0))


def _of_body(cell: object, refuse: _cells.Fail) -> Chat:
    if not isinstance(cell, dict) or not ("messages" in cell or "prompt" in cell):
        refuse(f"the body of a chat or a completion expected, got {_cells.shown(cell)}")
    return _texts.chat_of(cell, refuse, answered=False)
