"""Deep research: a lead agent plans, sub-agents search side by side, each in a context of its own, the lead reports."""

from dataclasses import dataclass

import numpy as np

from harness.bounds import AtLeastOne, Positive, check
from workloads.mixed import Streams, Tasks, starts_of
from workloads.sessions.builtin import BLOCK_TOKENS
from workloads.sessions.tool_calling import FIRST_ANSWER_TOKENS, LAST_ANSWER_TOKENS, QUESTION_TOKENS, TOOL_S, law


@dataclass(frozen=True, slots=True)
class DeepResearch:
    """A plan, `agents_least` to `agents_most` sub-agents with `calls_least` to `calls_most` calls each, a report.

    Every sub-agent starts after the plan, whose answer is its question, and calls one tool after the other; its prompt
    is the one before, its answer and what the tool returned (`--lengths tool-turns`). The last request of the lead
    waits for all of them, and holds the plan and their last answers. All share the common prefix of tools and system
    prompt only (`--prefixes shared`). Tools take `tool_scale` times their time. Source: the numbers of agents and calls
    are those that Anthropic states of its research system ("3-5 subagents in parallel", 10 to 15 calls each for
    comparisons; equally likely is ours); questions, answers and tools are those of `tool-calling`, for no token counts
    of such a system are published.
    """

    agents_least: int = 3
    agents_most: int = 5
    calls_least: int = 10
    calls_most: int = 15
    tool_scale: Positive = 1.0
    block_tokens: AtLeastOne = BLOCK_TOKENS

    def __post_init__(self) -> None:
        check(self)
        for name in ("agents", "calls"):
            least, most = getattr(self, f"{name}_least"), getattr(self, f"{name}_most")
            if not 1 <= least <= most <= 1000:
                raise ValueError(f"1 <= {name}_least <= {name}_most <= 1000 must hold, got {least} and {most}.")

    @property
    def mean_requests(self) -> float:
        """Mean number of requests of a session."""
        return 2 + (self.agents_least + self.agents_most) / 2 * ((self.calls_least + self.calls_most) / 2 + 1)

    def tasks(self, count: int, streams: Streams) -> Tasks:
        """The next `count` sessions: the plan, all but the last request of each sub-agent, these, the report."""
        drawn = streams.sizes.random((count, 4 + 2 * self.agents_most))
        agents = _whole(drawn[:, 0], self.agents_least, self.agents_most)
        task = np.repeat(np.arange(count), agents)  # (agents,) of each sub-agent
        place = np.arange(len(task)) - starts_of(agents)[task]
        calls = _whole(drawn[task, 4 + place], self.calls_least, self.calls_most)
        sizes = 2 + agents + np.bincount(task, calls, count).astype(np.int64)
        begin = starts_of(sizes)  # (count,) rows of the plans
        report = begin + sizes - 1
        last = place + (report - agents)[task]  # (agents,) their last rows
        first = np.cumsum(calls) - calls
        first += begin[task] + 1 - first[starts_of(agents)][task]  # (agents,) their first rows
        agent = np.repeat(np.arange(len(task)), calls + 1)  # (S,) of each request of a sub-agent, in its order
        step = np.arange(len(agent)) - starts_of(calls + 1)[agent]
        row = np.where(step < calls[agent], first[agent] + step, last[agent])

        total = int(sizes.sum())
        new, answer = streams.pairs(total)
        new[begin] = law(QUESTION_TOKENS, drawn[:, 1]).round()
        answer[begin] = law(FIRST_ANSWER_TOKENS, drawn[:, 2]).round()
        answer[report] = law(LAST_ANSWER_TOKENS, drawn[:, 3]).round()
        answer[last] = law(LAST_ANSWER_TOKENS, drawn[task, 4 + self.agents_most + place]).round()
        new[first] = answer[begin][task]

        prompt = new.copy()
        spoken = new[row] + np.where(step < calls[agent], answer[row], 0)
        prompt[row] = np.cumsum(spoken) - spoken + new[row]
        prompt[row] -= (prompt[row] - new[row])[starts_of(calls + 1)][agent]
        prompt[report] = new[begin] + answer[begin] + np.bincount(task, answer[last], count).astype(np.int64)

        before = np.full(total, -1)
        before[row] = np.where(step > 0, np.concatenate(([0], row[:-1])), begin[task[agent]])
        before[report] = report - agents
        parents = np.ones(total, np.int64)
        parents[begin], parents[report] = 0, agents
        delay_s = np.zeros(total)
        called = row[step > 0]
        delay_s[called] = self.tool_scale * law(TOOL_S, streams.delays.random(len(called)))

        blocks = -(-prompt // self.block_tokens)
        longest = blocks[last]  # (agents,) the longest context of each; the lead's comes first
        starts = np.cumsum(longest) - longest
        starts += blocks[report][task] - starts[starts_of(agents)][task]
        first_block = np.zeros(total, np.int64)
        first_block[row] = starts[agent]
        turn = np.zeros(total, np.int64)
        turn[row], turn[report] = step + 1, np.maximum.reduceat(calls, starts_of(agents)) + 2
        return Tasks(sizes, turn, prompt, answer, delay_s, before, parents, blocks, first_block)


def _whole(ranks: np.ndarray, least: int, most: int) -> np.ndarray:
    """Whole numbers from `least` to `most`, equally likely, at ranks in [0, 1)."""
    return np.asarray(least + np.floor(ranks * (most - least + 1)), np.int64)
