"""Power-law lengths: prompt and output drawn independently, most of them short and a few very long."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads._checks import positive, token_counts

CHUNK = 4096  # pairs drawn at once, whatever the caller takes


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Zipf's law over 1..2m-1, m the mean in tokens, stretched to that mean; then clipped at `clip_tokens`.

    A length is k with probability proportional to k**-exponent, times what makes the mean m, rounded up to whole
    tokens; what is longer than `clip_tokens` becomes `clip_tokens`, which lowers the mean. `mean_tokens` is exact and
    counts both in. The defaults are Llumnix's medium lengths: mean 256, median 30, P80 163, P95 1,285, P99 4,576 tokens
    (published: 32, 173, 1,288 and 4,208); its short ones have mean 128 and exponent 2, its long ones mean 512 and
    exponent 1.15.
    Source: AlibabaPAI/llumnix, `benchmark/benchmark_serving.py` (zipf); Sun et al., Llumnix, OSDI 2024, table 1.
    """

    prompt_mean_tokens: int = 256
    prompt_exponent: float = 1.5
    output_mean_tokens: int = 256
    output_exponent: float = 1.5
    clip_tokens: int = 6144

    def __post_init__(self) -> None:
        token_counts(
            prompt_mean_tokens=self.prompt_mean_tokens,
            output_mean_tokens=self.output_mean_tokens,
            clip_tokens=self.clip_tokens,
        )
        positive(prompt_exponent=self.prompt_exponent, output_exponent=self.output_exponent)

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
