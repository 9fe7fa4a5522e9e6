"""A workload of clients: times and lengths of each client's requests, drawn together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from harness.bounds import AtLeastOne, NotNegative, Positive, check
from harness.data.records import schedule_chunk
from workloads._pool import ClientPool, choose
from workloads._token_laws import TokenLaws, counted
from workloads.trace_rows import extra_columns


@dataclass(frozen=True, slots=True)
class Clients:
    """The requests of a ServeGen pool in folder `path`; each has its client as `tag` ('client-12').

    `rate_rps` scales all clients alike to this mean over the whole span of the pool (None: as published), `clients`
    takes the ones with most requests only, time 0 is `start_s` seconds after the first window (midnight). Bursts of a
    client come with this client's lengths, which a mix of independent arrivals and lengths does not have. Prompts of a
    multimodal pool contain the tokens of their images, audio and video; those of images stand in the `extra` of each
    request (image_tokens). Clients without token counts are left out and named. Source: the folder (alibaba/ServeGen),
    whose hash is in `facts`.
    """

    path: str
    rate_rps: Positive | None = None
    clients: AtLeastOne | None = None
    start_s: NotNegative = 0.0
    pool: ClientPool = field(init=False, repr=False, compare=False)
    laws: TokenLaws = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        pool = choose(self.path, rate_rps=self.rate_rps, clients=self.clients, start_s=self.start_s, usable=counted)
        object.__setattr__(self, "pool", pool)
        object.__setattr__(self, "laws", TokenLaws.of(pool.clients))

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
        """The pool, its hash, and the largest share of requests of 0 tokens in a law (they are not drawn)."""
        return {**self.pool.facts, "tokenizer": "that of the model served", "zero_tokens_left_out": self.laws.left_out}

    def describe(self) -> Mapping[str, object]:
        return self.facts

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:
        """Endless chunks of the schedule."""
        times_rng, tokens_rng = rng.spawn(2)
        tags = pa.array([f"client-{client.number}" for client in self.pool.clients], pa.string())
        first = 0
        for times, client in self.pool.blocks(times_rng):
            law = self.laws.of_requests(client, self.pool.pool_time_s(times))
            drawn = self.laws.draw(law, tokens_rng)
            images = {} if drawn.image_tokens is None else {"image_tokens": drawn.image_tokens}
            yield schedule_chunk(
                len(times),
                id=np.arange(first, first + len(times)),
                scheduled_s=times,
                prompt_tokens=drawn.prompts,
                output_tokens=drawn.outputs,
                tag=tags.take(pa.array(client)),
                **({"extra": extra_columns(len(times), images)} if images else {}),
            )
            first += len(times)
