"""Lengths of a model that 'bench trace fit' wrote: the quantiles and the rank correlation of its trace."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from workloads.fit.model import Model
from workloads.lengths._empirical import CHUNK, Empirical, mixed, sampler


@dataclass(frozen=True, slots=True)
class Fitted:
    """Prompt and output tokens as in the trace of the model file `path`.

    `service` names one service of a model that has several (one per tag of its trace); without it they are mixed as
    in the trace, each request by itself. Source: the trace that the model was fitted to, whose SHA-256 is in `facts`.
    """

    path: str
    service: str | None = None
    model: Model = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", Model.load(self.path).only(self.service))

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Exact means of the sampler, which are those of the trace."""
        means = np.array([sampler.mean_tokens for sampler in self._samplers()])  # (services, 2)
        prompt, output = (self._shares() @ means).tolist()
        return prompt, output

    @property
    def facts(self) -> dict[str, object]:
        """The trace behind the model."""
        return {"model": self.path, **self.model.source}

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        samplers, edges = self._samplers(), np.cumsum(self._shares())
        while True:
            which = np.minimum(np.searchsorted(edges, rng.random(CHUNK), side="right"), len(samplers) - 1)
            prompts, outputs = mixed(samplers, which, rng.random((5, CHUNK)))
            yield from zip(prompts.tolist(), outputs.tolist(), strict=True)

    def _samplers(self) -> list[Empirical]:
        return [sampler(service.lengths) for service in self.model.services]

    def _shares(self) -> np.ndarray:
        """(services,) shares of the requests."""
        rates = np.array([service.process.rate_rps for service in self.model.services])
        return np.asarray(rates / rates.sum())
