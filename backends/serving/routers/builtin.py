"""Which replica gets a request: the short rules, a class each."""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from backends.serving.batch import VisibleRequest
from backends.serving.plugins import draw
from backends.serving.replica import Replica


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

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the least busy replica."""
        counts = [len(replica.waiting) + replica.running for replica in replicas]
        return counts.index(min(counts))


@dataclass(frozen=True, slots=True)
class LeastOutstandingTokens:
    """Least outstanding tokens: the replica whose unanswered requests have the fewest prompt tokens; the first of
    equals.

    As a gateway does that counts the tokens it sent and has had no last token for; long prompts weigh what they are.

    Uses the prompt tokens of the requests at each replica that are not over.
    """

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  the load is what it was
        """Index of the replica with the fewest tokens to answer."""
        return min(range(len(replicas)), key=lambda i: replicas[i].prompt_tokens)


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue: the replica with the fewest waiting requests; of equals the one with the fewest running, then the first.

    Source: the policy `queue` of Llumnix (Sun et al., OSDI 2024), its comparison "queue-size balancing".

    Uses how many requests hold no memory yet, and how many do.
    """

    def route(self, request: VisibleRequest, replicas: ListOf[Replica]) -> int:  # noqa: ARG002  every request is equal
        """Index of the replica with the shortest queue."""
        return min(range(len(replicas)), key=lambda i: (len(replicas[i].waiting), replicas[i].running))
