"""Sessions of tool-calling agents: the published form is read to the token, and the preset draws such sessions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.registry import make
from workloads import replay, traces
from workloads.mixed import Streams, pairs_from, starts_of
from workloads.sessions.deep_research import DeepResearch
from workloads.sessions.tool_calling import COMMON_TOKENS, ToolCalling

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


def streams() -> Streams:
    """Sessions with the lengths that belong to them."""
    sizes, delays, lengths = np.random.default_rng(1).spawn(3)
    return Streams(sizes, delays, pairs_from(make("lengths", "tool-turns").pairs(lengths)))


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
    drawn = ToolCalling().tasks(1000, streams())
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


def test_sub_agents_search_side_by_side_and_the_report_waits_for_all() -> None:
    """A context would be shared by agents that have their own, or the lead would report before they had answered."""
    drawn = DeepResearch(agents_least=2, agents_most=3, calls_least=1, calls_most=4).tasks(200, streams())
    for begin, size in zip(starts_of(drawn.sizes).tolist(), drawn.sizes.tolist(), strict=True):
        report, plan_tokens = begin + size - 1, drawn.prompt_tokens[begin] + drawn.output_tokens[begin]
        agents = int(drawn.parents[report])
        answered = range(report - agents, report)
        regions = {0: report}
        assert 0 == drawn.parents[begin] and report - agents == drawn.parent[report] and agents in (2, 3)
        assert drawn.prompt_tokens[report] == plan_tokens + sum(drawn.output_tokens[row] for row in answered)
        for row in answered:
            chain = [row]
            while drawn.parent[chain[-1]] != begin:
                chain.append(int(drawn.parent[chain[-1]]))
            assert 2 <= len(chain) <= 5 and all(drawn.parents[one] == 1 for one in chain)
            assert drawn.prompt_tokens[chain[-1]] == drawn.output_tokens[begin]  # the plan is its question
            for later, one in zip(chain, chain[1:], strict=False):
                assert drawn.prompt_tokens[later] > drawn.prompt_tokens[one] + drawn.output_tokens[one]
                assert drawn.turn[later] > drawn.turn[one] and drawn.delay_s[later] > 0
            assert 1 == len({int(drawn.first_block[one]) for one in chain})
            regions[int(drawn.first_block[row])] = row
        assert agents + 1 == len(regions)
        ends = [start + int(drawn.blocks[row]) for start, row in sorted(regions.items())]
        assert ends[:-1] == sorted(regions)[1:]  # contexts lie side by side


def test_drawing_in_parts_changes_nothing() -> None:
    """A longer run would have other sessions than a short one from its beginning on."""
    for sessions in (ToolCalling(), DeepResearch()):
        whole, parts = sessions.tasks(60, streams()), streams()
        first, second = sessions.tasks(20, parts), sessions.tasks(40, parts)
        for name in ("sizes", "prompt_tokens", "output_tokens", "delay_s", "blocks", "first_block"):
            both = np.concatenate((getattr(first, name), getattr(second, name)))
            assert np.array_equal(getattr(whole, name), both), name
    assert 56.0 == DeepResearch().mean_requests
