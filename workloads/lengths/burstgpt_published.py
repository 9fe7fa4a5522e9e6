"""Lengths of BurstGPT's own generator: two independent Zipf laws, which are far from the data it was made for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from workloads._checks import token_counts

CHUNK = 4096  # pairs drawn at once, whatever the caller takes


@dataclass(frozen=True, slots=True)
class BurstgptPublished:
    """Prompt and output tokens, each with probability proportional to k**-`exponent` for k below `below_tokens`.

    Zipf draws of exponent 1.1 that are repeated until they are below 1,024, as the published code does, are this law.
    Warning: for repeating published results only; its median prompt is 12 tokens, that of BurstGPT's conversations
    517. Use `burstgpt` for those. Source: HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py (MIT).
    """

    exponent: float = 1.1
    below_tokens: int = 1024

    def __post_init__(self) -> None:
        token_counts(below_tokens=self.below_tokens)
        if self.below_tokens < 2 or self.below_tokens > 1 << 20:
            raise ValueError(f"below_tokens must be between 2 and {1 << 20}, got {self.below_tokens}.")
        if not (math.isfinite(self.exponent) and 0 <= self.exponent <= 20):
            raise ValueError(f"exponent must be between 0 and 20, got {self.exponent:g}.")

    @property
    def mean_tokens(self) -> tuple[float, float]:
        mean = float(np.arange(1, self.below_tokens) @ self._shares())
        return mean, mean

    @property
    def facts(self) -> Mapping[str, object]:
        return {
            "source": "HPMLL/BurstGPT @ e92f533b, example/profile_server/server.py",
            "licence": "MIT (example code)",
            "warning": "a Zipf law of exponent 1.1 is at a distance of 0.5 (KS) from the lengths of BurstGPT",
            "remedy": "keep it for repeating published results; --lengths burstgpt is like the traces",
        }

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
        edges = np.cumsum(self._shares())
        while True:
            ranks = np.minimum(np.searchsorted(edges, rng.random((2, CHUNK)), side="right"), len(edges) - 1)
            yield from zip(*(1 + ranks).tolist(), strict=True)

    def _shares(self) -> np.ndarray:
        """(below_tokens - 1,) probability of 1, 2, ..."""
        weights = np.arange(1, self.below_tokens, dtype=float) ** -self.exponent
        return np.asarray(weights / weights.sum())
