"""Sessions of tool-calling agents: the published form is read to the token, and the preset draws such sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.registry import make
from workloads import replay, traces
from workloads.mixed import Streams, pairs_from, starts_of
from workloads.sessions.tool_calling import COMMON_TOKENS, ToolCalling

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 64


def session(answers: list[int], tools: list[int], latencies: list[float], **more: Any) -> dict[str, Any]:
    return {
        "num_turns": len(answers), "input_prompt_length": 320, "assistant_response_length": answers,
        "tool_call_output_length": tools, "tool_call_latency": latencies, "final_assistant_response_length": 64, **more,
    }  # fmt: skip


def write(folder: Path, *sessions: dict[str, Any]) -> str:
    file = folder / "work.jsonl"
    file.write_text("\n".join(map(json.dumps, sessions)), encoding="utf-8")
    return str(file)


def test_every_turn_becomes_a_request_that_shares_all_before_it(tmp_path: Path) -> None:
    """Prompts would have other lengths than the published ones, or a cache would find more or less."""
    file = write(tmp_path, session([16, 20], [80, 12], [0.5, 2.0]), session([], [], []), session([9], [1], [3.0]))
    trace = traces.read(file)
    prompts = trace.table["prompt_tokens"].to_pylist()
    ids = trace.table["prefix_ids"].to_pylist()

    assert ("applied-compute", 6) == (trace.facts["reader"], trace.facts["rows"])
    assert [320, 416, 448, 320, 320, 330] == prompts
    assert [16, 20, 64, 64, 9, 64] == trace.table["output_tokens"].to_pylist()
    assert [0, 0, 0, 1, 2, 2] == trace.table["session"].to_pylist()
    assert [0.0, 0.5, 2.5, 2.5, 2.5, 5.5] == trace.table["at_s"].to_pylist()
    assert [tokens // BLOCK for tokens in prompts] == [len(one) for one in ids]
    assert ids[1][:5] == ids[0] and ids[2][:6] == ids[1]
    assert not set(ids[2]) & set(ids[3]) and not set(ids[3]) & set(ids[4])


def test_a_request_comes_when_its_tool_is_done(tmp_path: Path) -> None:
    """Agents would call the next tool before the last one had returned."""
    file = write(tmp_path, session([16, 20], [80, 12], [0.5, 2.0]))
    table = Schedule.draw(replay.load(file, turns="think-only").workload, seed=0).table

    assert [0.0, 0.5, 2.0] == table["delay_s"].to_pylist()
    assert [[], [0], [1]] == table["after"].to_pylist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_turns": 3}, "'assistant_response_length': a list of 3 values expected, one per turn, got 1"),
        ({"tool_call_latency": [-1]}, "column 'tool_call_latency': must not be negative"),
        ({"tool_call_output_length": 7}, "a list of 1 values expected, one per turn, got 7"),
    ],
)  # fmt: skip
def test_sessions_that_do_not_fit_together_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    """Turns would be dropped or mixed up without a word."""
    with pytest.raises(UsageError) as refused:
        traces.read(write(tmp_path, session([16], [80], [0.5], **wrong)))
    assert message in str(refused.value)


def test_sessions_are_about_as_those_published() -> None:
    """Agents would be drawn with other contexts, turns or pauses than the 41 sessions, whose values are beside."""
    sizes, delays, lengths = np.random.default_rng(1).spawn(3)
    pairs = pairs_from(make("lengths", "tool-turns").pairs(lengths))
    drawn = ToolCalling().tasks(1000, Streams(sizes, delays, pairs))
    prompts, later = drawn.prompt_tokens + COMMON_TOKENS, drawn.turn > 0
    last = starts_of(drawn.sizes) + drawn.sizes - 1

    assert 36.0 == pytest.approx(drawn.sizes.mean(), rel=0.05) == pytest.approx(ToolCalling().mean_requests, rel=0.05)
    assert [29_197, 26_978, 51_544] == pytest.approx([prompts.mean(), *np.quantile(prompts, [0.5, 0.9])], rel=0.1)
    assert [197, 27, 504] == pytest.approx(
        [drawn.output_tokens.mean(), *np.quantile(drawn.output_tokens, [0.5, 0.9])], rel=0.1
    )
    assert [0.537, 2.01] == pytest.approx(list(np.quantile(drawn.delay_s[later], [0.5, 0.9])), rel=0.1)
    assert drawn.output_tokens[last].mean() > 5 * drawn.output_tokens.mean()
    assert COMMON_TOKENS % BLOCK == 0
