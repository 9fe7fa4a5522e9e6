"""A cluster: replicas behind a router, perhaps with prefill and decode apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from backends.serving.batch import Sequence, VisibleRequest
from backends.serving.handoff import Link, Links, arrived_prefilled
from backends.serving.hierarchy import Hierarchy
from backends.serving.plugins import LoadRouter, OneRole, Router, StepRouter, StepTimes
from backends.serving.replica import Replica, Role
from backends.serving.routing import NONE_UP, DecidingRouter, PeriodicRouter, Requirements, acts, requirements
from harness.api import LatencyModel, Request
from harness.errors import UsageError

if TYPE_CHECKING:
    Route = Callable[[VisibleRequest, ListOf[Replica]], int]


@dataclass(frozen=True, slots=True)
class Member:
    """What a cluster knows of a replica besides its state: GPUs, how long its steps take where a model says so, and the
    name of the base model that it serves, by which requests ask for it."""

    gpus: int = 1
    model: LatencyModel | None = None
    serves: str = ""


def give_model(replica: Replica, member: Member) -> None:
    """Let the policy of a replica know its latency model, where there is one and it needs to."""
    for lane in dict.fromkeys((replica, *replica.lanes)):
        if member.model is not None and isinstance(lane.policy, StepTimes):
            lane.policy.use_model(member.model)


def route_of(router: Router | LoadRouter | DecidingRouter | None) -> Route | None:
    """How a router without time chooses; None for others."""
    if router is None or isinstance(router, DecidingRouter):
        return None
    if isinstance(router, Router):
        return router.route
    load = router.load

    def least(_: VisibleRequest, replicas: ListOf[Replica]) -> int:
        loads = [load(replica) for replica in replicas]
        return loads.index(min(loads))

    return least


class Loads:
    """The loads of the replicas of a cluster, worked out again where a replica has changed.

    `settle` brings a replica to what it is now; False where it is that already. Without it loads follow from changes
    alone.
    """

    __slots__ = ("_heap", "_load", "_loads", "_replicas", "_settle", "changed")

    def __init__(self, router: LoadRouter, replicas: list[Replica], settle: Callable[[int], bool] | None) -> None:
        self._load = router.load
        self._replicas = replicas
        self._settle = settle
        self._loads = [router.load(replica) for replica in replicas]
        self._heap = [(load, index) for index, load in enumerate(self._loads)]  # with older loads among them
        heapify(self._heap)
        self.changed: set[int] = set()

    def least(self) -> int:
        """Index of the replica with the least load, the first of equals."""
        heap, loads = self._heap, self._loads
        for index in self.changed:
            self._look(index)
        self.changed.clear()
        if len(heap) > 8 * len(loads):
            heap[:] = [(load, index) for index, load in enumerate(loads)]
            heapify(heap)
        while True:
            load, index = heap[0]
            if load != loads[index]:
                heappop(heap)
            # What was looked at earlier is no more than the load now, so that only the first must be looked at again.
            elif self._settle is None or not self._settle(index):
                return index
            else:
                self._look(index)

    def _look(self, index: int) -> None:
        load = self._load(self._replicas[index])
        if load != self._loads[index]:
            self._loads[index] = load
            heappush(self._heap, (load, index))


class Cluster:
    """Sends each request to the replica that the router names.

    Requests go to the open replicas that are not for decode alone; in a cluster without any, they come with their
    prompts computed. `handoff_router` chooses among the decode replicas, `build(role)` makes a further replica.

    Of several base models each has one of `routers`; a request that names none is for the model of the first replica.
    """

    __slots__ = ("_apart", "_decode_route", "_entries", "_of_model", "_route", "_routes", "build", "decodes",
                 "hierarchy", "links", "members", "planned", "pull", "replicas", "router", "watches",
                 "weighs")  # fmt: skip

    def __init__(
        self,
        replicas: list[Replica],
        router: Router | LoadRouter | DecidingRouter,
        handoff_router: Router | LoadRouter | None = None,
        link: Link | None = None,
        *,
        pull: bool = True,
        members: list[Member] | None = None,
        build: Callable[[Role], tuple[Replica, Member]] | None = None,
        hierarchy: Hierarchy | None = None,
        routers: Mapping[str, Router | LoadRouter | DecidingRouter] | None = None,
    ) -> None:
        self.replicas = replicas
        self.members = [Member()] * len(replicas) if members is None else members
        self.router = router
        self.links = Links(link or Link())
        self.pull = pull
        self.build = build
        self.hierarchy = hierarchy
        if hierarchy is not None:
            for replica in replicas:
                hierarchy.attach(replica)
        self.planned: dict[int, int] = {}  # request id: decode replica that the router has chosen
        self._route, self._decode_route = route_of(router), route_of(handoff_router)
        # By base model where there are several: how its router chooses, and its open replicas.
        self._routes = {} if routers is None else {name: route_of(own) for name, own in routers.items()}
        self._of_model: dict[str, list[Replica]] = {}
        self.weighs = None if isinstance(router, (DecidingRouter, Router)) else router
        self.watches = len(replicas) > 1 and isinstance(router, StepRouter) and router.watches
        self._apart = any(replica.role == "decode" for replica in replicas)
        for replica, member in zip(self.replicas, self.members, strict=True):
            give_model(replica, member)
        self._refuse_unmet(requirements(router))
        self.refresh()

    def _refuse_unmet(self, needs: Requirements) -> None:
        """Raise UsageError for a router or policy that would do nothing here, or would fail in the middle of a run."""
        if self._routes and isinstance(self.router, PeriodicRouter):
            raise UsageError("The router moves work between replicas of one model; give another one, or no groups.")
        if needs.layout == "mixed" and self._apart:
            raise UsageError(
                "The router acts on replicas alike and would do nothing here; give replicas=4 instead of prefill and "
                "decode, or another router."
            )
        if needs.layout == "apart" and not self._apart:
            raise UsageError(
                "The router acts on prefill and decode replicas and would do nothing here; give prefill=2 and decode=2 "
                "instead of replicas, or another router."
            )
        if needs.scales and self.build is None:
            raise UsageError(
                "The router adds replicas, and this cluster cannot grow; give another router, or a simulated cluster."
            )
        if needs.lends and any(r.cache is not None or r.pipeline is not None for r in self.replicas):
            raise UsageError(
                "The router lends blocks of whole replicas without a prefix cache; give prefix_cache=off and pp=1."
            )
        for replica, member in zip(self.replicas, self.members, strict=True):
            policy = replica.policy
            strict = isinstance(policy, StepTimes) and (replica.role == "decode" or needs.changes_roles)
            if member.model is None and (needs.step_times or strict):
                raise UsageError(
                    f"The {'router' if needs.step_times else 'policy'} must know how long steps take; only simulated "
                    "and paced replicas tell."
                )
            if needs.changes_roles and self._apart and isinstance(policy, OneRole):
                raise UsageError(
                    f"The router changes roles, and the policy of the {replica.role} replicas is for {policy.serves} "
                    "alone; give one that runs prompts and decodes alike, such as policy=vllm-v1."
                )

    def refresh(self) -> None:
        """Roles have changed, or which replicas are open."""
        self._entries = [r for r in self.replicas if r.alive and not r.draining and r.role != "decode"]
        self.decodes = [r for r in self.replicas if r.alive and not r.draining and r.role == "decode"]
        for name in self._routes:
            self._of_model[name] = [r for r in self._entries if self.members[r.index].serves == name]

    def model_of(self, request: Request) -> str | None:
        """The base model that a request asks for; None where all replicas serve the same one."""
        return (request.model or self.members[0].serves) if self._routes else None

    def unserved(self, request: Request) -> str | None:
        """Why no replica serves the model of this request, up or down, or None."""
        name = self.model_of(request)
        if name is None or name in self._routes:
            return None
        return f"no replica serves the model '{name}', only {', '.join(self._routes)}"

    @property
    def takes_requests(self) -> bool:
        """Whether a replica is there that new requests may go to."""
        return bool(self._entries)

    @property
    def acts(self) -> bool:
        """Whether its router knows time."""
        return acts(self.router)

    def add(self, request: Request, now_s: float) -> tuple[int, str | None]:
        """Queue a request: (index of the replica, why not if it can never be served there)."""
        decodes, entries = self.decodes, self._entries
        if decodes:
            # What no decode replica can hold is refused before its prompt is computed for nothing.
            refusal = decodes[0].refusal(request)
            if refusal is not None:
                return decodes[0].index, refusal
            if not entries and all(replica.role == "decode" for replica in self.replicas):
                return self.offer(arrived_prefilled(request, now_s), None).index, None
        replica = self.choose(request)
        if replica is None or (self._apart and not decodes and replica.role == "prefill"):
            return 0, NONE_UP
        return replica.index, replica.add(request, now_s)

    def refusal_after(self, replica: Replica, request: Request) -> str | None:
        """Why nothing could be done with this request after its prompt was computed on this replica, or None."""
        if replica.role != "prefill" or not self._apart:
            return None
        return self.decodes[0].refusal(request) if self.decodes else NONE_UP

    def choose(self, request: Request) -> Replica | None:
        """The replica that the router without time names, None where none is open."""
        entries, route = self._entries, self._route
        if (name := self.model_of(request)) is not None:
            entries, route = self._of_model[name], self._routes[name]
        if len(entries) > 1:
            assert route is not None
            return entries[route(VisibleRequest(request), entries)]
        return entries[0] if entries else None

    def offer(self, seq: Sequence, source: Replica | None) -> Replica:
        """The decode replica that will have this sequence; it queues there until it is pulled or pushed."""
        decodes = self.decodes
        target = decodes[0]
        planned = self.planned.pop(seq._request.id, None)
        if planned is not None and self.replicas[planned] in decodes:
            target = self.replicas[planned]
        elif len(decodes) > 1:
            assert self._decode_route is not None
            target = decodes[self._decode_route(seq.request, decodes)]
        target.inbox.offers.append((seq, source))
        return target

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be served here, or None. Callable at any time."""
        name = self.model_of(request)
        sides = [*(self._entries if name is None else self._of_model.get(name, []))[:1], *self.decodes[:1]]
        if not sides:
            return NONE_UP
        return next((reason for side in sides if (reason := side.refusal(request)) is not None), None)

    def forget_prefixes(self, now_s: float) -> None:
        """Forget what prefix caches store that no sequence holds, and all that tiers store."""
        for replica in self.replicas:
            replica.forget_prefixes(now_s)
            if self.hierarchy is not None:
                self.hierarchy.forget(replica, now_s)

    @property
    def under_way(self) -> int:
        """Sequences between prefill and their first decode."""
        return sum(len(replica.inbox) for replica in self.replicas)

    def check(self) -> None:
        """Integrity of every replica."""
        for replica in self.replicas:
            replica.check()
        if self.hierarchy is not None:
            self.hierarchy.check()

    def __repr__(self) -> str:
        return f"<Cluster {list(self.replicas)!r}>"
