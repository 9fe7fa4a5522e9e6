"""Lengths of BurstGPT's two services: people who chat (from the paper's figures), programs that call (second-hand)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from workloads.lengths._empirical import Empirical, load
from workloads.lengths._second_hand import Law, SecondHand

Service = Literal["conversation", "api"]
_API_FACTS = {
    "preparation": "API requests of part 3, of which only mean, median and correlation are known; lognormal laws of "
    "these, cut at the largest numbers of that part (125,591 in, 5,383 out), so the tails are a guess",
    "tokenizer": "that of the OpenAI service (GPT-3.5 and GPT-4)",
    "source": "BurstGPT_3.csv as measured by another project (means 457 / 68.9, medians 326 / 14, correlation 0.18); "
    "not checked on the file",
    "licence": "CC-BY-4.0 (data of HPMLL/BurstGPT)",
}


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """Prompt and output tokens of one `service` of BurstGPT.

    `conversation`: the histograms of ChatGPT conversations below 2,045 tokens (mean 683 / 262, two humps in the
    output), with the rank correlation 0.34 of figure 10; exact to 5 tokens. `api`: lognormal laws with the means and
    medians of part 3 (457 and 326 in, 69 and 14 out) and correlation 0.18, cut at its largest; second-hand, and the
    tails are a guess. Neither is near the Zipf law that the paper's generator draws from. Source: HPMLL/BurstGPT
    (arXiv 2401.17644), figures 7 and 10. Details: `facts`.
    """

    service: Service = "conversation"
    sampler: Empirical | SecondHand = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.service not in get_args(Service):
            raise ValueError(f"service must be one of {', '.join(get_args(Service))}, got '{self.service}'.")
        api = SecondHand(Law.of(457, 326, 125_591), Law.of(68.9, 14, 5_383), 0.18, _API_FACTS)
        object.__setattr__(self, "sampler", api if self.service == "api" else load("burstgpt_conversation"))

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of the sampler."""
        return self.sampler.mean_tokens

    @property
    def facts(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source, licence."""
        return self.sampler.facts

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Quantile (0..100) of prompt and output, each alone."""
        return self.sampler.quantile_tokens(percent)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Endless (prompt_tokens, output_tokens)."""
        return self.sampler.pairs(rng)
