"""Lengths of a reasoning model: thoughts as long as the question is hard, then an answer, cut at a token budget."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from harness.bounds import Positive, check
from workloads._checks import MeanTokens, positive
from workloads.lengths.lognormal import _law, _masses, _mean

CHUNK = 4096  # requests drawn at once, whatever the caller takes


@dataclass(frozen=True, slots=True)
class ReasoningInBudget:
    """Prompt tokens, and output tokens = reasoning + answer, of which no more than `budget_tokens` are produced.

    A question is of one of several difficulties, with probabilities `shares`; its reasoning is lognormal with the
    mean of that difficulty (`reasoning_mean_tokens`, joined by '/') and coefficient of variation `reasoning_cv`. The
    answer and the prompt are lognormal too. Reasoning is cut at the budget, the answer at what reasoning left of it,
    so an answer may be missing. `parts` gives the two lengths apart. Source: the form, the budget of 8,192 and the
    data sets (GSM8K, MATH-500, AIME, GPQA) of lqinfdim/RLMServing (ICLR 2026); the means, in tokens, are chosen here.
    """

    budget_tokens: Annotated[int, Meta(ge=1, le=1 << 16)] = 8192
    shares: str = "0.4/0.4/0.2"
    reasoning_mean_tokens: str = "500/2500/7000"
    reasoning_cv: Positive = 0.6
    answer_mean_tokens: MeanTokens = 300.0
    answer_cv: Positive = 0.6
    prompt_mean_tokens: MeanTokens = 150.0
    prompt_cv: Positive = 0.6
    law: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False, compare=False)  # cumulative shares, means

    def __post_init__(self) -> None:
        check(self)
        shares, means = _numbers(self.shares, "shares"), _numbers(self.reasoning_mean_tokens, "reasoning_mean_tokens")
        if len(shares) != len(means):
            raise ValueError(f"shares '{self.shares}' and means '{self.reasoning_mean_tokens}' differ in number.")
        object.__setattr__(self, "law", (np.cumsum(shares) / shares.sum(), means))

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of prompt and output, the budget counted in."""
        (cumulated, means), budget = self.law, self.budget_tokens
        shares = np.diff(cumulated, prepend=0)
        reasoning = sum(
            p * _masses(*_law(m, self.reasoning_cv), budget + 1) for p, m in zip(shares, means, strict=True)
        )
        answer = _masses(*_law(self.answer_mean_tokens, self.answer_cv), budget + 1)
        total = np.convolve(reasoning, answer)[: budget - 1]  # [i]: P(reasoning + answer = i + 2)
        at_most = np.concatenate(([0.0, 0.0], np.cumsum(total)))[:budget]  # at 0, 1, ... budget - 1
        return _mean(*_law(self.prompt_mean_tokens, self.prompt_cv)), float((1 - at_most).sum())

    def parts(self, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
        """Endless (prompt, reasoning, answer) tokens; the answer may be 0."""
        cumulated, means = self.law
        while True:
            hard = np.searchsorted(cumulated[:-1], rng.random(CHUNK), side="right")
            mu, sigma = np.array([_law(m, self.reasoning_cv) for m in means]).T
            reasoning = np.floor(rng.lognormal(mu[hard], sigma[hard]) + 0.5)
            answer, prompt = (
                np.floor(rng.lognormal(*_law(mean, cv), CHUNK) + 0.5)
                for mean, cv in ((self.answer_mean_tokens, self.answer_cv), (self.prompt_mean_tokens, self.prompt_cv))
            )
            good = (reasoning >= 1) & (answer >= 1) & (prompt >= 1)
            reasoning = np.minimum(reasoning, self.budget_tokens)
            answer = np.minimum(answer, self.budget_tokens - reasoning)
            columns = (x[good].astype(np.int64).tolist() for x in (prompt, reasoning, answer))
            yield from zip(*columns, strict=True)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Endless (prompt_tokens, output_tokens), output = reasoning + answer."""
        return ((prompt, reasoning + answer) for prompt, reasoning, answer in self.parts(rng))


def _numbers(text: str, name: str) -> np.ndarray:
    try:
        values = np.array([float(part) for part in str(text).split("/")])
    except ValueError:
        raise ValueError(f"{name} must be numbers joined by '/' such as 0.4/0.4/0.2, got '{text}'.") from None
    positive(**{name: float(values.min())})
    return values
