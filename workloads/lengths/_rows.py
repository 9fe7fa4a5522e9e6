"""The entries of `lengths.toml` as plug-ins: prompt and output tokens drawn from what is known of one list."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from workloads.lengths._empirical import load
from workloads.lengths._summary_law import Law, SummaryLaw


class Sampler(Protocol):
    """What draws lengths."""

    @property
    def mean_tokens(self) -> tuple[float, float]: ...
    @property
    def facts(self) -> Mapping[str, object]: ...
    def quantile_tokens(self, percent: int) -> tuple[int, int]: ...
    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]: ...


@dataclass(frozen=True, slots=True)
class SampledLengths:
    """Lengths that a `sampler` draws; a subclass sets it."""

    sampler: Sampler = field(init=False, repr=False, compare=False)

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


@dataclass(frozen=True, slots=True)
class EmpiricalLengths(SampledLengths):
    """One entry; where it has several lists, the field of a class that `plugin` makes chooses one."""

    figures: ClassVar[Mapping[str, Any]]
    argument: ClassVar[str | None]

    def __post_init__(self) -> None:
        chosen = next(iter(self.figures)) if self.argument is None else getattr(self, self.argument)
        if chosen not in self.figures:
            raise ValueError(f"{self.argument} must be one of {', '.join(self.figures)}, got '{chosen}'.")
        figures = self.figures[chosen]
        object.__setattr__(self, "sampler", load(figures) if isinstance(figures, str) else _summary_law(figures))


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
