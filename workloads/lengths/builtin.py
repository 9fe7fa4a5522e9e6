"""Lengths of the simplest laws, a class each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import LARGEST_TOKENS, AtLeastTwo, Checked, MeanTokens, Positive, Tokens, check, positive
from harness.spec import joined
from workloads.lengths._empirical import CHUNK

# beyond, a sixth of the draws of a normal law would have to be drawn again
NormalCv: TypeAlias = Annotated[float, Meta(gt=0, le=1.0, description="longer tails are 'lognormal'")]
LengthCv: TypeAlias = Annotated[float, Meta(ge=0.01, le=10.0)]
MIN_KEPT = 0.01  # share of the draws that a bound must leave
_SUMMED = 1 << 15  # lengths whose probabilities are summed one by one for the mean; an integral takes the rest


@dataclass(frozen=True, slots=True)
class Fixed(Checked):
    """Fixed lengths: every request has the same prompt and output length.

    `prompt_tokens` in and `output_tokens` out, always. Source: nothing is drawn.

    The defaults are those of figure 1 of DistServe (OSDI 2024).
    """

    prompt_tokens: Tokens = 512
    output_tokens: Tokens = 64

    @property
    def mean_tokens(self) -> tuple[float, float]:
        return float(self.prompt_tokens), float(self.output_tokens)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:  # noqa: ARG002  # nothing is random here
        return repeat((self.prompt_tokens, self.output_tokens))


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform lengths: every whole number between two bounds is equally likely.

    Prompt and output tokens drawn independently and uniformly; both bounds can come out.

    Source: the discrete uniform law, mean (min + max) / 2 tokens.
    """

    prompt_min_tokens: Tokens = 1
    prompt_max_tokens: Tokens = 1023
    output_min_tokens: Tokens = 1
    output_max_tokens: Tokens = 255

    def __post_init__(self) -> None:
        check(self)
        for side, low, high in (
            ("prompt", self.prompt_min_tokens, self.prompt_max_tokens),
            ("output", self.output_min_tokens, self.output_max_tokens),
        ):
            if low > high:
                raise ValueError(f"{side}_max_tokens must be at least {side}_min_tokens = {low}, got {high}.")

    @property
    def mean_tokens(self) -> tuple[float, float]:
        return (
            (self.prompt_min_tokens + self.prompt_max_tokens) / 2,
            (self.output_min_tokens + self.output_max_tokens) / 2,
        )

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        low = np.array([[self.prompt_min_tokens], [self.output_min_tokens]])  # (2, 1)
        high = np.array([[self.prompt_max_tokens], [self.output_max_tokens]])
        while True:
            prompts, outputs = rng.integers(low, high, (2, CHUNK), endpoint=True).tolist()
            yield from zip(prompts, outputs, strict=True)


@dataclass(frozen=True, slots=True)
class Normal(Checked):
    """Normal lengths: prompt and output drawn independently from normal laws, cut at a stated cap where one is given.

    Prompt and output tokens, each normal with the given mean and coefficient of variation (cv).

    Draws are rounded to whole tokens; one below 1 is drawn again, as a pair. A prompt longer than
    `prompt_cap_tokens`, or an output longer than `output_cap_tokens`, is cut to it. `mean_tokens` counts both in.
    Source of the defaults: the benchmark of DeepSpeed-FastGen (microsoft/DeepSpeedExamples), prompts of 2,600 tokens
    and answers of 60 with a spread of 30%, prompts cut at 4,000.
    """

    prompt_mean_tokens: MeanTokens = 2600.0
    output_mean_tokens: MeanTokens = 60.0
    prompt_cv: NormalCv = 0.3
    output_cv: NormalCv = 0.3
    prompt_cap_tokens: Tokens | None = 4000
    output_cap_tokens: Tokens | None = None

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the whole numbers drawn, caps included."""
        return (
            _mean(self.prompt_mean_tokens, self.prompt_cv, self.prompt_cap_tokens),
            _mean(self.output_mean_tokens, self.output_cv, self.output_cap_tokens),
        )

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        while True:
            prompts = _draw(rng, self.prompt_mean_tokens, self.prompt_cv, self.prompt_cap_tokens)
            outputs = _draw(rng, self.output_mean_tokens, self.output_cv, self.output_cap_tokens)
            good = (prompts >= 1) & (outputs >= 1)
            yield from zip(prompts[good].tolist(), outputs[good].tolist(), strict=True)


def _draw(rng: np.random.Generator, mean: float, cv: float, cap: int | None) -> np.ndarray:
    drawn = np.floor(rng.normal(mean, cv * mean, CHUNK) + 0.5).astype(np.int64)
    return drawn if cap is None else np.minimum(drawn, cap)


def _mean(mean: float, cv: float, cap: int | None) -> float:
    """E[min(round(Y), cap) | round(Y) >= 1]: the sum of P(Y > j + 1/2) over 0 <= j < cap, over P(Y > 1/2)."""
    from scipy.special import ndtr

    top = math.ceil(mean * (1 + 10 * cv)) if cap is None else cap  # above ten deviations nothing is drawn
    above = ndtr((mean - np.arange(top) - 0.5) / (cv * mean))
    return float(above.sum() / above[0])


@dataclass(frozen=True, slots=True)
class PowerLaw(Checked):
    """Power-law lengths: prompt and output drawn independently, most of them short and a few very long.

    Zipf's law over 1..2m-1, m the mean in tokens, stretched to that mean; then clipped at `clip_tokens`.

    A length is k with probability proportional to k**-exponent, times what makes the mean m, rounded up to whole
    tokens; what is longer than `clip_tokens` becomes `clip_tokens`, which lowers the mean. `mean_tokens` is exact and
    counts both in. The defaults are Llumnix's medium lengths: mean 256, median 30, P80 163, P95 1,285, P99 4,576 tokens
    (published: 32, 173, 1,288 and 4,208); its short ones have mean 128 and exponent 2, its long ones mean 512 and
    exponent 1.15.
    Source: AlibabaPAI/llumnix, `benchmark/benchmark_serving.py` (zipf); Sun et al., Llumnix, OSDI 2024, table 1.
    """

    prompt_mean_tokens: Tokens = 256
    prompt_exponent: Positive = 1.5
    output_mean_tokens: Tokens = 256
    output_exponent: Positive = 1.5
    clip_tokens: Tokens = 6144

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the whole numbers drawn, clip included."""
        (prompts, p), (outputs, q) = self._laws()
        return float(prompts @ p), float(outputs @ q)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        (prompts, p), (outputs, q) = self._laws()
        while True:
            drawn = rng.choice(prompts, CHUNK, p=p), rng.choice(outputs, CHUNK, p=q)
            yield from zip(*(tokens.tolist() for tokens in drawn), strict=True)

    def _laws(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of prompt and output: (2m-1,) possible lengths and their probabilities."""
        laws = []
        for mean, exponent in (
            (self.prompt_mean_tokens, self.prompt_exponent),
            (self.output_mean_tokens, self.output_exponent),
        ):
            ranks = np.arange(1, 2 * mean)
            shares = ranks**-exponent
            shares /= shares.sum()
            tokens = np.ceil(ranks * (mean / (ranks @ shares))).astype(np.int64)
            laws.append((np.minimum(tokens, self.clip_tokens), shares))
        return laws


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal lengths: prompt and output drawn independently from lognormal laws given by mean and spread.

    Prompt and output tokens, each lognormal with the given mean and coefficient of variation (cv).

    sigma**2 = ln(1 + cv**2), median = mean / sqrt(1 + cv**2). Draws are rounded to whole tokens; one that
    rounds to 0 is drawn again. With `max_total_tokens`, a pair whose prompt + output is above it is drawn again
    as a pair, which lowers both means. `prompt_clip=8..4000` moves what lies outside to the nearer end instead, as
    generators of synthetic traffic do, and so does `output_clip`. `mean_tokens` is exact and counts all of it in.
    Source of the defaults: the lengths of the request set `var` with which public simulators are compared (mean 390
    in, 199 out).
    """

    prompt_mean_tokens: MeanTokens = 390.0
    prompt_cv: LengthCv = 1.0
    output_mean_tokens: MeanTokens = 199.0
    output_cv: LengthCv = 1.0
    max_total_tokens: AtLeastTwo | None = None
    prompt_clip: str | None = None
    output_clip: str | None = None

    def __post_init__(self) -> None:
        check(self)
        clipped = [_ends(name, getattr(self, name)) for name in ("prompt_clip", "output_clip") if getattr(self, name)]
        if self.max_total_tokens is None:
            return
        if clipped:
            raise ValueError("max_total_tokens and a clip exclude each other; give one of them.")
        p = _masses(*_law(self.prompt_mean_tokens, self.prompt_cv), self.max_total_tokens)
        q = _masses(*_law(self.output_mean_tokens, self.output_cv), self.max_total_tokens)
        if (mass := float(p @ np.cumsum(q)[::-1])) < MIN_KEPT:
            raise ValueError(
                f"max_total_tokens={self.max_total_tokens} leaves {mass:.2%} of the pairs; raise it or lower the means."
            )

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the whole numbers drawn, bound included."""
        prompt, output = _law(self.prompt_mean_tokens, self.prompt_cv), _law(self.output_mean_tokens, self.output_cv)
        if self.max_total_tokens is None:
            return _lognormal_mean(*prompt, self.prompt_clip), _lognormal_mean(*output, self.output_clip)
        p, q = _masses(*prompt, self.max_total_tokens), _masses(*output, self.max_total_tokens)
        return _bounded_mean(p, q), _bounded_mean(q, p)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        (prompt_mu, prompt_sigma), (output_mu, output_sigma) = (
            _law(self.prompt_mean_tokens, self.prompt_cv),
            _law(self.output_mean_tokens, self.output_cv),
        )
        limit = np.inf if self.max_total_tokens is None else self.max_total_tokens
        while True:
            prompts = np.floor(rng.lognormal(prompt_mu, prompt_sigma, CHUNK) + 0.5)
            outputs = np.floor(rng.lognormal(output_mu, output_sigma, CHUNK) + 0.5)
            # Drawn again as a pair: redrawing one side alone would tie its law to the other side.
            good = (prompts >= 1) & (outputs >= 1) & (prompts + outputs <= limit)
            yield from zip(
                _whole(prompts[good], "prompt_clip", self.prompt_clip),
                _whole(outputs[good], "output_clip", self.output_clip),
                strict=True,
            )


def _law(mean: float, cv: float) -> tuple[float, float]:
    """(mu, sigma) of the lognormal with this mean and coefficient of variation."""
    variance = math.log1p(cv**2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def _above(mu: float, sigma: float, tokens: np.ndarray) -> np.ndarray:
    """P(Y > tokens), element by element."""
    from scipy.special import ndtr

    return np.asarray(ndtr((mu - np.log(tokens)) / sigma))


def _ends(name: str, clip: str) -> tuple[int, int]:
    """The least and the most tokens of a clip `8..4000`. Raises ValueError, calling it `name`."""
    low, dots, high = clip.partition("..")
    if not dots or not (low.isdecimal() and high.isdecimal()) or not 1 <= int(low) <= int(high):
        raise ValueError(f"{name} must be the least and the most tokens, such as 8..4000, got '{clip}'.")
    if int(high) > LARGEST_TOKENS:
        raise ValueError(f"{name} must not exceed {LARGEST_TOKENS:,} tokens, got '{clip}'.")
    return int(low), int(high)


def _whole(tokens: np.ndarray, name: str, clip: str | None) -> list[int]:
    """Drawn lengths as whole numbers, those outside a clip at its nearer end."""
    lengths: list[int] = (tokens if clip is None else np.clip(tokens, *_ends(name, clip))).astype(np.int64).tolist()
    return lengths


def _lognormal_mean(mu: float, sigma: float, clip: str | None = None) -> float:
    """E[round(Y) | round(Y) >= 1]: the sum of P(Y > j + 1/2) over j >= 0, over P(Y > 1/2).

    From _SUMMED on the sum is the integral of P(Y > x), i.e. E[(Y - x)+], by the midpoint rule. Of a clip a..b it is
    a plus the sum over j in a..b-1.
    """
    from scipy.special import ndtr

    if clip is not None:
        low, high = _ends("clip", clip)
        return float(low + _above(mu, sigma, np.arange(low, high) + 0.5).sum() / _above(mu, sigma, np.array(0.5)))
    above = _above(mu, sigma, np.arange(_SUMMED) + 0.5)
    d = (mu - math.log(_SUMMED)) / sigma
    rest = math.exp(mu + sigma**2 / 2) * ndtr(d + sigma) - _SUMMED * ndtr(d)
    return float((above.sum() + rest) / above[0])


def _masses(mu: float, sigma: float, limit: int) -> np.ndarray:
    """(limit - 1,) P(round(Y) = k | round(Y) >= 1) for k = 1..limit-1."""
    above = _above(mu, sigma, np.arange(limit) + 0.5)
    return np.asarray(-np.diff(above) / above[0])


def _bounded_mean(p: np.ndarray, q: np.ndarray) -> float:
    """E[X | X + Y <= limit] for independent X ~ p and Y ~ q, both on 1..limit-1."""
    weights = p * np.cumsum(q)[::-1]  # X = k leaves Y in 1..limit-k
    return float(weights @ np.arange(1, len(p) + 1) / weights.sum())


@dataclass(frozen=True, slots=True)
class ReasoningInBudget:
    """Lengths of a reasoning model: thoughts as long as the question is hard, then an answer, cut at a token budget.

    Prompt tokens, and output tokens = reasoning + answer, of which no more than `budget_tokens` are produced.

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
        return _lognormal_mean(*_law(self.prompt_mean_tokens, self.prompt_cv)), float((1 - at_most).sum())

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
    values = np.array(joined(text, name, float, "0.4/0.4/0.2"))
    positive(**{name: float(values.min())})
    return values
