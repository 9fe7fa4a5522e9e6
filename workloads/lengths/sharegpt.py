"""ShareGPT lengths (chat), drawn from the quantiles of three real preparations with their rank correlation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from workloads.lengths._empirical import Empirical, load

Preparation = Literal["distserve", "first-turn", "multi-turn-8k"]


@dataclass(frozen=True, slots=True)
class Sharegpt:
    """Prompt and output tokens of ShareGPT conversations, which are three different workloads:

    `distserve` (mean 758.7 / 186.3 tokens, OPT tokenizer, prompt + output < 2,048), `first-turn` (298.8 /
    323.7, longchat tokenizer, no limit), `multi-turn-8k` (2,340.0 / 438.7, Llama-2 tokenizer, at most 8,192).
    Source and licence of each list: `facts`; the limit on the total is part of its preparation and is kept.
    """

    preparation: Preparation = "distserve"
    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = get_args(Preparation)
        if self.preparation not in known:
            raise ValueError(f"preparation must be one of {', '.join(known)}, got '{self.preparation}'.")
        object.__setattr__(self, "sampler", load(f"sharegpt_{self.preparation.replace('-', '_')}"))

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
