"""The engine's process: serves one client over an inherited socket, whose descriptor is its argument."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from backends.engine_process.cluster import EngineCluster, Message
from backends.engine_process.executor_processes import (
    Allocate,
    Broken,
    Build,
    Copied,
    ExecutorProcesses,
    OwnExecutor,
    Ran,
    make_executor,
)
from backends.engine_process.generation import Answers, GenerationParams, Work
from backends.executors.paced import Pace, Paced
from backends.serving.cluster import Cluster, Member
from backends.serving.handoff import Link
from backends.serving.plugins import Memory, Simulated
from backends.serving.replica import Replica, Role
from backends.serving.routing import PeriodicRouter
from backends.simulator.core import FREE, BlockCost, Core
from backends.simulator.layout import Rate, Side, link_of, rate, refuse_unused, router_acts, sides
from harness import termination
from harness.api import Prompts, Request
from harness.catalog import hardware
from harness.errors import BenchError, UsageError
from harness.ipc import Inbox, frame, where
from harness.registry import make
from harness.spec import parse

if TYPE_CHECKING:
    from backends.engine import Engine

KV_BLOCKS = 4096
"""Blocks of KV memory of a real model where the user does not say how many."""

NICE = 5
"""Priority of a real model where the user does not say: below that of the load generator."""

MOST_KV_BYTES = 16 * 2**30
"""KV memory that an engine may ask for: a slip in a spec must not take the machine down."""
ClusterOf = Callable[[Callable[[int, Message], None], float], EngineCluster]
"""Makes a cluster of what sends messages to its executors and the time from which on it runs."""


@dataclass(frozen=True, slots=True)
class Open:
    """First message: build the models and get ready."""

    executor: str
    layout: Layout
    kv_blocks: int | None
    temperature: float
    nice: int | None
    prompts: Prompts | None  # None: every request brings its own


@dataclass(frozen=True, slots=True)
class Clock:
    """The run starts: stamps are `time.monotonic() - epoch_s`."""

    epoch_s: float


@dataclass(frozen=True, slots=True)
class Add:
    """A request arrives, sent at `sent_s` of the monotonic clock; without params it has the prompt of its content."""

    request: Request
    sent_s: float
    params: GenerationParams | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request is withdrawn."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Clear unreferenced blocks from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer to `Open`: facts of the engine, or why it cannot serve."""

    facts: Mapping[str, object]
    error: BenchError | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Last message: the engine broke in the middle of its work."""

    message: str


class Worker:
    """Reads messages, takes turns, answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._inbox = Inbox(sock)
        self._epoch_s = 0.0

    def serve(self) -> None:
        """Until the client closes the socket."""
        first = next(self._inbox.take(wait=True), None)
        if not isinstance(first, Open):
            return  # the client left before the first message
        builds = [Build(first.executor, part.given) for part in first.layout.parts for _ in range(part.count)]
        alone = len(builds) == 1 and not moves(first.layout)
        with contextlib.ExitStack() as stack:
            try:
                executors = OwnExecutor(builds[0]) if alone else ExecutorProcesses(builds)
                stack.callback(executors.close)
                build, facts = engine_cluster(first, executors)
            except BenchError as error:
                self._sock.sendall(frame(Ready({}, error)))
                return
            self._sock.sendall(frame(Ready(facts)))
            try:
                self._turns(build, executors)
            except OSError:
                return  # the client is gone
            except BenchError as error:  # a router, for one, that wants what this cluster cannot do
                self._sock.sendall(frame(Failed(str(error))))
            except Exception as error:  # noqa: BLE001  whatever broke, the client must hear of it
                self._sock.sendall(frame(Failed(where(error))))

    def _turns(self, build: ClusterOf, executors: ExecutorProcesses | OwnExecutor) -> None:
        def send(replica: int, message: Message) -> None:
            # Executors know the clock of the machine, and not when the run began.
            if isinstance(message, Work) and message.end_s is not None:
                message = replace(message, end_s=message.end_s + self._epoch_s)
            executors.send(replica, message)

        cluster: EngineCluster | None = None  # until the clock of the run is known
        while not self._inbox.closed:
            patience_s = inf if cluster is None else cluster.next_s - self._now_s()
            # What has ended goes before what has arrived, as at one instant of the simulator that replays it.
            for replica, answer in executors.take(self._sock, max(0.0, patience_s) if patience_s < inf else None):
                if isinstance(answer, Ran) and cluster is not None:
                    cluster.ran(replica, answer.sampled, answer.end_s - self._epoch_s)
                elif isinstance(answer, Copied) and cluster is not None:
                    cluster.copied(answer.number, answer.at_s - self._epoch_s)
                elif isinstance(answer, Broken):
                    cluster = cluster or build(send, self._now_s())
                    cluster.lost(replica, self._now_s())
            for message in self._inbox.take(wait=False):
                if isinstance(message, Clock):
                    self._epoch_s = message.epoch_s
                    continue
                cluster = cluster or build(send, self._now_s())
                if isinstance(message, Add):
                    refused = cluster.arrive(message.request, message.params, message.sent_s - self._epoch_s)
                    if refused is not None:
                        self._sock.sendall(frame(refused))
                elif isinstance(message, Cancel):
                    cluster.withdraw(message.request_id)
                elif isinstance(message, Forget):
                    cluster.cluster.forget_prefixes(cluster.loop.now_s)
            if cluster is not None:
                for turn in cluster.advance(self._now_s()):
                    self._sock.sendall(frame(turn))

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s


def moves(layout: Layout) -> bool:
    """Whether requests may move from one replica to another."""
    return layout.parts[0].role != "mixed" or router_acts(layout.parts[0].router)


def engine_cluster(message: Open, executors: ExecutorProcesses | OwnExecutor) -> tuple[ClusterOf, dict[str, object]]:
    """The cluster that a first message asks for, with its executors' memory, and its facts. Raises UsageError."""
    layout, built = message.layout, executors.built()
    parts, moving = layout.parts, moves(layout)
    replicas: list[Replica] = []
    members: list[Member] = []
    pacers: list[Paced] = []
    allocations = []
    reached: list[tuple[object, float, float]] = []  # by tiers, as in `Core.hierarchy`
    facts: dict[str, object] = {}
    for part in parts:
        its = dict(built[len(replicas)].facts)
        # A paced one is needed here, too: its latency model says when steps are due.
        executor = make_executor(message.executor, part.given) if "late_after_s" in its else None
        pacer = executor if isinstance(executor, Paced) else None
        memory, blocks, cost = kv_memory(message, part.core, its, pacer, sum(part.count for part in parts))
        shares = built[len(replicas)].shares_memory
        if moving and pacer is None and not shares:
            raise UsageError(
                f"Replicas of executor={message.executor} cannot copy KV from one another; give executor=llama or "
                "paced, or replicas alike and a router that does not move requests."
            )
        if pacer is None and part.core.tiers:
            _refuse_tiers(part, message.executor)
        gpus = gpu_count if isinstance(gpu_count := its.get("gpus"), int) else 1
        # the load generator must get a core the moment it wakes up, and so must an executor that only waits
        nice = message.nice if message.nice is not None else NICE if pacer is None else 0
        model = pacer.latency_model if pacer is not None else None
        for _ in range(part.count):
            replica = part.core.replica(memory, blocks, len(replicas), cost=cost)
            if part.role != "mixed":
                replica.set_role(part.role, 0.0)
            replicas.append(replica)
            members.append(Member(gpus, model))
            allocations.append(Allocate(blocks, memory.block_tokens, nice, shares and moving))
            pacers += [] if pacer is None else [pacer]
        block_bytes = cost.bytes if pacer is None else memory.block_tokens * pacer.kv_bytes_per_token
        reached.append(((memory.block_tokens, block_bytes), block_bytes, cost.bytes_per_s * gpus))
        its |= {
            "kv_blocks": blocks, "kv_tokens": blocks * memory.block_tokens, "kv_block_bytes": cost.bytes,
            "layer_token_bytes": token_bytes(its),
        }  # fmt: skip
        if part is parts[0]:
            facts = its
        if part.role != "mixed":
            names = ("hardware", "tp", "latency", "kv_tokens", "kv_block_bytes", "layer_token_bytes")
            facts[part.role] = {
                "replicas": part.count, "gpus": part.count * gpus, "policy": part.policy, "router": part.router,
                **{name: its[name] for name in names if name in its},
            }  # fmt: skip
    executors.allocate(allocations)
    link = None
    if len(replicas) > 1 or moving:
        facts |= {"replicas": len(replicas), "router": parts[0].router, "gpus": sum(member.gpus for member in members)}
    if moving:
        link, rate = _link(layout, facts)
        facts |= {} if rate.bytes_per_s == inf else {
            "link_bytes_per_s": rate.bytes_per_s, "link_latency_s": rate.latency_s
        }  # fmt: skip
    if parts[0].role != "mixed":
        facts["handoff"] = "pull" if layout.pull else "push"
    handoff_router = make("routers", parts[-1].router) if parts[-1].role == "decode" else None
    cluster = Cluster(
        replicas, make("routers", parts[0].router), handoff_router, link, pull=layout.pull, members=members,
        hierarchy=parts[0].core.hierarchy(reached),
    )  # fmt: skip
    first = pacers[0] if pacers else None
    vocab_size, max_tokens = facts["vocab_size"], facts["max_tokens"]
    assert isinstance(vocab_size, int)
    assert isinstance(max_tokens, int)
    answers = Answers(message.prompts, vocab_size, max_tokens, message.temperature, first)
    paces = [Pace(pacer, replica) for pacer, replica in zip(pacers, replicas, strict=False)]
    return lambda send, start_s: EngineCluster(cluster, answers, send, paces, start_s), facts


def _refuse_tiers(part: Part, executor: str) -> None:
    """Raise UsageError for tiers that an executor which computes has not."""
    tier, *more = part.core.tiers
    if more or tier.name != "dram" or tier.args.keys() - {"size", "size_bytes", "write"}:
        raise UsageError(
            f"executor={executor} stores KV in the host memory of each replica, and copies as fast as it can; give "
            "tiers=dram with size and write alone, or executor=paced."
        )
    if part.role != "mixed" or isinstance(make("routers", part.router), PeriodicRouter):
        raise UsageError(
            f"executor={executor} stores no KV in tiers where requests may move between replicas; give replicas alike "
            "and a router that only routes, or executor=paced."
        )


def _link(layout: Layout, facts: Mapping[str, object]) -> tuple[Link, Rate]:
    """The link that layout and facts of its first part ask for, and its rate."""
    role, text = layout.parts[0].role, layout.link or "none"
    if "late_after_s" in facts:
        gpus = {str({**facts, **part.given}["hardware"]) for part in layout.parts}
        return link_of(layout.link or "nvlink", str(facts["model"]), gpus, role)
    if parse(text).name in ("nvlink", "pcie"):
        raise UsageError(f"link={text} is that of a GPU; give none, or a rate such as 25Gbps.")
    link_rate, per_token = rate(text, hardware("a100-80g")), facts["kv_bytes_per_token"]
    assert isinstance(per_token, int)
    return Link(per_token / link_rate.bytes_per_s, link_rate.latency_s), link_rate


def kv_memory(
    message: Open, core: Core, facts: Mapping[str, object], pacer: Paced | None, replicas: int
) -> tuple[Memory, int, BlockCost]:
    """Memory of a replica whose executor has these facts, one of so many: mode, blocks, cost of moving one.

    Raises UsageError where it cannot be.
    """
    memory = core.memory(token_bytes(facts))
    requested: int | None = memory.blocks or message.kv_blocks
    if pacer is not None:
        if message.temperature:
            name = parse(message.executor).name
            raise UsageError(f"temperature does not apply to the executor '{name}': its tokens are arbitrary.")
        size = memory.block_tokens
        return memory, requested or pacer.blocks_that_fit(size), pacer.block_cost(size)
    blocks = requested or KV_BLOCKS
    kv_bytes, tokens = facts.get("kv_bytes_per_token"), blocks * memory.block_tokens * replicas
    if not isinstance(kv_bytes, int):
        return memory, blocks, FREE
    if tokens * kv_bytes > MOST_KV_BYTES:
        raise UsageError(
            f"KV memory for {tokens:,} tokens takes {tokens * kv_bytes / 2**30:.0f} GiB, the engine has at most "
            f"{MOST_KV_BYTES / 2**30:.0f} GiB; lower kv_blocks, or the size of a page."
        )
    return memory, blocks, replace(FREE, bytes=kv_bytes * memory.block_tokens)


def token_bytes(facts: Mapping[str, object]) -> int | None:
    """Bytes of the keys of one token in one layer, where the executor has the facts."""
    if isinstance(layer_bytes := facts.get("layer_token_bytes"), int):
        return layer_bytes
    per_token, layers = facts.get("kv_bytes_per_token"), facts.get("layers")
    if not isinstance(per_token, int) or not isinstance(layers, int):
        return None
    return per_token // (2 * layers)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    termination.led()  # by the client: it drains, then closes the socket
    sock = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        Worker(sock).serve()


@dataclass(frozen=True, slots=True)
class Part:
    """`count` equal replicas of one role; `given` are the fields of their executors, `core` decides in each of them."""

    role: Role
    count: int
    policy: str
    router: str
    given: Mapping[str, object]
    core: Core


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a cluster, prefill first; whether KV is pulled or pushed, over which link."""

    parts: tuple[Part, ...]
    pull: bool
    link: str | None


def layout(engine: Engine, given: Mapping[str, object]) -> Layout:
    """The replicas that these options ask for. Raises UsageError."""
    if engine.prefill is None and engine.decode is None:
        refuse_unused(engine, {"handoff": ("pull",), "link": ("none", None)}, acts=router_acts(engine.router))
    elif engine.prefill is None or engine.decode is None:
        raise UsageError("The engine needs prefill and decode replicas; give both, or neither.")
    rate(engine.link or "none", hardware(engine.hardware or "a100-80g"))  # raises UsageError for what is none
    parts = tuple(_part(engine, given, *part) for part in sides(engine, Side(engine.replicas, engine.tp or 1)))
    return Layout(parts, engine.handoff == "pull", engine.link)


def _part(engine: Engine, given: Mapping[str, object], role: Role, its: Side, policy: str, router: str) -> Part:
    if its.pp != 1:
        raise UsageError("The engine has no pipelines; leave out pp.")
    for name, value in (("dp", its.dp), ("ep", its.ep)):
        if value != 1:
            raise UsageError(f"The engine does not divide experts or attention by {name}; leave out {name}.")
    options = {"tp": its.tp if its.tp != 1 else None, "hardware": its.hardware, "latency": its.latency}
    core = Core.of(
        policy, engine.kv, engine.admission, engine.seed, engine.prefix_cache, engine.speculate, engine.preempt,
        engine.tiers,
    )  # fmt: skip
    for kind, spec in (("policies", core.policy), ("kv", core.kv)):
        if isinstance(plugin := make(kind, spec), Simulated):
            raise UsageError(f"'{spec}' {plugin.simulated}, which the engine cannot; take --backend sim.")
    return Part(role, its.count, policy, router, {**given, **{k: v for k, v in options.items() if v is not None}}, core)
