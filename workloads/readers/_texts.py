"""Prompts and answers as text: how their tokens are counted, and which fields of a record go to a server again.

Fields are those of OpenAI's API and of the extensions of vLLM and SGLang. Sources: API reference of
platform.openai.com, and docs.vllm.ai, OpenAI-compatible server.

The prompts of a trace stay in its files: they are read again one by one, by their places.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from harness import untrusted
from harness.bounds import Checked, check
from harness.errors import UsageError
from workloads.readers import _cells
from workloads.readers._block import Block
from workloads.readers._requests import Reader, Requests, TextReader, light

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
ANSWERS = ("max_completion_tokens", "max_tokens", "output_tokens", "output_length", "max_new_tokens")
"""Fields of a record that tell how long an answer may be: also of vLLM's custom data sets, and of AIPerf."""
PER_S = {"s": 1, "ms": 1000, "us": 1_000_000}
Unit = Literal["s", "ms", "us"]
Encode = Callable[[list[str]], list[Sequence[int]]]

AT, SIZE, NUMBER = "text_at", "text_bytes", "text_number"
"""Columns of a trace: the first byte of a row, counted through all files, its bytes, and the messages of its prompt."""


def encoder(tokenizer: str | None) -> Encode | None:
    """What makes token ids of texts: a tokenizer.json, or `bytes` for an estimate; None where nothing is given."""
    if tokenizer is None:
        return None
    if tokenizer == BYTES:
        return lambda texts: [_by_bytes(text) for text in texts]
    loaded, _ = untrusted.open_tokenizer(tokenizer, "Counting tokens of a text")

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
    cell = prompt_of(cell).get("prompt", cell)
    if isinstance(cell, str) and not _cells.half_characters(cell):
        return cell
    messages = cell if isinstance(cell, list) else [cell]
    if len(messages) > 1 and all(isinstance(message, str) for message in messages):
        refuse(f"one prompt a row expected, got a batch of {len(messages)}; write each into a row of its own")
    parts = []
    for message in messages:
        fields = message if isinstance(message, dict) else {}
        role, content = fields.get("role"), fields.get("content")
        if isinstance(content, list):  # parts of several kinds: those that are text
            content = "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
        calls = fields.get("tool_calls")
        part = f"{role}: {content or ''}{'' if calls is None else calls}"
        if not isinstance(role, str) or not isinstance(content, str | None) or _cells.half_characters(part):
            refuse(f"a text, or messages with role and content expected, got {_cells.shown(message)}")
        parts.append(part)
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
    """The body of a request as it is counted; without messages it is a completion, or an `input` with its `output`.

    `answered`: a last message of the assistant is the answer.
    """
    messages, answer = body.get("messages"), None
    if isinstance(messages, list) and answered:
        messages, answer = parted(messages)
    elif messages is None:
        messages, answer = body.get("prompt", body.get("text_input", body.get("input"))), body.get("output")
    limits = (body.get(name) for name in ANSWERS)
    limit = next((_cells.tokens(value, refuse) for value in limits if value is not None), 0)
    prompt = tools_of(body.get("tools"), refuse) + text_of(messages, refuse)
    content = "" if answer is None else text_of(answer, refuse).removeprefix("assistant: ")
    return Chat(prompt, content, limit)


@dataclass(frozen=True, slots=True)
class Counting(Checked):
    """A reader of texts, whose tokens `encode` counts with the given tokenizer."""

    tokenizer: str | None = None
    encode: Encode | None = field(init=False, repr=False, compare=False, default=None)

    form: ClassVar[str] = "json"
    counts: ClassVar[bool] = False
    also: ClassVar[tuple[tuple[str, ...], ...]] = ()

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


def prompt_of(given: Any) -> dict[str, object]:
    """The part of a body that is the prompt: a text, or messages."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):  # a batch of one prompt
        given = given[0]
    if isinstance(given, str):
        return {"prompt": given}
    return {"messages": given if isinstance(given, list) else [given]}


def passed(row: Mapping[str, Any]) -> dict[str, object]:
    """The fields of a record that are sent with its prompt; those that are null are left out."""
    return {name: value for name, value in row.items() if name in PASSED and value is not None}


@dataclass(frozen=True, slots=True)
class Texts:
    """Files of a trace, one behind the other, and what makes the body of a request of one of their rows."""

    files: tuple[Path, ...]
    sizes: tuple[int, ...]  # bytes
    body: Callable[[Mapping[str, Any], int], dict[str, object]]

    def prompts(self, table: pa.Table, rows: np.ndarray | None = None) -> "Prompts":
        """Those of the `rows` of a trace, in that order; of all without."""
        names = [name for name in (AT, SIZE, NUMBER) if name in table.column_names]
        columns = [np.asarray(table[name]) if rows is None else np.asarray(table[name])[rows] for name in names]
        return Prompts(self, np.stack(columns, axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The body of request i: `places` (N, 2 or 3) has the columns AT, SIZE and NUMBER."""

    texts: Texts
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.places)

    def body(self, i: int) -> dict[str, object]:
        """Raises ValueError where the file no longer holds what was read of it."""
        offset, size, number = (*self.places[i].tolist(), 0)[:3]
        ends = list(accumulate(self.texts.sizes))
        file_index = bisect_right(ends, offset)
        file = self.texts.files[file_index]
        try:
            return self.texts.body(_row(file, offset - (ends[file_index] - self.texts.sizes[file_index]), size), number)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"'{file}' has changed since it was read ({type(error).__name__}).") from None


@lru_cache(maxsize=16)
def _row(file: Path, offset: int, size: int) -> Any:
    """A row of a file; one may hold all requests of a session, whose bodies are read one by one."""
    with file.open("rb") as stream:
        stream.seek(offset)
        return json.loads(stream.read(size))


def recorded_texts(file: Path, plain: tuple[Path, ...], reader: Reader) -> Texts:
    """The texts of an open trace. Raises UsageError where it has none, or is packed."""
    if not isinstance(reader, TextReader):
        raise UsageError(f"--content recorded sends the prompts of a trace, and '{file}' holds no text, only lengths.")
    if not plain:
        raise UsageError(f"--content recorded reads '{file}' again request by request, so unpack it first.")
    return Texts(plain, tuple(f.stat().st_size for f in plain), type(reader).body)


def counting(reader: Reader) -> Reader:
    """The reader, which estimates counts where it has no tokenizer."""
    if not isinstance(reader, TextReader) or reader.tokenizer is not None:
        return reader
    return cast("Reader", replace(reader, tokenizer=BYTES))  # type: ignore[type-var]  # readers are dataclasses


def text_facts(reader: Reader, any_text: bool) -> dict[str, str]:
    """Whether a trace holds the text of its prompts, and what counted their tokens, where nothing did."""
    if not isinstance(reader, TextReader) or not any_text:
        return {}
    estimated = {"tokenizer": ESTIMATED} if reader.tokenizer == BYTES and not reader.counts else {}
    return {"prompts": "recorded", **estimated}


def with_places(rows: Iterator[tuple[Block, Requests]]) -> Iterator[tuple[Block, Requests]]:
    """The same with the columns of `Texts.prompts`; of the blocks nothing that holds text stays."""
    for block, requests in rows:
        assert block.places is not None  # plain files have them
        offset, size = (block.places() if requests.rows is None else block.places()[requests.rows]).T
        more = {**requests.more, AT: pa.array(offset), SIZE: pa.array(size)}
        drops = requests.drops
        if requests.numbers is not None:
            more[NUMBER] = pa.array(requests.numbers)
            drops = (*drops, ("no text is recorded", requests.numbers < 0))
        placed = replace(requests, more=more, expanded=True, drops=drops)
        yield light(block, placed), placed
