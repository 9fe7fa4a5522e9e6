"""A cluster: replicas behind a router."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.serving.plugins import Router
    from backends.serving.replica import Replica
    from harness.api import Request


class Cluster:
    """Sends each request to the replica that the router names."""

    __slots__ = ("_route", "replicas", "watches")

    def __init__(self, replicas: ListOf[Replica], router: Router) -> None:
        self.replicas = replicas
        self._route = router.route if len(replicas) > 1 else None
        self.watches = self._route is not None and bool(getattr(router, "watches", False))

    def add(self, request: Request, now_s: float) -> tuple[int, str | None]:
        """Queue a request: (index of the replica, why not if it can never be served there)."""
        index = 0 if self._route is None else self._route(request, self.replicas)
        return index, self.replicas[index].add(request, now_s)

    def check(self) -> None:
        """Integrity of every replica."""
        for replica in self.replicas:
            replica.check()

    def __repr__(self) -> str:
        return f"<Cluster {list(self.replicas)!r}>"
