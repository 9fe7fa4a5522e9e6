"""A closed loop: users who each wait for their answer, think, and send the next request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from harness.bounds import Checked, NotNegative, Positive

Law = Literal["exponential", "fixed"]
MOST_USERS = 1_000_000
CHUNK = 4096  # requests drawn at once, or one of each user where there are more users


class Cycles(NamedTuple):
    """Requests in order of their earliest time (s), the number of the user, and the think time before it."""

    at_s: np.ndarray
    user: np.ndarray
    think_s: np.ndarray


@dataclass(frozen=True, slots=True)
class Closed(Checked):
    """`users` users, each with one request under way: the next one comes `think_s` seconds after the answer.

    Think times are exponential with that mean, or all the same (`law=fixed`). Users start at 0, or evenly spread
    over `ramp_s` seconds. A request that failed does not stop its user. The schedule holds the earliest time of
    each request, as if answers took no time; so that a duration bounds it, a cycle is taken to last at least
    `least_cycle_s` even without think time, which also is the fastest that a user can go. Where requests come in
    sessions a user has one after the other, and `think_s` is between them; `steady` users begin at a random moment of a
    session, long ones the likelier, as one finds users at work. The rate follows from the answers, so it cannot be set;
    `mean_rate_rps` is that of the earliest times of single requests, the highest possible, in requests per second.
    Source: closed systems in Schroeder, Wierman, Harchol-Balter, Open Versus Closed, NSDI 2006.
    """

    users: Annotated[int, Meta(ge=1, le=MOST_USERS)] = 32
    think_s: NotNegative = 2.0
    ramp_s: NotNegative = 0.0
    law: Law = "exponential"
    least_cycle_s: Positive = 0.05
    steady: bool = False

    def warm_up(self, begun: int) -> str:
        """What is not measured where that many users begin with a request that warms the cache."""
        return f"{self.ramp_s:g}s" if self.ramp_s else str(begun)

    @property
    def mean_rate_rps(self) -> float:
        """Highest possible mean rate in requests per second: that of answers which take no time."""
        if self.law == "fixed" or self.think_s == 0:
            return self.users / max(self.think_s, self.least_cycle_s)
        # by E[max(think, least cycle)]
        beyond_s = self.think_s * float(np.exp(-self.least_cycle_s / self.think_s))
        return self.users / (self.least_cycle_s + beyond_s)

    def cycles(self, rng: np.random.Generator) -> Iterator[Cycles]:
        """Endless requests of all users, in chunks ordered by earliest time; ties in order of the users."""
        start_s = self.ramp_s * np.arange(self.users) / self.users
        waiting = Cycles(start_s, np.arange(self.users), np.zeros(self.users))
        last_s = start_s
        rounds = max(1, CHUNK // self.users)
        while True:
            if self.law == "fixed":
                think_s = np.full((rounds, self.users), float(self.think_s))
            else:
                think_s = rng.exponential(self.think_s, (rounds, self.users))
            cycle_s = np.maximum(think_s, self.least_cycle_s)
            cycle_s[0] += last_s
            at_s = np.cumsum(cycle_s, axis=0)  # (rounds, users)
            last_s = at_s[-1]
            users = np.broadcast_to(np.arange(self.users), at_s.shape)
            drawn = (at_s.ravel(), users.ravel(), think_s.ravel())
            merged = Cycles(*(np.concatenate(pair) for pair in zip(waiting, drawn, strict=True)))
            due = merged.at_s < last_s.min()  # none comes earlier: the next of each user is later than its last
            waiting = Cycles(*(column[~due] for column in merged))
            ready = Cycles(*(column[due] for column in merged))
            order = np.lexsort((ready.user, ready.at_s))
            yield Cycles(*(column[order] for column in ready))

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Endless earliest times in seconds, as if answers took no time."""
        for chunk in self.cycles(rng):
            yield from chunk.at_s.tolist()
