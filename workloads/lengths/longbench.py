"""LongBench lengths (summarization) as DistServe cuts them, drawn from quantiles of 3 of its 21 tasks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from workloads.lengths._empirical import Empirical, load


@dataclass(frozen=True, slots=True)
class Longbench:
    """Prompt and output in tokens of the OPT tokenizer, mean 1,821 / 109; most prompts are pinned at 1.9 to 2.0k.

    Source: THUDM/LongBench, of which only multi_news, multifieldqa_zh and passage_retrieval_zh (200 rows each)
    were available, so this is not the whole of LongBench (DistServe gives 1,738.3 / 90.7). DistServe's
    preparation cuts the context to min(2,040 - answer, a random 1,900..2,048) tokens; prompt + output stays
    below 2,048. Details: `facts`.
    """

    sampler: Empirical = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sampler", load("longbench"))

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
