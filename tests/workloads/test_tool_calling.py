"""Sessions of tool-calling agents: the preset draws such as were published."""

import numpy as np
import pytest

from harness.registry import make
from workloads.mixed import Streams, pairs_from, starts_of
from workloads.sessions.deep_research import DeepResearch
from workloads.sessions.tool_calling import COMMON_TOKENS, ToolCalling

BLOCK = 64


def streams() -> Streams:
    """Sessions with the lengths that belong to them."""
    sizes, delays, lengths = np.random.default_rng(1).spawn(3)
    return Streams(sizes, delays, pairs_from(make("lengths", "tool-turns").pairs(lengths)))


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
