"""The preset of coding agents: its numbers are those of recorded sessions, and its contexts keep a limit."""

from pathlib import Path

import numpy as np
import pytest

import make_coding_agent
from harness.registry import make
from workloads import traces
from workloads.mixed import Streams, Tasks, pairs_from, starts_of
from workloads.sessions import coding_agent
from workloads.sessions.coding_agent import BESIDE_TOKENS, CodingAgent

BLOCK = 64


def tasks(sessions: CodingAgent, count: int = 700, seed: int = 0) -> Tasks:
    """Sessions with the lengths that belong to them."""
    sizes, delays, lengths = np.random.default_rng(seed).spawn(3)
    return sessions.tasks(count, Streams(sizes, delays, pairs_from(make("lengths", "agent-turns").pairs(lengths))))


@pytest.mark.nightly
def test_the_numbers_are_what_the_script_makes(shared_data: Path) -> None:
    """It would be unknown where the numbers come from."""
    folder = shared_data / "agentic" / "weka"
    if not folder.is_dir():
        pytest.skip("the agentic traces are not on this machine")
    found = make_coding_agent.figures(traces.read(str(folder)))

    assert found == {name: getattr(coding_agent, name) for name in found}


def test_sessions_are_about_as_those_recorded() -> None:
    """Agents would be drawn with other contexts, turns or reuse than the 133 sessions, whose values are beside."""
    drawn = [tasks(CodingAgent(limit_tokens=1_000_000), seed=seed) for seed in range(4)]
    sizes, prompts, thinks, hits = [], [], [], []
    for t in drawn:
        begin = np.repeat(starts_of(t.sizes), t.sizes)
        later = np.arange(len(begin)) > begin
        same = later & (np.diff(t.first_block, prepend=-1) == 0)
        named = BESIDE_TOKENS // BLOCK + t.blocks
        seen = BESIDE_TOKENS // BLOCK + np.where(same, np.concatenate(([0], t.blocks[:-1])), 0)
        sizes.append(t.sizes.mean())
        prompts.append(np.median(t.prompt_tokens + BESIDE_TOKENS))
        thinks.append(np.median(t.delay_s[later]))
        hits.append(seen.sum() / named.sum())

    assert 65.4 == pytest.approx(np.median(sizes), rel=0.1)
    assert 104_000 == pytest.approx(np.median(prompts), rel=0.15)
    assert 10.0 == pytest.approx(np.median(thinks), rel=0.1)
    assert 0.964 == pytest.approx(np.median(hits), abs=0.01)


@pytest.mark.parametrize("limit", [32_000, 96_000, 1_000_000])
def test_contexts_keep_the_limit(limit: int) -> None:
    """A server with a smaller context would refuse the requests of long sessions."""
    t = tasks(CodingAgent(limit_tokens=limit, think_cap_s=60.0))
    contexts = t.prompt_tokens + BESIDE_TOKENS + t.output_tokens

    assert 0.95 * limit < contexts.max() <= limit
    assert 1 <= t.prompt_tokens.min()
    assert 60.0 == t.delay_s.max()


def test_a_context_that_starts_again_shares_nothing_but_the_common_prefix() -> None:
    """A compaction would cost nothing, or a session would lose its history without one."""
    t = tasks(CodingAgent())
    later = np.arange(len(t.turn)) > np.repeat(starts_of(t.sizes), t.sizes)
    again = later & (np.diff(t.first_block, prepend=-1) != 0)

    assert 0.01 < again.sum() / later.sum() < 0.03
    assert (t.first_block[again] >= (t.first_block + t.blocks)[np.flatnonzero(again) - 1]).all()
    assert (np.diff(t.prompt_tokens)[(later & ~again)[1:]] >= 0).all()
