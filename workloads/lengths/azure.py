"""Azure conversation lengths (2023), drawn from the quantiles of the trace with its rank correlation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Azure:
    """Prompt and output tokens of a production conversation service, mean 1,154.7 / 211.1, hardly correlated (0.07).

    Source: Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv, 19,366 requests of one hour, CC-BY-4.0; its
    tokenizer is not published. Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("azure"))

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
