"""Prefix aware: the replica that stores most of the prompt, unless requests are spread too unevenly.

Source: the cache-aware policy of SGLang's router and its default thresholds: where the busiest replica has more than
`uneven_requests` more requests, and more than `uneven_ratio` times as many, as the idlest, or where less than the share
`match` of the prompt is stored anywhere, the replica with the fewest requests; else the one with the longest match.
That router guesses what is stored; here it is known, as with events from the replicas. Without a prefix cache it is
least-requests.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from backends.serving.batch import VisibleRequest
from backends.serving.prefix_cache import chain
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class PrefixAware:
    """Uses the requests at each replica and the blocks that it stores."""

    match: float = 0.5
    uneven_requests: int = 32
    uneven_ratio: float = 1.0001

    def __post_init__(self) -> None:
        if not 0 <= self.match <= 1:
            raise ValueError(f"match must be a share in [0, 1], got {self.match}")
        if self.uneven_requests < 0 or self.uneven_ratio < 1:
            raise ValueError(
                f"uneven_requests must be at least 0 and uneven_ratio at least 1, got {self.uneven_requests} and "
                f"{self.uneven_ratio}"
            )

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
