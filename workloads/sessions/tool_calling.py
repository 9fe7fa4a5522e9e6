"""Sessions of assistants that call tools: a question, dozens of short calls a second apart, a long last answer."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.bounds import AtLeastOne, Checked, Positive
from workloads.mixed import Streams, Tasks, starts_of
from workloads.sessions.builtin import BLOCK_TOKENS, conversations
from workloads.sessions.builtin import law as log_linear

RANKS = (0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1)
"""Ranks of the quantiles below. Between them laws are log-linear."""

COMMON_TOKENS = 8704
"""Tokens of tools and system prompt. Not recorded: first prompts have 8,735 to 9,173 tokens, so most is common."""

CALLS = (14, 18, 21, 24, 35, 41, 52, 58, 73, 79)
QUESTION_TOKENS = (31, 45, 57, 82, 128, 183, 227, 253, 395, 469)
FIRST_ANSWER_TOKENS = (100, 113, 124, 143, 165, 218, 249, 288, 457, 462)
LAST_ANSWER_TOKENS = (377, 448, 487, 958, 1335, 2081, 2916, 3327, 4756, 5494)
TOOL_S = (0.147, 0.258, 0.277, 0.346, 0.537, 0.926, 2.007, 3.373, 7.487, 20.0)
"""Calls of a session, the question, the first and the last answer, the time of a tool.

By `tools/make_tool_calling.py`.
"""


law = partial(log_linear, RANKS)
"""Values of one of the quantiles above at ranks in [0, 1)."""


@dataclass(frozen=True, slots=True)
class ToolCalling(Checked):
    """Turns, tool times and first and last answers of office work by Applied Compute's profile of its agents.

    A prompt is the one before, its answer and what the tool returned (`--lengths tool-turns`); the first is a question,
    on top of a common prefix of tools and system prompt (`--prefixes shared`). Tools take `tool_scale` times their
    time. A history longer than `truncate_at_tokens` loses its oldest turns. Turns are independent of one another; in
    the recorded sessions answers get longer towards the end. Source: Applied-Compute/trie, Apache-2.0: 41 of 8,192
    sessions of production runs, from two places of the file.
    """

    tool_scale: Positive = 1.0
    truncate_at_tokens: AtLeastOne | None = None
    block_tokens: AtLeastOne = BLOCK_TOKENS

    @property
    def mean_requests(self) -> float:
        """Mean number of requests: one more than calls of tools."""
        return float(np.mean(law(CALLS, np.linspace(0, 1, 100_001)).round())) + 1

    def tasks(self, count: int, streams: Streams) -> Tasks:
        ranks = streams.sizes.random((count, 4))
        sizes = law(CALLS, ranks[:, 0]).round().astype(np.int64) + 1
        first = starts_of(sizes)

        def pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
            new, answer = streams.pairs(rows)
            new[first] = law(QUESTION_TOKENS, ranks[:, 1]).round()
            answer[first] = law(FIRST_ANSWER_TOKENS, ranks[:, 2]).round()
            answer[first + sizes - 1] = law(LAST_ANSWER_TOKENS, ranks[:, 3]).round()
            return new, answer

        return conversations(
            sizes,
            streams._replace(pairs=pairs),
            lambda n: self.tool_scale * law(TOOL_S, streams.delays.random(n)),
            self.truncate_at_tokens,
            self.block_tokens,
        )
