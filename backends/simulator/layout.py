"""The two sides of a disaggregated cluster, specified as `2:tp=2,pp=1`, and the link between them.

Which replicas a simulated cluster has: alike, or some for prefill and some for decode.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from backends.latency.recorded import Recorded
from backends.serving.cluster import Cluster, Member
from backends.serving.handoff import Link
from backends.serving.hierarchy import Hierarchy
from backends.serving.loop import Loop
from backends.serving.replica import Replica, Role
from backends.serving.routing import DecidingRouter, Fail, Up, acts
from backends.simulator.core import Core, mtp, token_bytes
from backends.simulator.loop import FrontEnd
from harness import api
from harness.api import ActionEvent, ExpertPool, FollowUps, FrontTime, LatencyModel, Request, StoredBits, TokenizerTime
from harness.catalog import (
    SEQS,
    Hardware,
    Shape,
    hardware,
    kv_bytes_per_token,
    kv_capacity_blocks,
    model,
    without_experts,
)
from harness.errors import UsageError
from harness.metrics.quantiles import quantiles
from harness.registry import make, system_of
from harness.spec import build, link_bytes_per_s, parse, seconds

if TYPE_CHECKING:
    from backends.engine import Engine
    from backends.sim import Sim

DIVISIONS = ("tp", "pp", "dp", "ep")
"""Options that divide a replica between GPUs."""
LOGIT_BYTES = 2
POLICY = "sarathi"
ROUTER = "round-robin"
OF_ROLE = {
    "prefill": ("distserve-prefill", "shortest-prefill-queue"),
    "decode": ("distserve-decode", "least-loaded-decode"),
}
_GROUPS = re.compile(r"\+(?=\d+(?::|$))")
_FAIL = re.compile(r"(replica:|expert:)?(\d+)@(.+?)(?:\.\.(.+?))?(,requeue)?")


@dataclass(frozen=True, slots=True)
class Side:
    """`count` replicas of one role, each divided as `tp`, `pp`, `dp` and `ep` say (`harness.catalog.Shape`).

    `policy`, `router` and `latency` are specs; `hardware` is the kind of GPU, and `model` the base model, where it is
    not that of the cluster.
    """

    count: int
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    hardware: str | None = None
    policy: str | None = None
    router: str | None = None
    latency: str | None = None
    model: str | None = None

    def shape(self, hardware: str) -> Shape:
        """How the GPUs of one of its replicas divide the model, in a cluster of `hardware`."""
        return Shape(self.tp, self.pp, self.dp, self.ep, hardware=self.hardware or hardware)


def side(text: str, role: str) -> Side:
    """`2` or `2:tp=2,pp=1,policy=...`. Raises UsageError."""
    spec = parse(text)
    if not re.fullmatch(r"\d+", spec.name):
        raise UsageError(f"{role} must be how many replicas and of what shape, such as 2 or 2:tp=2,pp=1, got '{text}'.")
    parsed = build(Side, replace(spec, name=role, args={"count": spec.name, **spec.args}))
    for name in ("count", "tp", "pp", "dp", "ep"):
        if getattr(parsed, name) < 1:
            raise UsageError(f"'{text}': {name} of {role} must be at least 1, got {getattr(parsed, name)}.")
    return parsed


@dataclass(frozen=True, slots=True)
class Rate:
    """Bandwidth of a link in bytes per second, and its latency in seconds."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class _Latency:
    latency_s: float = 0.0


def rate(text: str, gpu: Hardware) -> Rate:
    """`nvlink`, `pcie` (rates of `gpu`, both directions, as their makers print them), `25Gbps`, `600GBps`, `none`.

    `none` takes no time. Each may add a latency: `25Gbps:latency=1ms`. Raises UsageError.
    """
    spec = parse(text)
    latency_s = build(_Latency, spec).latency_s
    if latency_s < 0:
        raise UsageError(f"'{text}': the latency of a link must not be negative.")
    return Rate(_bytes_per_s(spec.name, gpu), latency_s)


def _bytes_per_s(name: str, gpu: Hardware) -> float:
    if name == "none":
        return inf
    if name == "pcie":
        return gpu.pcie_bytes_per_s
    if name == "nvlink":
        if gpu.nvlink_bytes_per_s is None:
            raise UsageError(f"link=nvlink: {gpu.name} has none; give link=pcie or a rate such as link=25Gbps.")
        return gpu.nvlink_bytes_per_s
    return link_bytes_per_s(name, "link must be nvlink, pcie, none or a rate such as 25Gbps or 600GBps")


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """`count` equal replicas of one role, each on the GPUs of `shape`, of the base model named `serves`.

    `core` decides inside each of them, `model` says how long their steps take; `front` and
    `stored_bits` are what it knows beyond steps (`harness.api.FrontTime`, `TokenizerTime`, `StoredBits`).
    """

    role: Role
    count: int
    shape: Shape
    policy: str
    kv: str
    router: str
    latency: str
    core: Core
    model: LatencyModel | Recorded
    front: FrontEnd
    stored_bits: tuple[float | None, float | None]
    serves: str

    @property
    def pool(self) -> ExpertPool | None:
        """Where the experts are, if they have GPUs of their own."""
        return self.model if isinstance(self.model, ExpertPool) else None

    @property
    def replica_gpus(self) -> int:
        return self.shape.gpus + (0 if self.pool is None else self.pool.expert_gpus)

    @property
    def gpus(self) -> int:
        return self.count * self.replica_gpus

    @property
    def pool_facts(self) -> dict[str, object]:
        """Facts for run.json of the experts' own GPUs; none where they have none."""
        pool = self.pool
        return (
            {} if pool is None else {"expert_gpus": self.count * pool.expert_gpus, "expert_hardware": pool.expert_kind}
        )


def router_acts(spec: str) -> bool:
    """Whether this router knows time."""
    return acts(make("routers", spec))


def replica_groups(sim: Sim) -> tuple[ReplicaGroup, ...]:
    """The parts of a simulated cluster, prefill first. Raises UsageError for what does not go together."""
    whole = Side(sim.replicas, sim.tp, sim.pp, sim.dp, sim.ep)
    parts = list(sides(sim, whole))
    for text in [] if sim.groups is None else _GROUPS.split(sim.groups):
        group = side(text, "groups")
        if parts[0][0] != "mixed" or group.router is not None or sim.lora is not None:
            raise UsageError(f"groups={sim.groups} goes without prefill, decode, lora, and routers of single groups.")
        parts.append(("mixed", group, group.policy or sim.policy, sim.router))
    return tuple(_group(sim, *part) for part in parts)


def sides(options: Sim | Engine, whole: Side) -> Iterator[tuple[Role, Side, str, str]]:
    """Role, division, policy and router of each part, prefill first; `whole` are replicas alike. Raises UsageError."""
    if options.prefill is None and options.decode is None:
        yield "mixed", whole, options.policy, options.router
        return
    for name in ("count", *DIVISIONS):
        if getattr(whole, name) != 1:
            name = "replicas" if name == "count" else name
            raise UsageError(f"{name} is that of replicas alike; with prefill and decode give prefill=2:tp=2 instead.")
    roles: list[tuple[Role, str | None]] = [("prefill", options.prefill), ("decode", options.decode)]
    for role, text in roles:
        if text is not None:
            parsed = side(text, role)
            if parsed.model is not None:
                raise UsageError(f"{role}={text}: prefill and decode replicas serve one model; give --model.")
            policy, router = deciding(parsed, role, options.policy, options.router)
            if role == "decode" and router_acts(router):
                raise UsageError(
                    f"decode={text}: a router that acts is that of the cluster; give --router {parsed.router}."
                )
            yield role, parsed, policy, router


def refuse_unused(options: Sim | Engine, unused: Mapping[str, Collection[str | None]], *, acts: bool) -> None:
    """Raise UsageError for options of hand-offs, beyond what changes nothing, in a cluster that hands nothing on."""
    for name, off in unused.items():
        if (setting := getattr(options, name)) not in off and not (name == "link" and acts):
            raise UsageError(f"Without prefill and decode replicas there is no {name}; leave out {name}={setting}.")


def deciding(given: Side, role: Role, policy: str, router: str) -> tuple[str, str]:
    """Policy and router of a side: its own, else those of the whole cluster that the user chose, else the role's."""
    of_role, router_of_role = OF_ROLE[role]
    whole = router != ROUTER and role == "prefill"
    return given.policy or (of_role if policy == POLICY else policy), given.router or (
        router if whole else router_of_role
    )


@runtime_checkable
class SequenceParallel(Protocol):
    """A policy for replicas of several instances of a model, which hold parts of each sequence."""

    @property
    def sp(self) -> int:
        """How many there are."""
        ...


def _group(sim: Sim, role: Role, given: Side, policy: str, router: str) -> ReplicaGroup:
    shape, latency, kv = given.shape(sim.hardware), given.latency or sim.latency, sim.kv
    serves = given.model or sim.model
    if isinstance(parallel := make("policies", policy), SequenceParallel):
        shape = replace(shape, sp=parallel.sp)
    built = _timed(latency, serves, shape, sim.seed)
    if isinstance(built, Recorded) and shape.pp > 1:
        raise UsageError("latency=recorded repeats a run of whole replicas; it does not go with pipeline stages.")
    drafts = mtp(model(serves)) if sim.speculate == "mtp" else sim.speculate
    core = Core.of(policy, kv, sim.admission, sim.seed, sim.prefix_cache, drafts, sim.preempt, sim.tiers)
    front = FrontEnd(
        built.front_s if isinstance(built, FrontTime) else 0.0,
        built.front_token_s if isinstance(built, TokenizerTime) else 0.0,
    )
    stored_bits = built.stored_bits if isinstance(built, StoredBits) else (None, None)
    return ReplicaGroup(role, given.count, shape, policy, kv, router, latency, core, built, front, stored_bits, serves)


def _timed(latency: str, of: str, shape: Shape, seed: int) -> LatencyModel | Recorded:
    """The latency model of that spec for the model named `of`. Raises UsageError where it knows no dp or ep."""
    splits = {name: value for name in ("dp", "ep") if (value := getattr(shape, name)) > 1}
    if splits:
        shape.check(model(of))
    division = {name: getattr(shape, name) for name in DIVISIONS}
    built: LatencyModel | Recorded = make("latency", latency, model=of, hardware=shape.hardware, seed=seed, **division)
    if unknown := splits.keys() - system_of(built):
        name, args = min(unknown), ", ".join(f"{name}={splits[name]}" for name in sorted(unknown))
        raise UsageError(
            f"latency={parse(latency).name} knows no {name}; leave out {args}, or take latency=roofline or operators."
        )
    return built


@runtime_checkable
class Bounded(Protocol):
    """A policy that runs at most so many sequences at a time."""

    @property
    def max_seqs(self) -> int:
        """At least 1."""
        ...


@runtime_checkable
class Logits(Protocol):
    """A policy whose steps have logits of so many tokens that they take memory from KV."""

    @property
    def rows_at_once(self) -> int:
        """Tokens whose logits are in memory at a time."""
        ...


def blocks_of(part: ReplicaGroup, memory: Any, sim: Sim) -> int:
    """KV blocks of one replica: by its memory mode or `kv_blocks`, else as many as fit on its GPUs."""
    fixed: int | None = memory.blocks or sim.kv_blocks
    if fixed is None and isinstance(part.model, Recorded):
        fixed = part.model.of(part.role).get("kv_tokens", 0) // memory.block_tokens or None
    if fixed is not None:
        return fixed
    weight_bits, kv_bits = part.stored_bits
    policy = make("policies", part.core.policy)
    m = model(part.serves)
    further_bytes = 0.0 if sim.adapted is None else sim.adapted.slots * sim.adapted.bytes_on(m, part.shape)
    if isinstance(policy, Logits):
        further_bytes += LOGIT_BYTES * policy.rows_at_once * m.vocab / part.shape.tp
    return kv_capacity_blocks(
        m if part.pool is None else without_experts(m), part.shape.hardware, part.shape, utilisation=sim.utilisation,
        block_tokens=memory.block_tokens, weight_bits=weight_bits, kv_bits=kv_bits,
        seqs=policy.max_seqs if isinstance(policy, Bounded) else SEQS,
        further_bytes=further_bytes,
    )  # fmt: skip


def cluster(
    parts: tuple[ReplicaGroup, ...],
    build: Callable[[ReplicaGroup, int], Replica],
    link: Link,
    *,
    pull: bool,
    hierarchy: Hierarchy | None = None,
) -> Cluster:
    """The cluster of these parts; `build(part, index)` makes a replica."""

    def member(part: ReplicaGroup, index: int, role: Role) -> tuple[Replica, Member]:
        replica = build(part, index)
        if role != "mixed":
            replica.set_role(role, 0.0)
        model = part.model.known_model(part.role) if isinstance(part.model, Recorded) else part.model
        return replica, Member(part.replica_gpus, model, part.serves)

    def further(role: Role) -> tuple[Replica, Member]:
        part = next((part for part in parts if part.role == role), parts[0])
        return member(part, len(replicas), role)

    replicas: list[Replica] = []
    members: list[Member] = []
    for part in parts:
        for _ in range(part.count):
            replica, its = member(part, len(replicas), part.role)
            replicas.append(replica)
            members.append(its)
    handoff_router = make("routers", parts[-1].router) if parts[-1].role == "decode" else None
    models = dict.fromkeys(part.serves for part in parts)
    return Cluster(
        replicas, make("routers", parts[0].router), handoff_router, link, pull=pull, members=members, build=further,
        hierarchy=hierarchy,
        routers={name: make("routers", parts[0].router) for name in models} if len(models) > 1 else None,
    )  # fmt: skip


def hierarchy(parts: tuple[ReplicaGroup, ...]) -> Hierarchy | None:
    """The tiers under the prefix caches of these parts, whose blocks must be alike. Raises UsageError."""
    rows = []
    for part in parts:
        m, bits, shape = model(part.serves), part.stored_bits[1], part.shape
        tokens = part.core.memory(token_bytes(m, shape.tp, bits)).block_tokens
        pcie_bytes_per_s = hardware(shape.hardware).pcie_bytes_per_s / 2 * shape.gpus
        recorded = part.model.facts.get("tiers") if isinstance(part.model, Recorded) else None
        block_bytes = recorded[0]["block_bytes"] if recorded else tokens * kv_bytes_per_token(m, kv_bits=bits)
        rows.append(((tokens, bits, part.serves), block_bytes, pcie_bytes_per_s))
    return parts[0].core.hierarchy(rows)


def link_of(text: str, model_name: str, gpus: Collection[str], role: Role) -> tuple[Link, Rate]:
    """The link between replicas on these kinds of GPU, the first of this role, and its rate. Raises UsageError."""
    if text == "nvlink" and role == "mixed" and hardware(min(gpus)).nvlink_bytes_per_s is None:
        text = "pcie"
    if len(kinds := sorted({*gpus})) > 1 and parse(text).name in ("nvlink", "pcie"):
        raise UsageError(f"{' and '.join(kinds)} share no node; give the link between them, such as 400Gbps.")
    link_rate = rate(text, hardware(kinds[0]))
    return Link(kv_bytes_per_token(model(model_name)) / link_rate.bytes_per_s, link_rate.latency_s), link_rate


def failures(text: str, parts: tuple[ReplicaGroup, ...]) -> list[tuple[float, Fail | Up]]:
    """When replicas go down and come up again: `replica:1@60s`, `1@60s..90s,requeue`, several with `;` between.

    With `requeue` its requests go back to the router, else they end with an error. `expert:3@60s` is the fourth GPU of
    those that have experts, over all replicas; a replica goes down where an expert was on no other. Raises UsageError.
    """
    models = [part.model for part in parts for _ in range(part.count)]
    gpus = [model.expert_gpus if isinstance(model, api.ExpertServers) else 0 for model in models]
    servers = [(replica, server) for replica, count in enumerate(gpus) for server in range(count)]
    events: list[tuple[float, tuple[int, int | None], bool, bool]] = []
    for event in text.split(";"):
        match = _FAIL.fullmatch(event.strip())
        if match is None:
            raise UsageError(f"fail must be like replica:1@60s or replica:1@60s..90s,requeue, got '{event}'.")
        index, of_expert = int(match[2]), match[1] == "expert:"
        most, what = (len(servers), "servers of experts") if of_expert else (len(models), "replicas")
        if index >= most:
            there = f"the {what} 0 to {most - 1}" if most else f"no {what}"
            raise UsageError(f"fail={event}: the cluster has {there}.")
        down_s, up_s = seconds(match[3]), None if match[4] is None else seconds(match[4])
        if down_s < 0:
            raise UsageError(f"fail={event}: time begins at 0 s.")
        if up_s is not None and up_s <= down_s:
            raise UsageError(f"fail={event}: a replica comes up after it went down.")
        place, requeue = servers[index] if of_expert else (index, None), match[5] is not None
        events += [(at_s, place, at_s == down_s, requeue) for at_s in (down_s, up_s) if at_s is not None]
    changes: list[tuple[float, Fail | Up]] = []
    down: dict[int, set[int | None]] = {}  # by replica: its servers of experts, None for all of it
    for at_s, (replica, server), fails, requeue in sorted(events, key=itemgetter(0)):
        lost, model = down.setdefault(replica, set()), models[replica]
        (lost.add if fails else lost.discard)(server)
        left, halts = None, None in lost
        if isinstance(model, api.ExpertServers):
            left = model.without(frozenset(gpu for gpu in lost if gpu is not None))
            halts = halts or left is None
        changes.append((at_s, Fail(replica, requeue=requeue) if halts else Up(replica, left)))
    return changes


def divided(shape: Shape) -> dict[str, int]:
    """How a replica is divided, for run.json; dp and ep only where they are more than 1."""
    return {name: value for name in DIVISIONS if (value := getattr(shape, name)) > 1 or name in ("tp", "pp")}


def cluster_facts(parts: tuple[ReplicaGroup, ...], of: Cluster, link: Rate | None, how: str) -> dict[str, object]:
    """Facts for run.json of a cluster with prefill and decode apart, of several groups, or whose router moves KV."""
    facts: dict[str, object] = {}
    if link is not None:
        facts["link_latency_s"] = link.latency_s
        if link.bytes_per_s < inf:  # link=none; JSON has no infinity
            facts["link_bytes_per_s"] = link.bytes_per_s
    if len(parts) == 1 and parts[0].role == "mixed":
        return facts
    first, groups = 0, []
    for part in parts:
        blocks = of.replicas[first].blocks
        first += part.count
        groups.append({
            "replicas": part.count, "hardware": part.shape.hardware, **divided(part.shape), "gpus": part.gpus,
            **part.pool_facts, "policy": part.policy,
            "router": part.router, "latency": part.latency, "kv_tokens": blocks.total * blocks.size,
        })  # fmt: skip
    if parts[0].role == "mixed":
        return facts | {"groups": [{"model": part.serves, **of} for part, of in zip(parts, groups, strict=True)]}
    facts |= {part.role: of for part, of in zip(parts, groups, strict=True)}
    if link is not None:
        overflows = sum(replica.inbox.overflows for replica in of.replicas)
        facts |= {"handoff": how, "handoff_overflows": overflows}
    return facts


@dataclass(slots=True)
class ActionCounts:
    """Actions so far by kind, and how long requests were held, and stood still in migrations while they ran."""

    kinds: Counter[str] = field(default_factory=Counter)
    stopped_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)

    def add(self, actions: Iterable[ActionEvent]) -> None:
        """Count these."""
        for action in actions:
            self.kinds[action.kind] += action.kind != "copy"  # what the hand-offs and migrations themselves are
            if action.kind == "migrate" and action.stop_s is not None and action.tokens:
                self.stopped_s.append(action.end_s - action.stop_s)
            elif action.kind == "hold":
                self.held_s.append(action.end_s - action.at_s)

    def facts(self, loop: Loop[Any]) -> dict[str, object]:
        """Facts for run.json of what a router did: counts by kind, how long it held requests, downtime of migrations of
        running requests, age of what it sees, GPU time."""
        router, kinds = loop.cluster.router, self.kinds
        facts: dict[str, object] = {
            "actions": dict(kinds), "router_holds": kinds["hold"], "router_rejected": kinds["reject"]
        }  # fmt: skip
        if self.held_s:
            p50, p99, most = quantiles(np.array(self.held_s), (0.5, 0.99, 1.0))
            facts["router_held_s"] = {"p50": p50, "p99": p99, "max": most}
        if isinstance(router, DecidingRouter) and router.report_s:
            facts["router_report_s"] = router.report_s
        if self.stopped_s:
            mean_s = sum(self.stopped_s) / len(self.stopped_s)
            facts["migration_downtime_s"] = {"mean": mean_s, "max": max(self.stopped_s)}
        return facts | {"gpu_s": loop.gpu_s(loop.now_s)}


def first_tokens(
    requests: Iterable[Request], follow_ups: FollowUps | None
) -> tuple[Iterable[Request], FollowUps | None]:
    """All requests as a cluster without decode replicas serves them, those that answers set free too."""

    def first_token(request: Request) -> Request:
        return replace(request, output_tokens=1)

    more = None if follow_ups is None else lambda record: map(first_token, follow_ups(record))
    return map(first_token, requests), more
