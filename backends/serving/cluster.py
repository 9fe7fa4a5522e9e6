"""A cluster: replicas behind a router, perhaps with prefill and decode apart."""

from collections.abc import Sequence as ListOf

from backends.serving.batch import VisibleRequest
from backends.serving.handoff import HandOffs, arrived_prefilled
from backends.serving.plugins import Router, StepRouter
from backends.serving.replica import Replica
from harness.api import Request


class Cluster:
    """Sends each request to the replica that the router names.

    With `handoffs` the router chooses among the replicas that are not for decode alone; where there are none, requests
    come with their prompts computed.
    """

    __slots__ = ("_entries", "_route", "handoffs", "replicas", "watches")

    def __init__(self, replicas: ListOf[Replica], router: Router, handoffs: HandOffs | None = None) -> None:
        self.replicas = replicas
        self.handoffs = handoffs
        self._entries = replicas if handoffs is None else [r for r in replicas if r.inbox is None]
        self._route = router.route if len(self._entries) > 1 else None
        self.watches = self._route is not None and isinstance(router, StepRouter) and router.watches

    def add(self, request: Request, now_s: float) -> tuple[int, str | None]:
        """Queue a request: (index of the replica, why not if it can never be served there)."""
        if self.handoffs is not None:
            refusal = self.handoffs.decode[0].refusal(request)
            if refusal is not None or not self._entries:
                return self._offer(request, refusal, self.handoffs, now_s)
        index = 0 if self._route is None else self._route(VisibleRequest(request), self._entries)
        return index, self._entries[index].add(request, now_s)

    @staticmethod
    def _offer(request: Request, refusal: str | None, handoffs: HandOffs, now_s: float) -> tuple[int, str | None]:
        if refusal is not None:
            return handoffs.decode[0].index, refusal
        return handoffs.offer(arrived_prefilled(request, now_s), None).index, None

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be served here, or None. Callable at any time."""
        sides = self._entries[:1] if self.handoffs is None else [*self._entries[:1], self.handoffs.decode[0]]
        return next((reason for side in sides if (reason := side.refusal(request)) is not None), None)

    def check(self) -> None:
        """Integrity of every replica."""
        for replica in self.replicas:
            replica.check()

    def __repr__(self) -> str:
        return f"<Cluster {list(self.replicas)!r}>"
