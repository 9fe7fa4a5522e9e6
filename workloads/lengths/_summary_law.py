"""Lengths of which only mean, median, largest value and a correlation are known: correlated lognormal laws, cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CHUNK = 4096  # pairs drawn at once, whatever the caller takes


@dataclass(frozen=True, slots=True)
class Law:
    """A lognormal law without what lies above `largest`, rounded up to whole tokens."""

    mu: float
    sigma: float
    largest: int

    @classmethod
    def of(cls, mean: float, median: float, largest: int) -> Law:
        """The law that has this mean and median, in whole tokens; by bisection on its spread."""
        low, high = 0.01, 5.0
        for _ in range(50):
            law = cls._with_median(median, (low + high) / 2, largest)
            low, high = (law.sigma, high) if law.mean() < mean else (low, law.sigma)
        return law

    @classmethod
    def _with_median(cls, median: float, sigma: float, largest: int) -> Law:
        mu = math.log(median - 0.5)  # rounding up adds a half
        for _ in range(20):  # the cut takes some of the upper half
            mu = math.log(median - 0.5) - sigma * NormalDist().inv_cdf(_below(mu, sigma, largest) / 2)
        return cls(mu, sigma, largest)

    def mean(self) -> float:
        """Mean of the whole numbers drawn: that of the law that is cut, and a half for rounding up."""
        whole = math.exp(self.mu + self.sigma**2 / 2)
        kept = _below(self.mu + self.sigma**2, self.sigma, self.largest) / _below(self.mu, self.sigma, self.largest)
        return whole * kept + 0.5

    def quantile(self, share: float) -> int:
        """The whole number at this share of the law."""
        if share in (0, 1):
            return 1 if share == 0 else self.largest
        score = NormalDist().inv_cdf(share * _below(self.mu, self.sigma, self.largest))
        return math.ceil(math.exp(self.mu + self.sigma * score))

    def lengths(self, scores: np.ndarray) -> np.ndarray:
        """(N,) whole tokens for normal scores, those above the cut included."""
        return np.asarray(np.ceil(np.exp(self.mu + self.sigma * scores)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class SummaryLaw:
    """The sampler, and what is known about its list."""

    prompt: Law
    output: Law
    correlation: float  # Spearman
    facts: Mapping[str, object]

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Means of the whole numbers drawn."""
        return self.prompt.mean(), self.output.mean()

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Quantile (0..100) of prompt and output, each alone."""
        return self.prompt.quantile(percent / 100), self.output.quantile(percent / 100)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        """Endless (prompt_tokens, output_tokens); a pair above a cut is drawn again."""
        pearson = 2 * math.sin(math.pi * self.correlation / 6)  # of the normal scores
        while True:
            first, second = rng.standard_normal((2, CHUNK))
            other = pearson * first + math.sqrt(1 - pearson**2) * second
            prompts, outputs = self.prompt.lengths(first), self.output.lengths(other)
            kept = (prompts <= self.prompt.largest) & (outputs <= self.output.largest)
            yield from zip(prompts[kept].tolist(), outputs[kept].tolist(), strict=True)


def _below(mu: float, sigma: float, largest: int) -> float:
    return NormalDist(mu, sigma).cdf(math.log(largest))
