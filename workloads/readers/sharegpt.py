"""ShareGPT conversations (a JSON list, or lines, of objects with `conversations: [{from, value}, ...]`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from workloads.readers import _cells, _texts
from workloads.readers._block import Block
from workloads.readers._requests import Requests

_ASKS = frozenset({"human", "user"})
_ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "bard", "bing"})
_ROLES = {**dict.fromkeys(_ASKS, "user"), **dict.fromkeys(_ANSWERS, "assistant")}
_REASONS = ("", "no question in the conversation", "question without an answer", "empty question or answer")
_NO_QUESTION, _NO_ANSWER, _EMPTY = 1, 2, 3


class _Turn(NamedTuple):
    session: str
    prompt_tokens: int
    output_tokens: int
    dropped: int  # index of the reason, 0 for none
    row: int
    messages: int = 0  # of the prompt, the question included


@dataclass(frozen=True, slots=True)
class Sharegpt(_texts.Counting):
    """Lengths and sessions without stamps: every request is at 0 s, counts are tokens of the given `tokenizer`.

    `tokenizer` is the path of a Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Each question
    is a request: its prompt is all that was before it and the question (no chat template), its output the answer. A
    conversation is a session. `--content recorded` sends these messages. Source of the format:
    huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered.
    """

    needs: ClassVar[tuple[str, ...]] = ("conversations",)
    stamp: ClassVar[str] = "conversations"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "none: every request is at 0 s; take the lengths, and arrivals from elsewhere",
    }

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:
        """The first `number` messages of a conversation, in the words of the API."""
        messages = [_message(message) for message in row["conversations"][:number]]
        return {"messages": [{"role": _ROLES.get(speaker, speaker), "content": text} for speaker, text in messages]}

    def requests(self, block: Block) -> Requests:
        """A request per question; a question without an answer is reported as dropped."""
        encode = self.needed(block, "sharegpt")
        rows = block.each_row(
            lambda row: [*_turns(block, row, encode)], lambda row: [_Turn("", 0, 0, _NO_QUESTION, row)]
        )
        turns = [*chain.from_iterable(rows)]
        prompt, output, reason, row, messages = (np.array([t[i] for t in turns], np.int64) for i in range(1, 6))
        drops = tuple((text, reason == i) for i, text in enumerate(_REASONS) if i)
        return Requests(
            self.stamp,
            np.zeros(len(turns), np.int64),
            1,
            prompt,
            output,
            drops=drops,
            session=pa.array([t.session for t in turns], pa.string()),
            expanded=True,
            rows=row,
            numbers=messages,
        )


def _turns(block: Block, row: int, encode: _texts.Encode) -> Iterator[_Turn]:
    """The questions of a conversation, or one dropped turn where there is none."""
    session = str(block.start + row)
    history = question = answer = position = 0
    has_question = answered = any_question = False
    for number, (speaker, text) in enumerate(_messages(block, row), 1):
        tokens = len(encode([text])[0])
        if speaker in _ASKS:
            if has_question:
                yield _turn(session, question, answer, answered, row, position)
            has_question = any_question = True
            answered, answer = False, 0
            question, position = history + tokens, number
        elif speaker in _ANSWERS and has_question:
            answered = True
            answer += tokens
        history += tokens
    if has_question:
        yield _turn(session, question, answer, answered, row, position)
    if not any_question:
        yield _Turn(session, 0, 0, _NO_QUESTION, row)


def _turn(session: str, question: int, answer: int, answered: bool, row: int, messages: int) -> _Turn:
    empty = _EMPTY if question == 0 or answer == 0 else 0
    return _Turn(session, question, answer, empty if answered else _NO_ANSWER, row, messages)


def _messages(block: Block, row: int) -> Iterator[tuple[str, str]]:
    messages = block.cells("conversations")[row]
    if not isinstance(messages, list):
        block.fail(row, "conversations", f"a list of messages expected, got {_cells.shown(messages)}")
    for message in messages:
        speaker, text = _message(message)
        if not isinstance(speaker, str) or not isinstance(text, str) or _cells.half_characters(text):
            got = _cells.shown(message)
            block.fail(row, "conversations", f"messages with the texts 'from' and 'value' expected, got {got}")
        yield speaker, text


def _message(message: Any) -> tuple[Any, Any]:
    fields = message if isinstance(message, dict) else {}
    return fields.get("from", fields.get("role")), fields.get("value", fields.get("content"))
