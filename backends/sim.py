"""The simulator: the serving core under a virtual clock; a latency model says how long each batch takes.

Nothing is scheduled here: the replicas decide, this loop only keeps the time. At one instant batches are committed
first, then requests arrive, then replicas form new batches. A batch that would repeat is executed as one leap up
to the next event; stepping through it instead gives the same records, bit for bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from backends.latency.recorded import Recorded
from backends.serving.cluster import Cluster
from backends.serving.handoff import Link
from backends.serving.journal import Journal
from backends.serving.pipeline import Pipeline, bubble_share
from backends.serving.plugins import Sharing, Simulated
from backends.serving.replica import Replica
from backends.serving.routing import Fail, Up, requirements
from backends.simulator.core import Lora, adapter_facts, block_cost, preemption_costs, token_bytes
from backends.simulator.layout import (
    ActionCounts,
    Rate,
    ReplicaGroup,
    blocks_of,
    cluster,
    cluster_facts,
    divided,
    failures,
    first_tokens,
    hierarchy,
    link_of,
    refuse_unused,
    replica_groups,
    router_acts,
)
from backends.simulator.loop import EndedSequence, Flow, columns, simulate, step_ends
from backends.simulator.real_time import RealTime
from backends.simulator.step_log import StepLog
from harness.api import ActionEvent, FollowUps, LatencyModel, Request, RequestRecord, ResponseCache
from harness.bounds import AtLeastOne, Positive, PositiveShare, check
from harness.catalog import Shape, facts_of_files, model
from harness.data.records import TABLE_ROWS, in_tables, table_of, to_table
from harness.errors import UsageError
from harness.spec import build, parse

LANES = 1 << 20  # a lane of a pipeline draws as a replica of its own: its number times this, plus the replica's
HAND_OFF = MappingProxyType({"handoff": ("pull",), "link": ("nvlink", "none")})
"""Options of a cluster with prefill and decode replicas only, and the values that change nothing elsewhere."""


@dataclass(slots=True)
class Sim:
    """A simulated cluster of `replicas` equal replicas, each on `tp` x `dp` x `pp` GPUs: `pp` stages of a pipeline, in
    each `dp` groups of `tp` GPUs with sequences of their own, and experts on `ep` equal parts of all of them.

    Or, with `prefill=2:tp=2` and `decode=1`, so many replicas for prefill and for decode alone: KV is handed on over
    `link` (nvlink, pcie, none, 25Gbps, 600GBps:latency=1ms), pulled or pushed (`handoff`). With `prefill` alone every
    request ends with its first token, with `decode` alone requests come with their prompts computed. A side may have a
    policy, router, latency model and kind of GPU of its own (`decode=1:policy=distserve-decode:max_seqs=64`,
    `decode=2:hardware=a100-80g`); `router` is that of the prefill side.

    `groups=[1:model=llama2-13b,tp=2+2:hardware=h100]` are further replicas, of other base models or on other GPUs. A
    request goes to replicas of the model that it names (none: `model`), which have a router like `router` of their own;
    where none serves it, it is rejected.

    A router that acts (`bench list routers`) moves KV between replicas alike over `link`, too (nvlink where the GPU has
    it, else pcie). `fail` plans failures: `replica:1@60s..90s`, with `,requeue` its requests go back to the router;
    `expert:3@60s` is server 3 of those that have the experts, without which steps take longer.

    With `lora=slots=8,rank=16` requests that name a model run with a LoRA adapter, and wait while it has no slot.
    `speculate=[k=4,alpha=0.7]` drafts tokens, `speculate=mtp` by the model's own layers with the acceptance that the
    catalogue has of them.

    `tiers=dram:size=60GB+ssd` is the memory hierarchy under the prefix caches, the fastest tier first (`bench list
    tiers`).

    `latency`, `policy`, `kv`, `admission` and `router` are specs of their kinds; what they draw follows from `seed`.
    KV memory is what `hardware` leaves beside the weights of `model` at `utilisation`, unless `kv_blocks` (or `kv`
    itself) says how many blocks there are. `max_model_len` is the longest prompt and answer in tokens, by default
    the context of the model; a run of longer requests is not valid. `journal` keeps every call into the replicas in
    memory, for tests. Without `log_steps` the run has no `steps` table and is a sixth faster; without `leap` it is
    slower and equal. `usd_per_hour` is what all GPUs together cost, for results per dollar.
    """

    model: str = "opt-13b"
    hardware: str = "a100-80g"
    latency: str = "operators"
    policy: str = "sarathi"
    kv: str = "paged"
    admission: str = "fcfs"
    prefix_cache: str = "off"
    speculate: str | None = None
    preempt: str = "recompute"
    lora: str | None = None
    tiers: str | None = None
    tp: AtLeastOne = 1
    pp: AtLeastOne = 1
    dp: AtLeastOne = 1
    ep: AtLeastOne = 1
    replicas: AtLeastOne = 1
    groups: str | None = None
    router: str = "round-robin"
    prefill: str | None = None
    decode: str | None = None
    handoff: Literal["pull", "push"] = "pull"
    link: str = "nvlink"
    fail: str | None = None
    utilisation: PositiveShare = 0.9
    kv_blocks: int | None = None
    max_model_len: AtLeastOne | None = None
    leap: bool = True
    journal: bool = False
    log_steps: bool = True
    seed: int = 0
    usd_per_hour: Positive | None = None
    cluster: Cluster = field(init=False)
    adapted: Lora | None = field(init=False, repr=False)
    _model: LatencyModel | Recorded = field(init=False)
    _steps: StepLog = field(init=False)
    _parts: tuple[ReplicaGroup, ...] = field(init=False, repr=False)
    _link: Link = field(init=False, repr=False)
    _rate: Rate | None = field(init=False, repr=False)
    _flow: Flow | None = field(default=None, init=False, repr=False)
    _changes: list[tuple[float, Fail | Up]] = field(default_factory=list, init=False, repr=False)
    response_cache: ResponseCache | None = field(default=None, init=False, repr=False)
    _acted: ActionCounts = field(default_factory=ActionCounts, init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        self.adapted = None if self.lora is None else build(Lora, parse(f"lora:{self.lora}"))
        self._parts = replica_groups(self)
        first = self._parts[0]
        acts = router_acts(first.router)
        self._refuse_what_would_be_ignored(acts=acts)
        self._link, self._rate = Link(), None
        if acts or (self.prefill is not None and self.decode is not None):
            gpus = [part.shape.hardware for part in self._parts]
            self._link, self._rate = link_of(self.link, self.model, gpus, first.role)
        if self.fail is not None:
            self._changes = failures(self.fail, self._parts)
        self._model = first.model
        self.reset()

    def _refuse_what_would_be_ignored(self, *, acts: bool) -> None:
        recorded = [part for part in self._parts if isinstance(part.model, Recorded)]
        if recorded and (self.fail is not None or self.lora is not None):
            raise UsageError("latency=recorded repeats a run without failures and adapters.")
        if recorded and (self.groups is not None or len({part.latency for part in self._parts}) > 1):
            raise UsageError("latency=recorded repeats a whole run; give no groups, and no side another latency.")
        if self.prefill is None and self.decode is None:  # one side alone may be a part of a cluster that has a link
            refuse_unused(self, HAND_OFF, acts=acts)
        elif acts and (self.prefill is None or self.decode is None):
            raise UsageError(f"router={self.router} acts on whole clusters; give prefill and decode replicas.")

    def reset(self) -> None:
        """Forget everything that was simulated: fresh replicas, empty memory."""
        self.cluster = cluster(
            self._parts, self._replica, self._link, pull=self.handoff == "pull",
            hierarchy=hierarchy(self._parts),
        )  # fmt: skip
        # The parts of steps that were not run, that a policy timed, or that slowed one another down are unknown.
        unknown = isinstance(self._model, Recorded) or any(
            isinstance(r.policy, Simulated) for r in self.cluster.replicas
        )
        members = () if unknown else self.cluster.members
        self._steps = StepLog(members)
        self._acted = ActionCounts()

    def _replica(self, part: ReplicaGroup, index: int) -> Replica:
        core, m = part.core, model(part.serves)
        _, kv_bits = part.stored_bits
        recorded = part.model.of(part.role) if isinstance(part.model, Recorded) else {}
        memory = core.memory(recorded.get("layer_token_bytes") or token_bytes(m, part.shape.tp, kv_bits))
        blocks = blocks_of(part, memory, self)
        journal, cost = Journal() if self.journal else None, block_cost(m, part.shape, memory.block_tokens, kv_bits)
        cost = replace(cost, bytes=recorded.get("kv_block_bytes", cost.bytes))
        adapters = None if self.adapted is None else self.adapted.adapters(m, part.shape)
        front = core.replica(memory, blocks, index, journal, cost, adapters)
        if self._rate is not None:  # per head a query and a partial result of 16 bits go, and two sums of 32 bits
            row_bytes = m.heads * (2 * m.head_dim * 2 + 8)
            front.exchange_s = m.layers * self._rate.latency_s, m.layers * row_bytes / self._rate.bytes_per_s
        sharing, stages = front.policy if isinstance(front.policy, Sharing) else None, part.shape.pp
        alike = len({group.policy for group in self._parts}) == 1
        whole = part.role == "mixed" and stages == 1 and alike and not isinstance(part.model, Recorded)
        if sharing is not None and not whole:
            raise UsageError(
                f"policy={part.policy} has lanes on shares of GPUs, which do not go with pp, prefill and decode, "
                "groups of another policy, or latency=recorded; leave these out."
            )
        if sharing is not None or stages > 1:
            policies = [None] * stages if sharing is None else sharing.lanes()
            draws = range(LANES + index, LANES * (len(policies) + 1), LANES)
            lanes = [
                core.replica(memory, blocks, number, None, cost, policy=policy)
                for number, policy in zip(draws, policies, strict=True)
            ]
            Pipeline(front, lanes, sharing)
        return front

    def simulate(self, requests: Iterable[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end; `requests` are ordered by `scheduled_s`."""
        if isinstance(self._model, Recorded):
            return self._model.retimed(
                requests,
                follow_ups,
                lambda first, more: map(EndedSequence.record, self._ended(first, more)),
            )
        requests, follow_ups = self._as_served(requests, follow_ups)
        return map(EndedSequence.record, self._ended(iter(requests), follow_ups))

    def tables(
        self, requests: Iterable[Request], follow_ups: FollowUps | None = None, rows: int = TABLE_ROWS
    ) -> Iterator[pa.Table]:
        """The records of `simulate` as tables of `rows` rows; a last one of fewer where it ends, or is ended."""
        if isinstance(self._model, Recorded):
            return in_tables(self.simulate(requests, follow_ups), rows, to_table)
        first, more = self._as_served(requests, follow_ups)
        return in_tables(self._ended(iter(first), more), rows, lambda ended: table_of(columns(ended)))

    def _ended(self, requests: Iterator[Request], follow_ups: FollowUps | None) -> Iterator[EndedSequence]:
        steps, front = self._steps if self.log_steps else None, self._parts[0].front
        # The loop of whole replicas knows no event but arrivals and ends of batches, and pays for no other.
        if isinstance(self._model, Recorded):
            if self.response_cache is not None:
                raise UsageError("latency=recorded repeats a run without a response cache; leave --response-cache out.")
            self._flow = Flow(self.cluster, steps, requests, follow_ups, leap=False, recorded=self._model)
            return self._flow.ended()
        if self._plain:
            return simulate(self.cluster, self._model, steps, requests, follow_ups, leap=self.leap, front=front)
        self._flow = Flow(
            self.cluster, steps, requests, follow_ups, leap=self.leap, front=front, cache=self.response_cache
        )
        for at_s, change in self._changes:
            self._flow.loop.plan(at_s, change)
        return self._flow.ended()

    @property
    def settles_s(self) -> float:
        """Seconds from the start until the cluster has the size that its traffic asks for; 0 where that is fixed."""
        return requirements(self.cluster.router).settles_s

    @property
    def _acts(self) -> bool:
        """Whether anything but arrivals and ends of steps happens."""
        return self.cluster.acts or bool(self._changes)

    @property
    def _plain(self) -> bool:
        """Whether replicas are alike and have one batch in flight each, and nothing acts but arrivals at them."""
        plain = self.tiers is None and self.response_cache is None
        one_batch = all(replica.pipeline is None for replica in self.cluster.replicas)
        return self._parts[0].role == "mixed" and len(self._parts) == 1 and one_batch and not self._acts and plain

    def _as_served(
        self, requests: Iterable[Request], follow_ups: FollowUps | None
    ) -> tuple[Iterable[Request], FollowUps | None]:
        """The requests as this cluster serves them."""
        if self.prefill is not None and self.decode is None:
            return first_tokens(requests, follow_ups)
        return requests, follow_ups

    def real_time(self) -> RealTime:
        """The same replicas, policy and latency model for a clock that runs by itself.

        Raises UsageError where there is no such thing: for step times of a stored run.
        """
        latency = self._model
        if isinstance(latency, Recorded):
            raise UsageError("latency=recorded repeats a run that is over; it cannot serve requests as they come.")
        if (self.prefill is None) != (self.decode is None):
            raise UsageError("To serve requests give prefill and decode replicas, not one of the two alone.")
        members = self.cluster.members
        live = RealTime(
            self.cluster,
            lambda batch, start_s: step_ends(members[batch.replica].model, batch, start_s, start_s)[0],  # type: ignore[arg-type]  # none is Recorded
            self._parts[0].front,
        )
        for at_s, change in self._changes:
            live.loop.plan(at_s, change)
        return live

    def actions(self) -> list[ActionEvent]:
        """What the router did, and what befell replicas, since the last call."""
        if self._flow is None:
            return []
        events, self._flow.loop.actions = self._flow.loop.actions, []
        self._acted.add(events)
        return events

    def steps_table(self) -> pa.Table:
        in_flight = [replica.in_flight.start_s for replica in self.cluster.replicas if replica.in_flight is not None]
        return self._steps.table(min(in_flight, default=inf))

    @property
    def max_tokens(self) -> int:
        """The longest prompt and answer that every model takes."""
        recorded = self._model.facts.get("max_tokens") if isinstance(self._model, Recorded) else None
        return self.max_model_len or recorded or min(model(part.serves).max_tokens for part in self._parts)

    def describe(self) -> Mapping[str, object]:
        blocks = self.cluster.replicas[0].blocks
        predictors = dict.fromkeys(part.core.predictor for part in self._parts if part.core.predictor is not None)
        piped = self._flow if any(part.shape.pp != 1 for part in self._parts) else None
        return {
            "backend": "sim", "model": self.model, "max_tokens": self.max_tokens,
            "hardware": self.hardware, "latency": self.latency,
            "policy": " + ".join(dict.fromkeys(part.policy for part in self._parts)), "kv": self.kv,
            "admission": self.admission, "speculate": self.speculate or "off", "preempt": self.preempt,
            "kv_blocks": blocks.total, "kv_tokens": blocks.total * blocks.size,
            "replicas": sum(part.count for part in self._parts), "router": self._parts[0].router,
            **divided(Shape(self.tp, self.pp, self.dp, self.ep)),
            "gpus_at_start" if requirements(self.cluster.router).scales else "gpus": sum(p.gpus for p in self._parts),
            **(self._parts[0].pool_facts if len(self._parts) == 1 else {}),
            **({"usd_per_hour": self.usd_per_hour} if self.usd_per_hour is not None else {}),
            "prefix_cache": self.cluster.replicas[0].cache is not None,
            **({"predictor": " + ".join(predictors)} if predictors else {}),
            **cluster_facts(self._parts, self.cluster, self._rate, self.handoff),
            **(
                self._acted.facts(self._flow.loop)
                if self._flow and self._acts
                else {}
            ),
            **({} if piped is None else {"bubble_share": bubble_share(piped.loop.stages)}),
            **preemption_costs(self.cluster.replicas),
            **adapter_facts(self.lora, self.cluster.replicas),
            **({} if self.cluster.hierarchy is None else {"tiers": self.cluster.hierarchy.facts()}),
            **facts_of_files(self.model, tuple(dict.fromkeys(part.shape.hardware for part in self._parts))),
        }  # fmt: skip
