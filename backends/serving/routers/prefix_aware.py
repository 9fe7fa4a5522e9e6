"""Prefix aware: the replica that stores most of the prompt, unless requests are spread too unevenly.

Source: the cache-aware policy of SGLang's router and its default thresholds: where the busiest replica has more than
`uneven_requests` more requests, and more than `uneven_ratio` times as many, as the idlest, or where less than the share
`match` of the prompt is stored anywhere, the replica with the fewest requests; else the one with the longest match.
That router guesses what is stored; here it is known, as with events from the replicas. Without a prefix cache it is
least-requests.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from backends.serving.batch import VisibleRequest
from backends.serving.prefix_cache import chain
from backends.serving.replica import Replica
from harness.bounds import AtLeastZero, Checked, Share


@dataclass(frozen=True, slots=True)
class PrefixAware(Checked):
    """Uses the requests at each replica and the blocks that it stores."""

    match: Share = 0.5
    uneven_requests: AtLeastZero = 32
    uneven_ratio: Annotated[float, Meta(ge=1)] = 1.0001

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
