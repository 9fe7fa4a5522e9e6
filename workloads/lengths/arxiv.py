"""arXiv summarization lengths (long prompt, short output), drawn from quantiles with their rank correlation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Arxiv:
    """Article and abstract in tokens of the Llama-2 tokenizer, mean 2,588 / 291, prompt + output at most 4,096.

    That limit is part of the preparation and is kept; it is why longer prompts have shorter outputs here. Source:
    microsoft/vidur, 28,257 rows. Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("arxiv"))

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
