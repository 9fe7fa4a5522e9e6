"""Rounds of coding agents as TraceLab publishes them (JSON lines, each with the list of its `timing_events`)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from harness.bounds import Checked
from workloads.readers import _cells
from workloads.readers._block import Block
from workloads.readers._calls import Call, blank, of_calls
from workloads.readers._requests import Requests

_INPUTS = ("user_message", "tool_result")


@dataclass(frozen=True, slots=True)
class Tracelab(Checked):
    """Calls of Claude Code and Codex with their tokens, and which of these came from the cache.

    A call begins with the last input among its events (of the user, or of tools) and ends with its last event. Counts
    are tokens. A prompt shares its `prefix_tokens` with the prompt before in its session, in blocks of `block_tokens`;
    those of a first prompt are not shared, as the prompt that they come from is unknown. Times decide what a call waits
    for. Source: uw-syfi/TraceLab, data CC-BY-4.0.
    """

    block_tokens: _cells.BlockTokens = 64

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = (
        "session_id", "provider", "input_tokens_total", "prefix_tokens", "output_tokens", "timing_events"
    )  # fmt: skip
    stamp: ClassVar[str] = "timing_events"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "those of the models that were called",
        "stamps": "milliseconds, the last input of each call",
        "prefixes": "the tokens that came from a cache: prompts share at least these with the one before",
    }

    def requests(self, block: Block) -> Requests:
        """Every round; one without prompt or output tokens is reported as dropped."""
        rows = [*zip(*map(block.cells, self.needs), strict=True)]
        calls = block.each_row(lambda row: _call(partial(block.fail, row, self.stamp), row, *rows[row]), blank)
        requests = of_calls(
            calls, self.stamp, _cells.SECOND_NS, "input_tokens_total", "output_tokens", by_times=True, dated=True
        )
        return replace(requests, shares=block.tokens("prefix_tokens"))


def _call(
    refuse: _cells.Fail, row: int, session: Any, provider: Any, prompt: object, _: object, output: object, events: Any
) -> Call:
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        refuse(f"a list of events expected, got {_cells.shown(events)}")
    stamps_ns = [_cells.stamp_ns(event.get("timestamp"), refuse)[0] for event in events]
    inputs_ns = [at for at, event in zip(stamps_ns, events, strict=True) if event.get("event_type") in _INPUTS]
    start_ns = max(inputs_ns, default=stamps_ns[0])
    lasts_s = (max(stamps_ns) - start_ns) / _cells.SECOND_NS
    return Call(
        start_ns,
        lasts_s,
        _cells.tokens(prompt, refuse),
        _cells.tokens(output, refuse),
        _cells.name_of(session, refuse),
        _cells.name_of(provider, refuse),
        row=row,
    )
