"""Formats with a request a row, without text: plain tables and traces of services."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.bounds import Checked
from harness.data.lists import Ints, Mask
from workloads.readers import _cells, _plain
from workloads.readers._block import Block
from workloads.readers._cells import BlockTokens
from workloads.readers._requests import Marked, Requests, of_rows
from workloads.readers._texts import PER_S, Unit

IMAGES = "NumImages"
"""A column of Azure's trace of 2025."""
_TAGS = {"Conversation log": "conversation", "API log": "api"}
SESSION, ELAPSED, TOTAL, LOG = "Session ID", "Elapsed time", "Total tokens", "Log Type"
"""Columns of BurstGPT that not every part has."""
_NO_TIME = "Elapsed time is no number of seconds of 0 or more (it is not used)"


@dataclass(frozen=True, slots=True)
class _Table(Checked):
    """A plain table: stamps, prompt and output tokens under usual names, or under those that `columns` maps."""

    columns: str | None = None
    block_tokens: BlockTokens = 512

    form: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("at_s", "prompt_tokens", "output_tokens")
    stamp: ClassVar[str] = "at_s"
    mapped: ClassVar[Mapping[str, tuple[str, ...]]] = _plain.ALIASES
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not stated by the file",
        "stamps": "as the file gives them",
    }

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        parsed = _plain.requests(block, self.columns)
        if parsed.prefix_ids is None or self.form == "parquet":  # a converted trace states the size of its blocks
            return parsed
        blocks = parsed.prefix_ids.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        over = (blocks - 1) * self.block_tokens >= np.maximum(parsed.prompt_tokens, 1)
        note = (
            f"more prefix blocks of {self.block_tokens} tokens than the prompt has room for; tell their size with "
            "--reader jsonl:block_tokens=N"
        )
        return replace(parsed, notes=(*parsed.notes, (note, over)))


@dataclass(frozen=True, slots=True)
class Csv(_Table):
    """A plain CSV table: stamps, prompt and output tokens under usual names, or under those that `columns` maps.

    Any CSV table with a header; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out,session=user'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates such as 2024-05-12T00:00:00.5Z, counts are
    tokens. `session`, `turn`, `parent` (row number of the turn before), `tag`, `priority` and bounds of requests
    (`deadline_s`, `slo_ttft_s`, ...) may be there; without stamps, `--arrivals` gives them. Source: the user's file.
    """

    form: ClassVar[str] = "csv"


@dataclass(frozen=True, slots=True)
class Jsonl(_Table):
    """Plain JSON lines: stamps, prompt and output tokens under usual names, or under those that `columns` maps.

    Any JSON lines, or one JSON list of objects; `columns` maps our names to its keys: 'at=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or dates, counts are tokens. `session`, `turn`, `parent`
    (row number of the turn before), `tag` and `prefix_ids` (lists of ids of blocks of `block_tokens` tokens) may be
    there. Source: the user's file.
    """

    form: ClassVar[str] = "json"


@dataclass(frozen=True, slots=True)
class Parquet(_Table):
    """A Parquet table: one that `bench trace convert` wrote, the schedule or the requests of a run, or any other.

    Any Parquet table; `columns` maps our names to its own: 'at_ms=ts,prompt=in,output=out'.

    Stamps are seconds (`at_ms`, `at_us`, `at_ns`: other units) or timestamps, counts are tokens. `session`, `turn`,
    `parent` (row number of the turn before), `tag` and `prefix_ids` may be there; a converted trace says the size of
    its blocks itself. Of the requests of a run, the output is the requested one. Source: the user's file.
    """

    form: ClassVar[str] = "parquet"


@dataclass(frozen=True, slots=True)
class Azure(Checked):
    """Azure LLM inference traces of 2023, 2024 and LMM 2025 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens).

    Stamps are dates to 100 ns (2023, no time zone) or to 1 us with an offset (2024); counts are tokens.

    Source: Azure/AzurePublicDataset, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024). Line ends may be CRLF and the
    last one may be missing. The tokenizer is not published. The multimodal trace (2025; Qiu et al., ModServe, SoCC
    2025) tells how many images a request has: column `images`, and as the tag `image` or `text`. Its ContextTokens are
    text and images together; how many an image is depends on the model and is not published. With `image_tokens` each
    counts for so many of them, at most all.
    """

    image_tokens: BlockTokens | None = None

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    stamp: ClassVar[str] = "TIMESTAMP"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not published", "stamps": "100 ns (2023) or 1 us (2024)"}

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        at_ns = block.stamps_ns(self.stamp)
        requests = of_rows(block, *self.needs, at=at_ns, per_s=_cells.SECOND_NS, dated=True)
        if not block.has(IMAGES):
            return requests
        images, prompt_tokens = block.tokens(IMAGES), requests.prompt_tokens
        tag, more = pa.array(np.where(images > 0, "image", "text"), pa.string()), {"images": pa.array(images)}
        if self.image_tokens is None:
            return replace(requests, tag=tag, more=more)
        of_images = images * self.image_tokens
        cut = f"images have more tokens than the prompt at {self.image_tokens} each, and are counted as all of it"
        more["image_tokens"] = pa.array(np.minimum(of_images, prompt_tokens))
        return replace(requests, tag=tag, more=more, notes=((cut, of_images > prompt_tokens),))


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """BurstGPT traces, parts 1 to 3 (CSV with the column names of either release).

    Stamps in whole seconds since day 0 of the collection, counts in tokens.

    Source: HPMLL/BurstGPT, data CC-BY-4.0 (Wang et al., KDD 2025). Part 3 inserts `Session ID` and `Elapsed
    time`, so columns go by name. `Response tokens` 0 marks a failure: such rows are dropped. Equal rows
    are kept: whole-second stamps make them legitimate. The log type becomes the tag, `conversation` or `api`.
    """

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("Timestamp", "Request tokens", "Response tokens")
    stamp: ClassVar[str] = "Timestamp"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "OpenAI's, of ChatGPT and GPT-4",
        "stamps": "whole seconds: several requests may share one",
    }

    def requests(self, block: Block) -> Requests:
        """Every row, failures included (as dropped); a total that is not the sum means a damaged row."""
        requests = of_rows(block, *self.needs)
        without_prompt, failed = requests.drops
        if block.has(TOTAL):
            _check_totals(block, requests.prompt_tokens + requests.output_tokens)
        tag = None
        if block.has(LOG):
            logs = block.names(LOG).dictionary_encode()
            tags = pa.array([_TAGS.get(log, log) for log in logs.dictionary.to_pylist()], pa.string())
            tag = tags.take(logs.indices)
        return replace(
            requests,
            drops=((f"failed ({failed[0]})", failed[1]), without_prompt),
            session=block.names(SESSION) if block.has(SESSION) else None,
            tag=tag,
            notes=_elapsed(block),
        )


def _check_totals(block: Block, sums: Ints) -> None:
    """In every published row the total is the sum of both counts."""
    cells = block.cells(TOTAL)
    has_total: Mask = pc.not_equal(pc.utf8_trim_whitespace(cells), "").to_numpy(zero_copy_only=False)

    def total(cell: object, refuse: _cells.Fail) -> int:
        return 0 if not str(cell).strip() else _cells.tokens(cell, refuse)

    totals = block.tokens(TOTAL) if has_total.all() else np.array(block.each(TOTAL, total, blank=0), np.int64)
    for row in np.flatnonzero(has_total & (totals != sums)).tolist():
        block.leave_out(row, TOTAL, f"{sums[row]} expected (request + response), got {cells[row].as_py()[:40]!r}")


def _elapsed(block: Block) -> Marked:
    """The one use of `Elapsed time`: to count rows with an impossible value."""
    if not block.has(ELAPSED):
        return ()
    cells = block.cells(ELAPSED)
    numbers = pc.match_substring_regex(cells, r"^\s*\d+(\.\d*)?\s*$")
    return ((_NO_TIME, ~numbers.to_numpy(zero_copy_only=False)),)


@dataclass(frozen=True, slots=True)
class Mooncake:
    """Mooncake traces (JSON lines: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks).

    Stamps in milliseconds, counts in tokens; `hash_ids` become the prefix ids, one per 512-token block.

    Source: kvcache-ai/Mooncake, FAST'25 release (repository Apache-2.0; the trace folder names no licence of its
    own). Every row has ceil(input_length / 512) ids. The recorded stamps sit on a 3-second grid, about ten
    requests at each, and are replayed as they are. The tokenizer is not published.
    """

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length", "hash_ids")
    stamp: ClassVar[str] = "timestamp"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not published",
        "stamps": "on a grid of about 3 s in the recorded traces, replayed as they are: several requests share one",
        "prefixes": "ids of 512-token blocks kept",
    }

    def requests(self, block: Block) -> Requests:
        """Every row, or turns of sessions."""
        return _with_hashes(block, 1000, self.block_tokens)


def _with_hashes(block: Block, per_s: int, block_tokens: int) -> Requests:
    """Every row; a row without prompt or output tokens is reported as dropped.

    Rows with a `session_id` are turns as AIPerf replays them: `input_length` is what a turn adds to the prompt and the
    answer before, unless its `context_mode` is that of whole message arrays, and a turn without a stamp comes `delay`
    after that answer. Source: ai-dynamo/aiperf, docs/reference/conversation-context-mode.md, and its fixed schedule.
    """
    stamp, prompt, output, ids = Mooncake.needs
    in_sessions = block.has("session_id")
    times = np.array(_plain.known_numbers(block, stamp), np.float64) if in_sessions else None
    requests = of_rows(block, stamp, prompt, output, at=times, per_s=per_s)
    if block.has(ids):
        hashes = block.id_lists(ids)
        counts, expected = (
            pc.list_value_length(hashes).to_numpy(zero_copy_only=False),
            -(-requests.prompt_tokens // block_tokens),
        )
        for row in np.flatnonzero(counts != expected).tolist():
            what = f"{expected[row]} ids expected for {requests.prompt_tokens[row]} tokens in blocks of {block_tokens}"
            block.leave_out(row, ids, f"{what}, got {counts[row]}")
        requests = replace(requests, prefix_ids=hashes)
    if not in_sessions:
        return requests
    return replace(
        requests,
        session=block.names("session_id", optional=True),
        adds=np.array([not str(mode).startswith("message_array") for mode in block.cells("context_mode")]),
        more={"delay_s": pa.array(np.array(_plain.known_numbers(block, "delay"), np.float64) / per_s)},
    )


@dataclass(frozen=True, slots=True)
class Bailian:
    """Qwen-Bailian traces (JSON lines: chat_id, parent_chat_id, timestamp in s, lengths, type, turn, 16-token ids).

    Stamps in seconds, counts in tokens; `hash_ids` become the prefix ids, one per 16-token block.

    Source: alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0. A chat is one turn and names the one before (-1:
    none); a session is a tree of chats, known by its root. The type (text, search, image, file) becomes the tag. Turns
    are counted from the root, from 0; the recorded ones, from 1, count where the chat before is not in the file.
    """

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("chat_id", "parent_chat_id", *Mooncake.needs)
    stamp: ClassVar[str] = "timestamp"
    block_tokens: ClassVar[int] = 16
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "Qwen's, as the trace names no other",
        "stamps": "seconds with decimals",
        "prefixes": "ids of 16-token blocks kept",
    }

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        chat, parent, *columns, ids = self.needs
        chats, parents = block.names(chat), block.names(parent)
        requests = of_rows(block, *columns, chat=chats)
        turn = block.tokens("turn") if block.has("turn") else None
        prompt_tokens, hashes = requests.prompt_tokens, block.id_lists(ids)
        counts = pc.list_value_length(hashes).to_numpy(zero_copy_only=False)
        blocks = -(-prompt_tokens // self.block_tokens)
        for row in np.flatnonzero(counts > blocks).tolist():
            what = f"at most {blocks[row]} ids expected for {prompt_tokens[row]} tokens"
            block.leave_out(row, ids, f"{what} in blocks of {self.block_tokens}, got {len(hashes[row])}")
        part = f"{ids} do not cover the whole prompt in blocks of {self.block_tokens} tokens"
        return replace(
            requests,
            parent=pc.if_else(pc.equal(parents, "-1"), pa.scalar(None, pa.string()), parents),
            turn=None if turn is None else np.maximum(turn - 1, 0),
            tag=block.names("type") if block.has("type") else None,
            prefix_ids=hashes,
            notes=((part, counts < blocks),),
        )


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
        return _with_hashes(block, PER_S[self.unit], self.block_tokens)
