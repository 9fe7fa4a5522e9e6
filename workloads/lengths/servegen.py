"""Lengths of a ServeGen pool: the mixture of what its clients send, prompt and output of one client together."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from workloads._pool import ClientPool, choose
from workloads._token_laws import TokenLaws, counted
from workloads.lengths._empirical import CHUNK


@dataclass(frozen=True, slots=True)
class Servegen:
    """Prompt and output tokens of requests of the pool in folder `path`, without regard to time.

    For every request a client and a window are drawn by their share of the requests, then prompt and output each from
    its law there. `clients` takes the ones with most requests only; those without token counts are left out and named.
    Prompts of a multimodal pool contain the tokens of their images, audio and video. Other fields (reason_ratio) are
    not used. Source: the folder (chunk-N-dataset.json, alibaba/ServeGen), whose hash is in `facts`.
    """

    path: str
    clients: int | None = None
    pool: ClientPool = field(init=False, repr=False, compare=False)
    laws: TokenLaws = field(init=False, repr=False, compare=False)
    shares: np.ndarray = field(init=False, repr=False, compare=False)  # (laws,)

    def __post_init__(self) -> None:
        pool = choose(self.path, rate_rps=None, clients=self.clients, start_s=0.0, usable=counted)
        object.__setattr__(self, "pool", pool)
        object.__setattr__(self, "laws", TokenLaws.of(pool.clients))
        object.__setattr__(self, "shares", self._shares())

    @property
    def mean_tokens(self) -> tuple[float, float]:
        prompt, output = self.shares @ self.laws.means()
        return float(prompt), float(output)

    @property
    def facts(self) -> dict[str, object]:
        """The pool, its hash, and the largest share of requests of 0 tokens in a law (they are not drawn)."""
        return {**self.pool.facts, "tokenizer": "that of the model served", "zero_tokens_left_out": self.laws.left_out}

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        edges = np.cumsum(self.shares)
        while True:
            law = np.searchsorted(edges, rng.random(CHUNK) * edges[-1], side="right")
            drawn = self.laws.draw(law, rng)
            yield from zip(drawn.prompts.tolist(), drawn.outputs.tolist(), strict=True)

    def _shares(self) -> np.ndarray:
        """(laws,) share of the requests that each law holds for."""
        shares = np.zeros(len(self.laws.means()))
        for i, client in enumerate(self.pool.clients):
            law = self.laws.of_requests(np.full(len(client.start_s), i), client.start_s)
            np.add.at(shares, law, client.rate_rps)
        return np.asarray(shares / shares.sum())
