"""LMSYS-Chat-1M lengths (short chat), drawn from quantiles with the rank correlation of 100,000 first turns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Lmsys:
    """First user turn and first answer in tokens of the longchat tokenizer, mean 92.2 / 207.4.

    Source: efeslab/Nanoflow, lmsys.csv (lengths of LMSYS-Chat-1M, whose texts are gated). Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("lmsys"))

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
