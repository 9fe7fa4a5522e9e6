"""Sessions of the simplest laws, a class each."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from harness.bounds import AtLeastOne, Checked, NotNegative
from workloads.mixed import Streams, Tasks
from workloads.sessions._conversation import BLOCK_TOKENS, conversations


@dataclass(frozen=True, slots=True)
class Single:
    """No sessions: every arrival is one request and belongs to nothing (the default).

    One request an arrival, with the tokens of the lengths. Source: nothing is drawn.
    """

    @property
    def block_tokens(self) -> int:
        """Nothing is shared."""
        return BLOCK_TOKENS

    @property
    def mean_requests(self) -> float:
        return 1.0

    def tasks(self, count: int, streams: Streams) -> Tasks:
        """The next `count` tasks of one request each."""
        return conversations(np.ones(count, np.int64), streams, np.zeros, None, self.block_tokens)


@dataclass(frozen=True, slots=True)
class Fixed(Checked):
    """Conversations of the same number of turns, with the same think time after each answer.

    `turns` turns, each `think_s` seconds after the answer before. Source: nothing is drawn but the lengths.

    Lengths are those of the new tokens of a turn and of its answer; the prompt holds the history too, of which
    the oldest turns are dropped where it would pass `truncate_at_tokens` (default: nothing is dropped).
    """

    turns: Annotated[int, Meta(ge=1, le=100_000)] = 3
    think_s: NotNegative = 10.0
    truncate_at_tokens: AtLeastOne | None = None
    block_tokens: AtLeastOne = BLOCK_TOKENS

    @property
    def mean_requests(self) -> float:
        return float(self.turns)

    def tasks(self, count: int, streams: Streams) -> Tasks:
        sizes = np.full(count, self.turns)
        return conversations(
            sizes, streams, lambda n: np.full(n, self.think_s), self.truncate_at_tokens, self.block_tokens
        )


@dataclass(frozen=True, slots=True)
class Geometric(Checked):
    """Conversations that go on with the same probability after every answer, with exponential think times.

    A geometric number of turns with mean `mean`, exponential think times with mean `think_s` seconds.

    It has no memory: real conversations that have gone on for long are likelier to go on (see `burstgpt`).
    Lengths are those of the new tokens of a turn and of its answer; the prompt holds the history too, of which
    the oldest turns are dropped where it would pass `truncate_at_tokens` (default: nothing is dropped). Source:
    the usual assumption, a toy to compare with.
    """

    mean: Annotated[float, Meta(ge=1, le=1000)] = 3.0
    think_s: NotNegative = 10.0
    truncate_at_tokens: AtLeastOne | None = None
    block_tokens: AtLeastOne = BLOCK_TOKENS

    @property
    def mean_requests(self) -> float:
        return self.mean

    def tasks(self, count: int, streams: Streams) -> Tasks:
        uniform, sizes = streams.sizes.random(count), np.ones(count, np.int64)
        if self.mean != 1:
            sizes = np.asarray(1 + np.floor(np.log1p(-uniform) / math.log1p(-1 / self.mean)).astype(np.int64))
        return conversations(
            sizes,
            streams,
            lambda n: np.asarray(-self.think_s * np.log1p(-streams.delays.random(n))),
            self.truncate_at_tokens,
            self.block_tokens,
        )
