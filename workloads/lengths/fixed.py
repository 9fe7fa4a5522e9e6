"""Fixed lengths: every request has the same prompt and output length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from workloads._checks import token_counts

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Fixed:
    """`prompt_tokens` in and `output_tokens` out, always. Source: nothing is drawn.

    The defaults are those of figure 1 of DistServe (OSDI 2024).
    """

    prompt_tokens: int = 512
    output_tokens: int = 64

    def __post_init__(self) -> None:
        token_counts(prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens)

    @property
    def mean_tokens(self) -> tuple[float, float]:
        return float(self.prompt_tokens), float(self.output_tokens)

    def pairs(self, rng: np.random.Generator) -> Iterator[tuple[int, int]]:  # noqa: ARG002  # nothing is random here
        return repeat((self.prompt_tokens, self.output_tokens))
