"""Lengths of the simplest laws, a class each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from workloads._checks import token_counts

CHUNK = 4096  # pairs drawn at once, whatever the caller takes


@dataclass(frozen=True, slots=True)
class Fixed:
    """Fixed lengths: every request has the same prompt and output length.

    `prompt_tokens` in and `output_tokens` out, always. Source: nothing is drawn.

    The defaults are those of figure 1 of DistServe (OSDI 2024).
    """

    prompt_tokens: int = 512
    output_tokens: int = 64

    def __post_init__(self) -> None:
        token_counts(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)

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

    prompt_min_tokens: int = 1
    prompt_max_tokens: int = 1023
    output_min_tokens: int = 1
    output_max_tokens: int = 255

    def __post_init__(self) -> None:
        token_counts(
            prompt_min_tokens=self.prompt_min_tokens,
            prompt_max_tokens=self.prompt_max_tokens,
            output_min_tokens=self.output_min_tokens,
            output_max_tokens=self.output_max_tokens,
        )
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
