"""Conversations, each prompt of which is the history so far and something new: a class for each law of their turns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from harness.bounds import AtLeastOne, Checked, NotNegative, Positive, check
from workloads.mixed import Streams, Tasks, starts_of

BLOCK_TOKENS = 64
"""Tokens of a named block: small enough to share nearly all of a history, large enough to keep a schedule small."""

CONVERSATIONS = (18809, 10879, 6411, 4040, 2782, 2006, 1521, 1114, 950, 704, 574, 475, 411, 315,
                 258, 264, 215, 170, 150, 117, 97, 123, 88, 69, 73, 76, 66, 54)  # fmt: skip
"""Conversations of 1, 2, ... 28 requests: BurstGPT (KDD 2025), figure 9, read off its vector graphics."""

LONGEST = 436
"""Requests of the longest conversation of BurstGPT part 3."""

LONG_SHARE, LONG_EXPONENT = 0.0133, 3.0
"""Beyond the figure: P(K > k) falls as k**-3 from 1.33% at 28 to 0 at 436, which gives the mean (4.18) and the 99th
percentile (31) that are published for part 3."""

THINK_S = ((0.0, 1.0), (0.1, 20.0), (0.25, 42.0), (0.327, 60.0), (0.5, 131.0), (0.66, 300.0), (0.75, 533.0),
           (0.9, 2340.0), (0.99, 78903.0), (1.0, 940_000.0))  # fmt: skip
"""Quantiles of the time from one request of a conversation to its next, BurstGPT part 3. The ends are ours: the least
is the grain of the stamps, the greatest gives the published mean of 5,709 s."""


def law(known: tuple[float, ...], quantiles: tuple[float, ...], ranks: np.ndarray) -> np.ndarray:
    """Values at ranks in [0, 1), log-linear between the quantiles at the `known` ranks; of 0 as of a hundredth."""
    return np.asarray(np.exp(np.interp(ranks, known, np.log(np.maximum(quantiles, 0.01)))))


def conversations(
    sizes: np.ndarray,
    streams: Streams,
    think_s: Callable[[int], np.ndarray],
    truncate_at_tokens: int | None,
    block_tokens: int,
) -> Tasks:
    """Conversations of `sizes` (tasks,) turns; `think_s(n)` draws n times from an answer to the next turn.

    A prompt is the history (earlier new parts and answers) and the new part. One that would be longer
    than `truncate_at_tokens` drops the oldest turns, each with its answer, until it fits; a new part that is too
    long alone is sent alone. What was dropped stays dropped. A prompt starts with the same named blocks as the one
    before it in its conversation, unless something was dropped in between.
    """
    first = starts_of(sizes)
    begin = np.repeat(first, sizes)  # (M,) first row of the conversation of each row
    rows = np.arange(len(begin))
    new, answer = streams.pairs(len(rows))
    before = np.cumsum(new + answer) - (new + answer)  # (M,) tokens before each row, over all conversations
    oldest = _oldest_kept(before, new, begin, truncate_at_tokens)
    prompt = before - before[oldest] + new
    delay_s = np.zeros(len(rows))
    delay_s[rows > begin] = think_s(int((rows > begin).sum()))
    blocks = np.where(np.repeat(sizes > 1, sizes), -(-prompt // block_tokens), 0)  # one alone shares nothing
    return Tasks(
        sizes,
        rows - begin,
        prompt,
        answer,
        delay_s,
        rows - 1,
        (rows > begin).astype(np.int64),
        blocks,
        _first_block(oldest, blocks, begin, first),
    )


def _oldest_kept(before: np.ndarray, new: np.ndarray, begin: np.ndarray, limit: int | None) -> np.ndarray:
    """(M,) row of the oldest turn that the prompt of each row still holds."""
    if limit is None:
        return begin
    fits = np.searchsorted(before, before + new - limit)  # the first row after which all together fit
    # Never back: a turn that was dropped stays dropped, even where a later prompt would have room for it.
    return np.asarray(np.maximum.accumulate(np.clip(fits, begin, np.arange(len(before)))))


def _first_block(oldest: np.ndarray, blocks: np.ndarray, begin: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(M,) number of the first block: prompts that start at the same turn share it, others have blocks of their own."""
    last = np.ones(len(oldest), bool)  # of the prompts that start at its oldest turn
    last[:-1] = (oldest[1:] != oldest[:-1]) | (begin[1:] != begin[:-1])
    used = np.cumsum(np.where(last, blocks, 0))
    before = np.concatenate(([0], used[:-1]))
    return np.asarray(before - before[begin]) if len(first) else before[:0]


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


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """Conversations as in BurstGPT: the longer one has gone on the likelier it goes on, and people take hours at times.

    Turns and think times of the ChatGPT conversations of BurstGPT.

    Turns: the counts of figure 9 up to 28, a power law beyond (mean 4.19, 36% have one turn, 10% more than 9).
    Think times: log-linear between the published quantiles (median 131 s, 66% below 300 s), times `think_scale`
    (make it small to see follow-ups in a short run). The source measures from request to request, so it counts
    the answer in; here the time begins after the answer, seconds later. Lengths are those of the new tokens of a
    turn and of its answer; the prompt holds the history too, of which the oldest turns are dropped where it would
    pass `truncate_at_tokens` (default: 2,045, where the requests of figure 7 end). Source: BurstGPT (KDD 2025)
    and audits of part 3, CC-BY-4.0.
    """

    think_scale: Positive = 1.0
    truncate_at_tokens: AtLeastOne | None = 2045
    block_tokens: AtLeastOne = BLOCK_TOKENS
    turns: np.ndarray = field(init=False, repr=False, compare=False)  # (436,) cumulative share of 1, 2, ... turns

    def __post_init__(self) -> None:
        check(self)
        counted = np.array(CONVERSATIONS, float)
        beyond = np.arange(len(counted), LONGEST + 1) ** -LONG_EXPONENT  # as P(K > k), up to a line
        tail = (beyond - beyond[-1]) / (beyond[0] - beyond[-1])
        shares = np.concatenate(((1 - LONG_SHARE) * counted / counted.sum(), -LONG_SHARE * np.diff(tail)))
        object.__setattr__(self, "turns", np.cumsum(shares))

    @property
    def mean_requests(self) -> float:
        return float(1 + (1 - self.turns[:-1]).sum())

    def tasks(self, count: int, streams: Streams) -> Tasks:
        sizes = 1 + np.searchsorted(self.turns[:-1], streams.sizes.random(count), side="right")
        ranks, seconds = zip(*THINK_S, strict=True)
        return conversations(
            sizes,
            streams,
            lambda n: self.think_scale * law(ranks, seconds, streams.delays.random(n)),
            self.truncate_at_tokens,
            self.block_tokens,
        )
