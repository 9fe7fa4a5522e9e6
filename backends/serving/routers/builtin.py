"""Which replica gets a request: the short rules, a class each."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from backends.serving.batch import VisibleRequest
from backends.serving.plugins import draw
from backends.serving.prefix_cache import chain
from backends.serving.replica import Replica
from harness.bounds import AtLeastZero, Share, check


@dataclass(slots=True)
class RoundRobin:
    """Round robin: replicas in turn, regardless of load.

    Counts the requests that it has routed.
    """

    _turn: int = field(default=0, init=False)

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        index = self._turn % len(replicas)
        self._turn += 1
        return index


@dataclass(slots=True)
class Random:
    """Random: any replica, each as likely as the others; the same choices for the same seed.

    A counter-based generator, so that the core draws nothing.
    """

    seed: int = 0
    _turn: int = field(default=0, init=False)

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """The next draw."""
        self._turn += 1
        return draw(self.seed, self._turn) * len(replicas) >> 64


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """Least requests: the replica with the fewest waiting and running requests; the first of equals.

    Uses the number of requests at each replica, as a gateway that counts what it sent.
    """

    def load(self, replica: Replica) -> int:
        """Requests there."""
        return len(replica.waiting) + replica.running


@dataclass(frozen=True, slots=True)
class LeastOutstandingTokens:
    """Least outstanding tokens: the replica whose unanswered requests have the fewest prompt tokens; the first of
    equals.

    As a gateway does that counts the tokens it sent and has had no last token for; long prompts weigh what they are.

    Uses the prompt tokens of the requests at each replica that are not over.
    """

    def load(self, replica: Replica) -> int:
        """Prompt tokens that are not answered."""
        return replica.prompt_tokens


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue: the replica with the fewest waiting requests; of equals the one with the fewest running, then the first.

    Source: the policy `queue` of Llumnix (Sun et al., OSDI 2024), its comparison "queue-size balancing".

    Uses how many requests hold no memory yet, and how many do.
    """

    def load(self, replica: Replica) -> tuple[int, int]:
        """Requests that wait, then those that run."""
        return len(replica.waiting), replica.running


@dataclass(frozen=True, slots=True)
class PrefixAware:
    """Prefix aware: the replica that stores most of the prompt, unless requests are spread too unevenly.

    Source: the cache-aware policy of SGLang's router and its default thresholds: where the busiest replica has more
    than `uneven_requests` more requests, and more than `uneven_ratio` times as many, as the idlest, or where less
    than the share `match` of the prompt is stored anywhere, the replica with the fewest requests; else the one with
    the longest match. That router guesses what is stored; here it is known, as with events from the replicas. Without
    a prefix cache it is least-requests.

    Uses the requests at each replica and the blocks that it stores."""

    match: Share = 0.5
    uneven_requests: AtLeastZero = 32
    uneven_ratio: Annotated[float, Meta(ge=1)] = 1.0001

    def __post_init__(self) -> None:
        check(self)

    @property
    def watches(self) -> bool:
        """True: decoding takes blocks, and with them what they stored."""
        return True

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:
        """Index of the replica with the longest match (of equals the least busy one), or of the least busy."""
        counts = [len(replica.waiting) + replica.running for replica in replicas]
        most, least = max(counts), min(counts)
        if most - least > self.uneven_requests and most > least * self.uneven_ratio:
            return counts.index(least)
        keys = chain(request, replicas[0].blocks.size).keys
        stored = [0 if replica.cache is None else replica.cache.stored_tokens(keys) for replica in replicas]
        if max(stored) < max(1, self.match * request.prompt_tokens):
            return counts.index(least)
        return max(range(len(replicas)), key=lambda i: (stored[i], -counts[i]))
