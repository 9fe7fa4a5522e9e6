"""The entries of `lengths.toml` as plug-ins: prompt and output tokens drawn from what is known of one list."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np

from harness.bounds import check
from workloads.lengths._empirical import CHUNK, Empirical, load


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """One entry; where it has several lists, the field of a class that `plugin` makes chooses one."""

    figures: ClassVar[Mapping[str, Any]]
    argument: ClassVar[str | None]
    sampler: Empirical | SummaryLaw = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        chosen = next(iter(self.figures)) if self.argument is None else getattr(self, self.argument)
        figures = self.figures[chosen]
        object.__setattr__(self, "sampler", load(figures) if isinstance(figures, str) else _summary_law(figures))

    @property
    def mean_tokens(self) -> tuple[float, float]:
        return self.sampler.mean_tokens

    @property
    def facts(self) -> Mapping[str, object]:
        """Preparation, tokenizer, source, licence, and what is missing."""
        return self.sampler.facts

    def quantile_tokens(self, percent: int) -> tuple[int, int]:
        """Quantile (0..100) of prompt and output, each alone."""
        return self.sampler.quantile_tokens(percent)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        return self.sampler.pairs(rng)


def _summary_law(known: Mapping[str, Any]) -> SummaryLaw:
    prompt, output = Law.of(**known["prompt"]), Law.of(**known["output"])
    facts = {key: known[key] for key in ("preparation", "tokenizer", "source", "licence")}
    return SummaryLaw(prompt, output, known["correlation"], facts)


@cache
def plugin(name: str) -> Any:
    """The class of an entry, whose fields are the arguments of a spec."""
    entry = tomllib.loads(Path(__file__).with_name("lengths.toml").read_text(encoding="utf-8"))[name]
    argument, figures = entry.get("argument"), entry["figures"]
    figures = figures if argument else {name: figures}
    choice: Any = Literal
    fields = [(argument, choice[tuple(figures)], next(iter(figures)))] if argument else []
    members = {"figures": figures, "argument": argument, "__doc__": entry["about"], "__module__": __name__}
    return make_dataclass(
        name.capitalize(), fields, bases=(EmpiricalLengths,), namespace=members, frozen=True, slots=True
    )


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
        uncut_mean = math.exp(self.mu + self.sigma**2 / 2)
        ratio = _below(self.mu + self.sigma**2, self.sigma, self.largest) / _below(self.mu, self.sigma, self.largest)
        return uncut_mean * ratio + 0.5

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
        # A Gaussian copula with this correlation of its scores has the stated correlation of ranks (Pearson, 1907).
        pearson = 2 * math.sin(math.pi * self.correlation / 6)  # of the normal scores
        while True:
            first, second = rng.standard_normal((2, CHUNK))
            other = pearson * first + math.sqrt(1 - pearson**2) * second
            prompts, outputs = self.prompt.lengths(first), self.output.lengths(other)
            inside = (prompts <= self.prompt.largest) & (outputs <= self.output.largest)
            yield from zip(prompts[inside].tolist(), outputs[inside].tolist(), strict=True)


def _below(mu: float, sigma: float, largest: int) -> float:
    return NormalDist(mu, sigma).cdf(math.log(largest))
