"""Arrivals of a model that 'bench trace fit' wrote: a rate that bursts as the trace's did, at any mean rate."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from harness.bounds import Positive, check
from workloads.arrivals import _exact
from workloads.fit import _draw
from workloads.fit.model import Model


@dataclass(frozen=True, slots=True)
class Fitted:
    """The arrivals, in seconds, of all services of the model file `path`.

    `rate_rps` (default: the rate of the trace) multiplies the rate; its ups and downs keep their times and their
    depth, and the spread of neighbouring gaps stays: more clients of the same kind, not the same trace played faster.
    `service` names one service of a model that has several (one per tag of its trace). Over the first `over_s` seconds
    the path of the rate has that mean; a run of at most two hours is such a time unless `mean=long-run`: then the rate
    of a run of minutes is itself drawn. Source: the trace that the model was fitted to, whose SHA-256 is in `facts`.
    Gaps have no one law to test a run against.
    """

    path: str
    rate_rps: Positive | None = None
    service: str | None = None
    mean: _exact.Mean = "exact"
    over_s: Positive | None = None
    model: Model = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        _exact.check(self.mean, self.over_s)
        object.__setattr__(self, "model", Model.load(self.path).only(self.service))

    @property
    def mean_rate_rps(self) -> float:
        """Mean rate in requests per second, over a time much longer than the slowest ups and downs."""
        return self.model.rate_rps if self.rate_rps is None else self.rate_rps

    @property
    def facts(self) -> dict[str, object]:
        """The trace behind the model, and the parameters of each service."""
        arrivals = [service.process.text() for service in self.model.services]
        return {"model": self.path, **self.model.source, "arrivals": arrivals}

    def for_run(self, span_s: float) -> Self:
        return replace(self, over_s=_exact.window(self.mean, self.over_s, span_s))

    def times(self, rng: np.random.Generator, draws: int = 1) -> Iterator[float]:  # noqa: ARG002  # one is drawn
        for at_s, _ in _draw.arrivals(self.model, rng, self.rate_rps, self.over_s):
            yield from at_s.tolist()
