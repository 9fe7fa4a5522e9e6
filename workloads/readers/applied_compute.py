"""Sessions of agents that call tools, as Applied Compute's `trie` has them (JSON lines: token counts of every turn)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from harness.bounds import Checked
from harness.data.records import listed, places
from workloads.readers import _cells
from workloads.readers._block import Block
from workloads.readers._requests import MORE, Requests, empty
from workloads.readers._sessions import ID_BITS, LOCAL
from workloads.readers.weka import TOOL

_TURNS, _FIRST, _ANSWERS, _TOOLS, _LATENCY, _LAST = (
    "num_turns", "input_prompt_length", "assistant_response_length", "tool_call_output_length", "tool_call_latency",
    "final_assistant_response_length",
)  # fmt: skip


class _Session(NamedTuple):
    """One array value a request: tokens of prompt and answer, s that the tools before it took."""

    prompt: np.ndarray
    output: np.ndarray
    delay_s: np.ndarray


@dataclass(frozen=True, slots=True)
class AppliedCompute(Checked):
    """A line is a session: a first prompt, then per turn an answer, what its tool returned and how long the tool took.

    `num_turns` turns make one request more, the last of which has the `final_assistant_response_length`. A prompt is
    the one before, its answer and the tool's output, so all of it but that output is shared; sessions share nothing
    among themselves. Counts are tokens, latencies seconds. How long the answers took is not recorded: stamps count the
    tools' times only, from the end of the session before. Source: Applied-Compute/trie, Apache-2.0.
    """

    block_tokens: _cells.BlockTokens = 64

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("tool_call_latency",)
    stamp: ClassVar[str] = "tool_call_latency"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not published",
        "stamps": "seconds of the tools alone, answers take none; each session starts where the one before ended",
        "clock": "session",
    }

    def requests(self, block: Block) -> Requests:
        """The requests of all sessions; one without prompt or output tokens is reported as dropped."""
        sessions = [self._session(block, row) for row in range(block.size)]
        sizes = np.array([len(s.prompt) for s in sessions], np.int64)
        prompt = np.concatenate([s.prompt for s in sessions] or [np.zeros(0, np.int64)])
        output = np.concatenate([s.output for s in sessions] or [np.zeros(0, np.int64)])
        delay_s = np.concatenate([s.delay_s for s in sessions] or [np.zeros(0)])
        first = np.concatenate(([True], np.diff(np.repeat(np.arange(len(sizes)), sizes)) > 0))[: len(prompt)]
        blocks = prompt // self.block_tokens
        base = np.repeat(LOCAL | (block.start + np.arange(len(sizes))) << ID_BITS, sizes)
        ids = places(blocks) + np.repeat(base, blocks)
        return Requests(
            self.stamp,
            np.cumsum(delay_s),
            1,
            prompt,
            output,
            drops=empty("input_prompt_length", prompt, "assistant_response_length", output),
            session=pa.array(np.repeat(block.start + np.arange(len(sizes)), sizes)).cast(pa.string()),
            parent_row=pa.array(np.arange(len(prompt)) - 1, mask=first),
            prefix_ids=listed(blocks, ids),
            expanded=True,
            more={
                "delay_s": pa.array(delay_s, MORE["delay_s"]),
                "cause": pa.array([None if is_first else TOOL for is_first in first], MORE["cause"]),
            },
            lasts=float(delay_s.sum()),
        )

    def _session(self, block: Block, row: int) -> _Session:
        def value(name: str) -> object:
            return block.cells(name)[row]

        def tokens(name: str, cell: object) -> int:
            return _cells.tokens(cell, lambda message: block.fail(row, name, message))

        turns = tokens(_TURNS, value(_TURNS))
        lists: list[list[object]] = []
        for name in (_ANSWERS, _TOOLS, _LATENCY):
            values = value(name)
            if not isinstance(values, list) or len(values) != turns:
                got = f"{len(values)} values" if isinstance(values, list) else _cells.shown(values)
                block.fail(row, name, f"a list of {turns} values expected, one per turn, got {got}")
            lists.append(values)
        answers = [tokens(_ANSWERS, cell) for cell in lists[0]]
        tools = [tokens(_TOOLS, cell) for cell in lists[1]]
        delays_s = [_cells.number(cell, lambda message: block.fail(row, _LATENCY, message)) for cell in lists[2]]
        first = tokens(_FIRST, value(_FIRST))
        prompt = np.cumsum([first, *(a + t for a, t in zip(answers, tools, strict=True))])
        output = np.array([*answers, tokens(_LAST, value(_LAST))], np.int64)
        return _Session(prompt, output, np.array([0.0, *delays_s]))
