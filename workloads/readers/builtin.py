"""Plain tables of any origin, records of requests with their text, and two short formats of simulators and vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from harness.bounds import AtLeastOne, Checked
from workloads.readers import _cells, _plain, _texts
from workloads.readers._cells import BlockTokens
from workloads.readers._collect import MISSING, Block
from workloads.readers._requests import Requests, empty
from workloads.readers._texts import PER_S, Recorded, Unit
from workloads.readers.mooncake import rows_of

_NEEDS = ("at_s", "prompt_tokens", "output_tokens")
_FACTS = {"tokenizer": "not stated by the file", "stamps": "as the file gives them"}


@dataclass(frozen=True, slots=True)
class Csv:
    """A plain CSV table: stamps, prompt and output tokens under usual names, or under those that `--columns` gives.

    Any CSV table with a header; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out,session=user'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates such as 2024-05-12T00:00:00.5Z, counts are
    tokens. `session`, `turn`, `parent` (row number of the turn before) and `tag` may be there. Source: the user's file.
    """

    columns: str | None = None

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    block_tokens: ClassVar[int] = 512
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)


@dataclass(frozen=True, slots=True)
class Jsonl(Checked):
    """Plain JSON lines: stamps, prompt and output tokens under usual names, or under those that `--columns` gives.

    Any JSON lines, or one JSON list of objects; `columns` maps our names to its keys: 'at=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates, counts are tokens. `session`, `turn`, `parent`
    (row number of the turn before), `tag` and `prefix_ids` (lists of ids of blocks of `block_tokens` tokens) may be
    there. Source: the user's file.
    """

    columns: str | None = None
    block_tokens: BlockTokens = 512

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every object; one without prompt or output tokens is reported as dropped."""
        found = _plain.requests(block, self.columns)
        if found.prefix_ids is None:
            return found
        blocks = found.prefix_ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        over = (blocks - 1) * self.block_tokens >= np.maximum(found.prompt_tokens, 1)
        note = (
            f"more prefix blocks of {self.block_tokens} tokens than the prompt has room for; tell their size with "
            "--reader jsonl:block_tokens=N"
        )
        return replace(found, notes=(*found.notes, (note, over)))


@dataclass(frozen=True, slots=True)
class Parquet(Checked):
    """A Parquet table: one that `bench trace convert` wrote, the schedule or the requests of a run, or any other.

    Any Parquet table; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or timestamps, counts are tokens. `session`, `turn`,
    `parent` (row number of the turn before), `tag` and `prefix_ids` may be there; a converted trace says the size of
    its blocks itself. Of the requests of a run, the output is the requested one. Source: the user's file.
    """

    columns: str | None = None
    block_tokens: BlockTokens = 512

    form: ClassVar[str] = "parquet"
    needs: ClassVar[tuple[str, ...]] = _NEEDS
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = _FACTS

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        return _plain.requests(block, self.columns)


@dataclass(frozen=True, slots=True)
class Messages(Recorded):
    """Requests in the form of OpenAI's chat API (JSON lines with `messages`), with or without their answers.

    One request a line: its `messages`, of which a last one of the assistant is the recorded answer.

    An answer has as many tokens as the recorded one, else `max_completion_tokens` or `max_tokens` of the line, else
    `output_tokens` of the reader. `timestamp` (in `unit`: s, ms, us) and `session_id` are read where the first line
    has them; without stamps every request is at 0 s. `tools` are counted as text before the messages. `--content
    recorded` sends messages, tools and sampling fields as they are. Prompts that begin alike share blocks of
    `block_tokens` tokens. `tokenizer` is the path of a Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes
    a token. Source of the format: platform.openai.com/docs/api-reference/chat.
    """

    output_tokens: AtLeastOne | None = None
    unit: Unit = "s"

    needs: ClassVar[tuple[str, ...]] = ("messages",)
    stamp: ClassVar[str] = "messages"
    facts: ClassVar[Mapping[str, str]] = {
        **Recorded.facts,
        "stamps": "unit of the reader option, seconds by default; without stamps every request is at 0 s",
    }

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The messages of a row without the answer, and the fields beside them."""
        return {"messages": _texts.parted(row["messages"])[0], **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one without a prompt, or of which nothing tells how long its answer is, is reported as dropped."""
        chats = partial(_chats, self.needs[0])
        return self.counted(block, type(self).__name__.lower(), chats, self.unit, self.output_tokens)


def _chats(column: str, block: Block) -> list[_texts.Chat]:
    """The chats of rows whose prompt is in this column."""
    names = (column, "tools", *_texts.ANSWERS)
    chats = []
    for row, cells in enumerate(zip(*map(block.cells, names), strict=True)):
        body = {field: cell for field, cell in zip(names, cells, strict=True) if cell is not MISSING}
        chats.append(_texts.chat_of(body, partial(block.fail, row, column)))
    return chats


@dataclass(frozen=True, slots=True)
class Prompts(Messages):
    """Prompts, one a line (JSON lines with `prompt`), as custom data sets of vLLM and others have them.

    One request a line: its `prompt`, a text; perhaps `output_tokens`, `max_tokens`, `timestamp` and `session_id`.

    An answer has as many tokens as the line tells, else `output_tokens` of the reader. `--content recorded` sends the
    prompt to the completions API. The rest is as in the reader `messages`. Source of the format: docs.vllm.ai, custom
    data sets of `vllm bench serve`.
    """

    needs: ClassVar[tuple[str, ...]] = ("prompt",)
    stamp: ClassVar[str] = "prompt"

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The prompt of a row, and the fields beside it."""
        return {"prompt": row["prompt"], **_texts.passed(row)}


@dataclass(frozen=True, slots=True)
class OpenaiBatch(Recorded):
    """Input files of OpenAI's batch API (JSON lines: custom_id, method, url, body), which vLLM and SGLang read too.

    One request a line, without stamp and without answer: every request is at 0 s.

    An answer has `max_completion_tokens` or `max_tokens` of the body, else `output_tokens` of the reader. `--content
    recorded` sends the whole body but for what a run decides (model, stream, lengths). Prompts that begin alike share
    blocks of `block_tokens` tokens; `tools` are counted as text before the messages. `tokenizer` is the path of a
    Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Source of the format:
    platform.openai.com/docs/guides/batch.
    """

    output_tokens: AtLeastOne | None = None

    needs: ClassVar[tuple[str, ...]] = ("custom_id", "method", "url", "body")
    stamp: ClassVar[str] = "custom_id"

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The body of a row without the fields that a run decides."""
        return {name: value for name, value in row["body"].items() if name not in _texts.DECIDED}

    def requests(self, block: Block) -> Requests:
        """Every row; one without a prompt, or of which nothing tells how long its answer is, is reported as dropped."""
        return self.counted(block, "openai-batch", _bodies, None, self.output_tokens)


def _bodies(block: Block) -> list[_texts.Chat]:
    def chat(cell: object, refuse: _cells.Fail) -> _texts.Chat:
        if not isinstance(cell, dict) or not ("messages" in cell or "prompt" in cell):
            refuse(f"the body of a chat or a completion expected, got {_cells.shown(cell)}")
        return _texts.chat_of(cell, refuse, answered=False)

    return block.each("body", chat, blank=_texts.Chat("", "", 0))


@dataclass(frozen=True, slots=True)
class ChatLog(Recorded):
    """Logs of chats with their text (JSON lines: timestamp, input, output, session_id), as LMCache's agent traces.

    Prompts and answers as text, counted by the given `tokenizer`; prompts that begin alike share their blocks.

    `input` is the whole prompt, a text or a list of messages with role and content (joined without a chat template),
    `output` the answer. Stamps are in `unit` (us, ms, s). Blocks of `block_tokens` tokens are named by all tokens up to
    their end, in all sessions alike. A turn follows the one before it of its session. `--content recorded` sends the
    prompts again, with the fields of the request that stand beside them (tools, response_format, temperature, ...).
    `tokenizer` is the path of a Hugging Face `tokenizer.json`, or bytes: an estimate of 4 bytes a token. Source of the
    format: LMCache/lmcache-agent-trace.
    """

    unit: Unit = "us"

    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input", "output", "session_id")
    stamp: ClassVar[str] = "timestamp"
    facts: ClassVar[Mapping[str, str]] = {
        **Recorded.facts,
        "stamps": "unit of the reader option, microseconds by default (--reader chat-log:unit=s for seconds)",
    }

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The prompt of a row and the fields beside it."""
        return {**_texts.prompt_of(row["input"]), **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one without prompt or answer is reported as dropped."""
        return self.counted(block, "chat-log", _logged, self.unit, None, ("input is 0", "output is 0"))


def _logged(block: Block) -> list[_texts.Chat]:
    tools = block.each("tools", _texts.tools_of, optional=True, blank="")
    texts = (block.each(name, _texts.text_of, blank="") for name in ("input", "output"))
    return [_texts.Chat(a + b, answer, 0) for a, b, answer in zip(tools, *texts, strict=True)]


@dataclass(frozen=True, slots=True)
class Splitwise:
    """The Azure 2023 traces as simulators pass them on (CSV: arrived_at, num_prefill_tokens, num_decode_tokens).

    Stamps in seconds, counts in tokens.

    Source of the format: microsoft/vidur, `data/processed_traces/splitwise_*.csv`, made from the Azure 2023 traces.
    """

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
    stamp: ClassVar[str] = "arrived_at"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not published", "stamps": "seconds, as passed on by others"}

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        stamp, prompt, output = self.needs
        at_s = block.numbers(stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        drops = empty(prompt, prompt_tokens, output, output_tokens)
        return Requests(stamp, at_s, 1, prompt_tokens, output_tokens, drops=drops)


@dataclass(frozen=True, slots=True)
class TimedTrace(Checked):
    """vLLM's timed traces (JSON lines: timestamp, input_length, output_length, perhaps hash_ids).

    Stamps in `unit` (s, ms or us), counts in tokens; `hash_ids`, where there, name blocks of `block_tokens` tokens.

    Source of the format: vllm-project/vllm PR 39795, `vllm bench serve` with a timed trace, which reads Mooncake's rows
    (ms, 512) and Bailian's (s, 16) alike. The file states neither unit nor block size: milliseconds are assumed, and
    blocks of 16 tokens, in which the turns of a session share their prompts where there are no `hash_ids`.
    """

    unit: Unit = "ms"
    block_tokens: BlockTokens = 16

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length")
    stamp: ClassVar[str] = "timestamp"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not stated by the file",
        "stamps": "unit of the reader option, milliseconds by default (--reader timed-trace:unit=s for seconds)",
    }

    def requests(self, block: Block) -> Requests:
        """As those of Mooncake."""
        return rows_of(block, PER_S[self.unit], self.block_tokens)
