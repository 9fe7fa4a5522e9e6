"""Lengths of the simplest laws, a class each."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta

from harness.bounds import Checked, Positive, check
from workloads._checks import MeanTokens, Tokens

CHUNK = 4096  # pairs drawn at once, whatever the caller takes
# beyond, a sixth of the draws of a normal law would have to be drawn again
NormalCv: TypeAlias = Annotated[float, Meta(gt=0, le=1.0, description="longer tails are 'lognormal'")]


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
class BurstgptPublished(Checked):
    """Lengths of BurstGPT's own generator: two independent Zipf laws, which are far from the data it was made for.

    Prompt and output tokens, each with probability proportional to k**-`exponent` for k below `below_tokens`.

    Zipf draws of exponent 1.1 that are repeated until they are below 1,024, as the published code does, are this law.
    Warning: for repeating published results only; its median prompt is 12 tokens, that of BurstGPT's conversations
    517. Use `burstgpt` for those. Source: HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py (MIT).
    """

    exponent: Annotated[float, Meta(ge=0, le=20)] = 1.1
    below_tokens: Annotated[int, Meta(ge=2, le=1 << 20)] = 1024

    @property
    def mean_tokens(self) -> tuple[float, float]:
        mean = float(np.arange(1, self.below_tokens) @ self._shares())
        return mean, mean

    @property
    def facts(self) -> Mapping[str, object]:
        return {
            "source": "HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py",
            "licence": "MIT (example code)",
            "warning": "a Zipf law of exponent 1.1 is at a distance of 0.5 (KS) from the lengths of BurstGPT",
            "remedy": "keep it for repeating published results; --lengths burstgpt is like the traces",
        }

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        edges = np.cumsum(self._shares())
        while True:
            ranks = np.minimum(np.searchsorted(edges, rng.random((2, CHUNK)), side="right"), len(edges) - 1)
            yield from zip(*(1 + ranks).tolist(), strict=True)

    def _shares(self) -> np.ndarray:
        """(below_tokens - 1,) probability of 1, 2, ..."""
        weights = np.arange(1, self.below_tokens, dtype=float) ** -self.exponent
        return np.asarray(weights / weights.sum())
