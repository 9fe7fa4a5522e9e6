"""Sessions of coding agents: dozens of turns, contexts that grow to hundreds of thousands of tokens and start again."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from msgspec import Meta
from scipy.special import ndtr

from harness.bounds import AtLeastOne, NotNegative, Positive, check
from workloads.mixed import Streams, Tasks, starts_of
from workloads.sessions.builtin import BLOCK_TOKENS, law

RANKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1)
"""Ranks of the quantiles below. Between them laws are log-linear."""

TURNS = (4, 4, 6, 7, 17, 44, 89, 149, 181, 255, 318, 330, 342)
FIRST_TOKENS = (10845, 11520, 14523, 16424, 18946, 27289, 114481, 279407, 486181, 587851, 681579, 738741, 782605)
THINK_S = (0.0, 2.0, 3.0, 4.0, 6.0, 10.0, 23.0, 110.0, 235.6, 755.6, 1804.6, 2915.9, 52588.0)
FULL_TOKENS = (150_000, 200_000)
AGAIN = (0.177, 0.19, 0.277, 0.38, 0.779, 1.008, 1.053, 1.199, 1.856, 2.945, 3.248, 3.459, 3.675)
FULL = (0.135, 0.143, 0.164, 0.171, 0.199, 0.246, 0.501, 0.824, 0.883, 0.947, 0.976, 0.99, 1.004)
AGAIN_SHARE, FULL_SHARE = 0.0133, 0.0482
FIRST_AND_TURNS = -0.39
COMMON_TOKENS = 14805
"""Requests of a session's own agent, its first prompt, the time from an answer to the next request.

Share of turns whose prompt begins with less than half of the one before, and how long it is beside that: compactions
between the `FULL_TOKENS`, where the context of most of these agents ends, other tasks elsewhere. Rank correlation of
first prompt and turns; tokens of tools and system prompt (median). From 133 sessions of callanjfox/kv-cache-tester by
`tools/make_coding_agent.py`."""

BESIDE_TOKENS = COMMON_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
LONGEST_ANSWER_TOKENS = 12_162
_FINE = np.linspace(0, 1, 100_001)
_law = partial(law, RANKS)


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """Turns, contexts and think times of 133 recorded sessions of a coding agent, of contexts up to `limit_tokens`.

    A prompt is the one before, its answer and new tokens (`--lengths agent-turns`); the first is long already. With 1%
    of the turns the context starts again for another task, and with 5% between 150,000 and 200,000 tokens it is
    compacted. Then a prompt shares nothing with the one before but a common prefix of `beside_tokens`, which comes on
    top of the prompts (`--prefixes shared:count=1,tokens=14784,block_tokens=64`, as the preset has it). In a session
    with a longer context than `limit_tokens` all prompts are shorter in one proportion. Think times are those of tools
    and of people (median 10 s, a tenth above 110 s), times `think_scale`, at most `think_cap_s`; turns are independent
    of one another. Sub-agents are left out (3% of the requests). Source: callanjfox/kv-cache-tester, Apache-2.0.
    """

    limit_tokens: int | None = None
    think_cap_s: NotNegative | None = None
    think_scale: Positive = 1.0
    beside_tokens: Annotated[int, Meta(ge=0)] = BESIDE_TOKENS
    block_tokens: AtLeastOne = BLOCK_TOKENS

    def __post_init__(self) -> None:
        check(self)
        least = LONGEST_ANSWER_TOKENS + self.beside_tokens + self.block_tokens
        if self.limit_tokens is not None and self.limit_tokens < least:
            raise ValueError(
                f"limit_tokens must be at least {least:,}, for the common prefix and the longest answer, got "
                f"{self.limit_tokens:,}."
            )

    @property
    def mean_requests(self) -> float:
        return float(np.mean(_law(TURNS, _FINE).round()))

    def tasks(self, count: int, streams: Streams) -> Tasks:
        normal = streams.sizes.standard_normal((count, 2))
        rho = 2 * np.sin(np.pi * FIRST_AND_TURNS / 6)  # of normal variates with that rank correlation
        normal[:, 1] = rho * normal[:, 0] + np.sqrt(1 - rho**2) * normal[:, 1]
        ranks = ndtr(normal)
        sizes = _law(TURNS, ranks[:, 0]).round().astype(np.int64)
        begin = np.repeat(starts_of(sizes), sizes)  # (M,) first row of the session of each row
        rows = np.arange(len(begin))
        new, answer = streams.pairs(len(rows))
        drawn = streams.delays.random((len(rows), 3))
        prompt, context = self._prompts(sizes, new, answer, drawn[:, 1:], _law(FIRST_TOKENS, ranks[:, 1]))
        delay_s = self.think_scale * _law(THINK_S, drawn[:, 0])
        if self.think_cap_s is not None:
            delay_s = np.minimum(delay_s, self.think_cap_s)
        blocks = -(-prompt // self.block_tokens)
        last = np.append(context[1:] != context[:-1], True)[: len(rows)]  # the longest prompt of each context
        before = np.concatenate(([0], np.cumsum(np.where(last, blocks, 0))[:-1]))  # blocks of earlier contexts
        return Tasks(
            sizes, rows - begin, prompt, answer, np.where(rows > begin, delay_s, 0.0), rows - 1,
            (rows > begin).astype(np.int64), blocks, before - before[begin],
        )  # fmt: skip

    def _prompts(
        self, sizes: np.ndarray, new: np.ndarray, answer: np.ndarray, drawn: np.ndarray, first_tokens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(M,) tokens of each prompt beside the common prefix, and the number of the context that it belongs to."""
        ratios = np.stack([_law(AGAIN, drawn[:, 1]), _law(FULL, drawn[:, 1])], axis=1).tolist()
        chance, grown = drawn[:, 0].tolist(), (new[1:] + answer[:-1]).tolist()
        totals, context, row, number = [], [], 0, -1
        for size, begin in zip(sizes.tolist(), first_tokens.tolist(), strict=True):
            number, tokens = number + 1, begin
            totals.append(tokens)
            context.append(number)
            for _ in range(size - 1):
                row += 1
                full = FULL_TOKENS[0] <= tokens < FULL_TOKENS[1]
                if chance[row] < (FULL_SHARE if full else AGAIN_SHARE):
                    number, tokens = number + 1, tokens * ratios[row][full]
                else:
                    tokens += grown[row - 1]
                totals.append(tokens)
                context.append(number)
            row += 1
        prompt = np.maximum(np.array(totals) - self.beside_tokens, 1.0)
        if self.limit_tokens is not None:
            fits = np.minimum.reduceat((self.limit_tokens - self.beside_tokens - answer) / prompt, starts_of(sizes))
            prompt *= np.repeat(np.minimum(fits, 1.0), sizes)
        return np.maximum(np.floor(prompt), 1).astype(np.int64), np.array(context)
