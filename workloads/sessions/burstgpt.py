"""Conversations as in BurstGPT: the longer one has gone on the likelier it goes on, and people take hours at times."""

from dataclasses import dataclass, field

import numpy as np

from harness.bounds import AtLeastOne, Positive, check
from workloads.mixed import Streams, Tasks
from workloads.sessions._conversation import BLOCK_TOKENS, conversations

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
"""Quantiles of the time from one request of a conversation to its next, part 3. The ends are ours: the least is the
grain of the stamps, the greatest gives the published mean of 5,709 s."""


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """Turns and think times of the ChatGPT conversations of BurstGPT.

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
        ranks, seconds = np.array(THINK_S).T
        return conversations(
            sizes,
            streams,
            lambda n: np.asarray(
                self.think_scale * np.exp(np.interp(streams.delays.random(n), ranks, np.log(seconds)))
            ),
            self.truncate_at_tokens,
            self.block_tokens,
        )
