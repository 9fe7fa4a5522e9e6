"""Conversations of the same number of turns, with the same think time after each answer."""

from dataclasses import dataclass

import numpy as np

from workloads.mixed import Streams, Tasks
from workloads.sessions._conversation import BLOCK_TOKENS, check, conversations


@dataclass(frozen=True, slots=True)
class Fixed:
    """`turns` turns, each `think_s` seconds after the answer before. Source: nothing is drawn but the lengths.

    Lengths are those of the new tokens of a turn and of its answer; the prompt holds the history too, of which
    the oldest turns are dropped where it would pass `truncate_at_tokens` (default: nothing is dropped).
    """

    turns: int = 3
    think_s: float = 10.0
    truncate_at_tokens: int | None = None
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 100_000:
            raise ValueError(f"turns must be between 1 and 100000, got {self.turns}.")
        if self.think_s < 0:
            raise ValueError(f"think_s must not be negative, got {self.think_s:g}.")
        check(self.truncate_at_tokens, self.block_tokens)

    @property
    def mean_requests(self) -> float:
        return float(self.turns)

    def tasks(self, count: int, streams: Streams) -> Tasks:
        sizes = np.full(count, self.turns)
        return conversations(
            sizes, streams, lambda n: np.full(n, self.think_s), self.truncate_at_tokens, self.block_tokens
        )
