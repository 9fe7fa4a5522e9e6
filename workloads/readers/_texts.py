"""Prompts and answers as text: how their tokens are counted, and which fields of a record go to a server again.

Fields are those of OpenAI's API and of the extensions of vLLM and SGLang. Sources: API reference of
platform.openai.com, and docs.vllm.ai, OpenAI-compatible server.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from harness.bounds import Checked, check
from harness.errors import UsageError
from workloads.content._tokens import open_tokenizer
from workloads.readers import _cells
from workloads.readers._collect import Block
from workloads.readers._requests import Requests

BYTES = "bytes"
BYTES_PER_TOKEN = 4
"""An estimate for English without a tokenizer: 'one token generally corresponds to ~4 characters of text'. Source:
platform.openai.com/tokenizer."""

ESTIMATED = f"none: {BYTES_PER_TOKEN} bytes of UTF-8 are taken for a token"
"""What a report says of the counts of `tokenizer=bytes`."""

_ID_BITS = 59  # of the names of blocks, below those that bench makes itself

DECIDED = frozenset(
    ("model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens",
     "ignore_eos")
)  # fmt: skip
"""Fields that the run decides itself: the model, how answers are timed, and how long they are."""

PASSED = frozenset(
    ("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format",
     "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "temperature", "top_p",
     "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty", "logit_bias",
     "logprobs", "top_logprobs", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
     "skip_special_tokens", "echo", "suffix", "reasoning_effort", "verbosity", "modalities", "prediction",
     "service_tier", "store", "metadata", "user", "safety_identifier", "prompt_cache_key", "web_search_options",
     "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
     "mm_processor_kwargs")
)  # fmt: skip
"""Fields beside the prompt that a record may hold and that are sent with it."""

ANSWERS = ("max_completion_tokens", "max_tokens", "output_tokens", "max_new_tokens")
"""Fields of a record that tell how long an answer may be; `output_tokens` is that of vLLM's custom data sets."""

PER_S = {"s": 1, "ms": 1000, "us": 1_000_000}
Unit = Literal["s", "ms", "us"]
Encode = Callable[[list[str]], list[Sequence[int]]]


def encoder(tokenizer: str | None) -> Encode | None:
    """What makes token ids of texts: a tokenizer.json, or `bytes` for an estimate; None where nothing is given."""
    if tokenizer is None:
        return None
    if tokenizer == BYTES:
        return lambda texts: [_by_bytes(text) for text in texts]
    loaded, _ = open_tokenizer(tokenizer, "Counting tokens of a text")

    def encode(texts: list[str]) -> list[Sequence[int]]:
        if len(texts) == 1:  # without the threads of a batch
            return [loaded.encode(texts[0], add_special_tokens=False).ids]
        return [encoded.ids for encoded in loaded.encode_batch(texts, add_special_tokens=False)]

    return encode


def _by_bytes(text: str) -> Sequence[int]:
    data = text.encode()
    ids: list[int] = np.frombuffer(data + b"\0" * (-len(data) % BYTES_PER_TOKEN), np.uint32).tolist()
    return ids


def block_names(prompts: Sequence[Sequence[int]], size: int) -> pa.ListArray:
    """A name for each whole block of `size` tokens of each prompt: of its tokens, and the block before."""
    return pa.array([_names(ids, size) for ids in prompts], pa.list_(pa.int64()))


def _names(ids: Sequence[int], size: int) -> list[int]:
    before, names = b"", []
    words = np.array(ids, np.int64)
    for end in range(size, len(ids) + 1, size):
        before = hashlib.blake2b(before + words[end - size : end].tobytes(), digest_size=8).digest()
        names.append(int.from_bytes(before) >> (64 - _ID_BITS))
    return names


def text_of(cell: object, refuse: _cells.Fail) -> str:
    """A text, or the contents of messages with their roles, as they are counted."""
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


def tools_of(cell: object, refuse: _cells.Fail) -> str:
    """The tools of a request as text, which stand before its messages; empty without any."""
    if not isinstance(cell, list | None):
        refuse(f"a list of tools expected, got {_cells.shown(cell)}")
    return f"{json.dumps(cell)}\n\n" if cell else ""


def parted(messages: list[Any]) -> tuple[list[Any], Any]:
    """The messages of the prompt, and the answer: the last one where the assistant has it, else None."""
    last = messages[-1] if messages else None
    answered = isinstance(last, dict) and last.get("role") == "assistant"
    return (messages[:-1], last) if answered else (messages, None)


class Chat(NamedTuple):
    """A recorded request: its prompt and answer as they are counted, and the tokens that its answer may have."""

    prompt: str
    answer: str
    limit: int  # 0: not recorded


def chat_of(body: Mapping[str, Any], refuse: _cells.Fail, *, answered: bool = True) -> Chat:
    """The body of a request as it is counted; without messages it is a completion.

    `answered`: a last message of the assistant is the answer.
    """
    given, answer = body.get("messages"), None
    if isinstance(given, list) and answered:
        given, answer = parted(given)
    elif given is None:
        given = body.get("prompt")
    limits = (body.get(name) for name in ANSWERS)
    limit = next((_cells.tokens(value, refuse) for value in limits if value is not None), 0)
    prompt = tools_of(body.get("tools"), refuse) + text_of(given, refuse)
    content = "" if answer is None else text_of(answer, refuse).removeprefix("assistant: ")
    return Chat(prompt, content, limit)


@dataclass(frozen=True, slots=True)
class Counting(Checked):
    """A reader of texts, whose tokens `encode` counts with the given tokenizer."""

    tokenizer: str | None = None
    encode: Encode | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "encode", encoder(self.tokenizer))

    def needed(self, block: Block, name: str) -> Encode:
        """The encoder; raises UsageError where there is none."""
        if self.encode is None:
            raise UsageError(
                f"Trace '{block.file}' holds text, no token counts; give the reader one that counts them: --reader "
                f"{name}:tokenizer=PATH/tokenizer.json, or {name}:tokenizer={BYTES} for an estimate "
                f"({BYTES_PER_TOKEN} bytes a token)."
            )
        return self.encode


@dataclass(frozen=True, slots=True)
class Recorded(Counting):
    """A reader of requests with their text; prompts that begin alike share their blocks."""

    block_tokens: _cells.BlockTokens = 64

    stamp: ClassVar[str]
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that given to the reader",
        "stamps": "none: every request is at 0 s; take arrivals from elsewhere",
        "prefixes": "blocks named by their tokens and all before them",
    }

    def counted(
        self, block: Block, name: str, chats: Callable[[Block], Sequence[Chat]], unit: Unit | None, output: int | None,
        lacks: tuple[str, str] | None = None,
    ) -> Requests:  # fmt: skip
        """The requests of a block; answers without a length have `output` tokens. Without `unit` it has no stamps."""
        encode = self.needed(block, name)
        made = chats(block)
        prompts = encode([chat.prompt for chat in made])
        answers = np.array([len(ids) for ids in encode([chat.answer for chat in made])], np.int64)
        prompt_tokens = np.array([len(ids) for ids in prompts], np.int64)
        limits = np.array([chat.limit for chat in made], np.int64)
        output_tokens = np.where(answers > 0, answers, np.where(limits > 0, limits, output or 0))
        timed = unit is not None and block.has("timestamp")
        no_prompt, no_output = lacks or (
            "no prompt",
            f"no answer and no max_tokens (--reader {name}:output=256 sets one)",
        )
        return Requests(
            "timestamp" if timed else self.stamp,
            block.numbers("timestamp") if timed else np.zeros(block.size, np.int64),
            PER_S[unit or "s"],
            prompt_tokens,
            output_tokens,
            drops=((no_prompt, prompt_tokens == 0), (no_output, output_tokens == 0)),
            session=block.names("session_id", optional=True) if unit and block.has("session_id") else None,
            prefix_ids=block_names(prompts, self.block_tokens),
        )


def prompt_of(given: Any) -> dict[str, object]:
    """The part of a body that is the prompt: a text, or messages."""
    if isinstance(given, str):
        return {"prompt": given}
    return {"messages": given if isinstance(given, list) else [given]}


def passed(row: Mapping[str, Any]) -> dict[str, object]:
    """The fields of a record that are sent with its prompt; those that are null are left out."""
    return {name: value for name, value in row.items() if name in PASSED and value is not None}
