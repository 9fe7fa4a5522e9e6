"""ShareGPT conversations (a JSON list, or lines, of objects with `conversations: [{from, value}, ...]`)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from harness.errors import UsageError
from workloads.content._tokens import open_tokenizer
from workloads.readers import _cells
from workloads.readers._collect import Block
from workloads.readers._requests import Requests

_ASKS = frozenset({"human", "user"})
_ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "bard", "bing"})
_NEEDS_TOKENIZER = "give the reader one that counts them: --reader sharegpt:tokenizer=PATH/tokenizer.json"

Count = Callable[[str], int]


class _Turn(NamedTuple):
    session: str
    prompt_tokens: int
    output_tokens: int
    dropped: int  # index of the reason, 0 for none


@dataclass(frozen=True, slots=True)
class Sharegpt:
    """Lengths and sessions without stamps: every request is at 0 s, counts are tokens of the given `tokenizer`.

    `tokenizer` is the path of a Hugging Face `tokenizer.json`. Each question is a request: its prompt is all that was
    before it and the question (no chat template), its output the answer. A conversation is a session. Source of the
    format: huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered.
    """

    tokenizer: str | None = None
    count: Count | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("conversations",)
    stamp: ClassVar[str] = "conversations"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "none: every request is at 0 s; take the lengths, and arrivals from elsewhere",
    }

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            tokenizer, _ = open_tokenizer(self.tokenizer, "Counting tokens of a text")
            object.__setattr__(self, "count", lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))

    def requests(self, block: Block) -> Requests:
        """A request per question; a question without an answer is reported as dropped."""
        if self.count is None:
            raise UsageError(f"Trace '{block.file}' holds text, no token counts; {_NEEDS_TOKENIZER}.")
        turns = [turn for row in range(block.size) for turn in _turns(block, row, self.count)]
        prompt, output, reason = (np.array([t[i] for t in turns], np.int64) for i in (1, 2, 3))
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
        )


_REASONS = ("", "no question in the conversation", "question without an answer", "empty question or answer")
_NO_QUESTION, _NO_ANSWER, _EMPTY = 1, 2, 3


def _turns(block: Block, row: int, count: Count) -> Iterator[_Turn]:
    """The questions of a conversation, or one dropped turn where there is none."""
    session = str(block.start + row)
    history = question = answer = 0
    has_question = answered = any_question = False
    for speaker, text in _messages(block, row):
        tokens = count(text)
        if speaker in _ASKS:
            if has_question:
                yield _turn(session, question, answer, answered)
            has_question = any_question = True
            answered, answer = False, 0
            question = history + tokens
        elif speaker in _ANSWERS and has_question:
            answered = True
            answer += tokens
        history += tokens
    if has_question:
        yield _turn(session, question, answer, answered)
    if not any_question:
        yield _Turn(session, 0, 0, _NO_QUESTION)


def _turn(session: str, question: int, answer: int, answered: bool) -> _Turn:
    empty = _EMPTY if question == 0 or answer == 0 else 0
    return _Turn(session, question, answer, empty if answered else _NO_ANSWER)


def _messages(block: Block, row: int) -> Iterator[tuple[str, str]]:
    messages = block.cells("conversations")[row]
    if not isinstance(messages, list):
        block.fail(row, "conversations", f"a list of messages expected, got {_cells.shown(messages)}")
    for message in messages:
        given = message if isinstance(message, dict) else {}
        speaker, text = given.get("from", given.get("role")), given.get("value", given.get("content"))
        if not isinstance(speaker, str) or not isinstance(text, str) or _cells.half_characters(text):
            got = _cells.shown(message)
            block.fail(row, "conversations", f"messages with the texts 'from' and 'value' expected, got {got}")
        yield speaker, text
