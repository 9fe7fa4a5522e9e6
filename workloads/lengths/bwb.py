"""Book translation lengths (long output), drawn from quantiles with their rank correlation of 0.81."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Bwb:
    """Text and translation in tokens of the Llama-2 tokenizer, mean 1,067 / 1,613, prompt + output at most 4,096.

    The output is longer than the prompt and goes with it. Source: Bilingual Web Books as prepared in
    project-etalon/etalon, 33,768 rows. Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("bwb"))

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of the sampler."""
        return self.sampler.mean_tokens

    @property
    def facts(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source, licence."""
        return self.sampler.facts

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Stored quantile (0..100) of prompt and output, each alone."""
        return self.sampler.quantile_tokens(percent)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Endless (prompt_tokens, output_tokens)."""
        return self.sampler.pairs(rng)
