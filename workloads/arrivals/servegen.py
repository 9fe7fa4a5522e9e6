"""Arrivals of a ServeGen pool: its clients superposed, each with its own rate and gap law in every window."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from workloads._pool import ClientPool, choose


@dataclass(frozen=True, slots=True)
class Servegen:
    """The times at which the clients of the pool in folder `path` send, in seconds.

    `rate_rps` scales all clients alike to this mean over the whole span of the pool (None: as published); the law of
    their neighbouring gaps stays. `clients` takes the ones with most requests only. Time 0 is `start_s` after the
    first window (midnight); when the span is over it begins again. Every client's counts vary as its gap law says.
    For lengths that go with the client of each request take the workload of the same name. Source: the folder
    (chunk-N-trace.csv, alibaba/ServeGen), whose hash is in `facts`.
    """

    path: str
    rate_rps: float | None = None
    clients: int | None = None
    start_s: float = 0.0
    pool: ClientPool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pool = choose(self.path, rate_rps=self.rate_rps, clients=self.clients, start_s=self.start_s)
        object.__setattr__(self, "pool", pool)

    @property
    def mean_rate_rps(self) -> float:
        """Mean rate over the span of the pool in requests per second."""
        return self.pool.mean_rate_rps

    @property
    def settles_s(self) -> float:
        """Shortest time in which the mean rate must show: the rates come round with the span of the pool."""
        return 2 * self.pool.span_s

    @property
    def facts(self) -> dict[str, object]:
        """The pool, its hash, how many of its clients."""
        return self.pool.facts

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        for times, _ in self.pool.blocks(rng):
            yield from times.tolist()
