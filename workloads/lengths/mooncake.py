"""Mooncake conversation lengths (long contexts), drawn from the quantiles of the trace with its rank correlation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Mooncake:
    """Prompt and output tokens of Kimi's conversation service, mean 12,035 / 343; the longest prompt has 126,195.

    The shared prefixes of that service are in its trace only, not in these lengths. Source: kvcache-ai/Mooncake,
    conversation_trace.jsonl, 12,031 requests of one hour; its tokenizer is not published. Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("mooncake"))

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
