"""Normal lengths: prompt and output drawn independently from normal laws, cut at a stated cap where one is given."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive, token_counts

CHUNK = 4096  # pairs drawn at once, whatever the caller takes
LARGEST_CV = 1.0  # beyond, a sixth of the draws would have to be drawn again


@dataclass(frozen=True, slots=True)
class Normal:
    """Prompt and output tokens, each normal with the given mean and coefficient of variation (cv).

    Draws are rounded to whole tokens; one below 1 is drawn again, as a pair. A prompt longer than
    `prompt_cap_tokens`, or an output longer than `output_cap_tokens`, is cut to it. `mean_tokens` counts both in.
    Source of the defaults: the benchmark of DeepSpeed-FastGen (microsoft/DeepSpeedExamples), prompts of 2,600 tokens
    and answers of 60 with a spread of 30%, prompts cut at 4,000.
    """

    prompt_mean_tokens: float = 2600.0
    output_mean_tokens: float = 60.0
    prompt_cv: float = 0.3
    output_cv: float = 0.3
    prompt_cap_tokens: int | None = 4000
    output_cap_tokens: int | None = None

    def __post_init__(self) -> None:
        token_counts(prompt_mean_tokens=self.prompt_mean_tokens, output_mean_tokens=self.output_mean_tokens)
        positive(prompt_cv=self.prompt_cv, output_cv=self.output_cv)
        for name, cv in (("prompt_cv", self.prompt_cv), ("output_cv", self.output_cv)):
            if cv > LARGEST_CV:
                raise ValueError(f"{name} must be at most {LARGEST_CV:g}, got {cv:g}; longer tails are 'lognormal'.")
        for cap in (self.prompt_cap_tokens, self.output_cap_tokens):
            if cap is not None:
                token_counts(cap_tokens=cap)

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
