"""What a router that knows time sees of a cluster, what it may decide, and what it may do later.

A gateway knows what replicas report, perhaps a while ago, and never how long an answer will be.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import inf
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from backends.serving.batch import Phase, Sequence, VisibleRequest
from backends.serving.hierarchy import predicted_load
from backends.serving.prefix_cache import PrefixCache, chain
from backends.serving.replica import Replica, Role
from harness.api import LatencyModel, tpot
from harness.errors import UsageError

NONE_UP = "no replica is up that could take it"

Decision: TypeAlias = "Send | Hold | Reject"
Action: TypeAlias = "Migrate | SetRole | Scale | Drain | Replicate | Lend"


@dataclass(frozen=True, slots=True)
class Send:
    """To this replica; where prefill and decode are apart `decode` is the one that it hands on to (None: the router's
    rule for hand-offs decides when the prompt is computed). The same replica twice serves the whole request, whatever
    its role is."""

    replica: int
    decode: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """The request stays at the router, which decides again at `until_s`; without it, or with `on_change`, whenever a
    replica changes."""

    until_s: float | None = None
    on_change: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The request ends with the status `rejected`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Migrate:
    """Move a request that decodes or waits at `source` to `target`; see `backends.serving.migration`.

    One that is anywhere else by then, or gone, is left alone.
    """

    request_id: int
    source: int
    target: int
    live: bool = True
    stages: int = 3
    last_blocks: int = 16


@dataclass(frozen=True, slots=True)
class SetRole:
    """Change what a replica does: at once, what runs there goes on (`now`), or when it is empty (`drain`).

    It runs nothing for `cost_s` seconds then.
    """

    replica: int
    role: Role
    after: Literal["drain", "now"] = "now"
    cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Add a replica like those of `role`, which is up after `ready_s` seconds (to load its weights)."""

    role: Role
    ready_s: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Send nothing more to a replica and give it up when it is empty; what waits there comes back to the router."""

    replica: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """Copy the stored blocks of this request's prefix from one prefix cache into another."""

    request: VisibleRequest
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Lend:
    """Free KV memory of `source`, `blocks` at most, becomes that of `target`, or is given back to it.

    A replica that owes memory to others lends none: it only gives back.
    """

    source: int
    target: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A replica goes down; its requests end with an error, or go back to the router (`requeue`)."""

    replica: int
    requeue: bool = False


@dataclass(frozen=True, slots=True)
class Up:
    """A replica is up, empty where it was down; with a `model` its steps take as long as that says from now on."""

    replica: int
    model: LatencyModel | None = None


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What a replica knows of one of its requests: tokens with KV, answer so far, whether it decodes or waits."""

    request_id: int
    tag: str | None
    priority: int
    arrived_s: float
    prompt_tokens: int
    stored_tokens: int
    emitted_tokens: int
    phase: Phase


@dataclass(slots=True)
class ReplicaView:
    """A replica as it was at `reported_s`: counts of sequences, tokens and blocks.

    `head_tokens` are those of the first request in its queue, `queued_tokens` those that the whole queue has still to
    compute, `context_tokens` what its next decode reads; `preempted` counts the requests that lost their
    memory and have not got it back. Not to be changed.
    """

    index: int
    role: Role
    alive: bool
    draining: bool
    gpus: int
    waiting: int
    running: int
    preempted: int
    queued_tokens: int
    head_tokens: int
    free_blocks: int
    total_blocks: int
    block_tokens: int
    context_tokens: int
    reported_s: float
    _replica: Replica = field(repr=False)
    _model: LatencyModel | None = field(repr=False)
    _sequences: tuple[SequenceView, ...] | None = field(repr=False)
    _cache: PrefixCache | None = field(default=None, repr=False)  # the replica has another one once it has failed
    _steps: int = field(default=0, repr=False)  # of a leap in flight that have ended
    _until_s: float = field(default=inf, repr=False)  # when the next one ends

    @property
    def open(self) -> bool:
        """Whether new requests may be sent to it."""
        return self.alive and not self.draining

    @property
    def requests(self) -> int:
        """Those that wait and those that run."""
        return self.waiting + self.running

    def sequences(self) -> ListOf[SequenceView]:
        """Its requests: those that decode in the order of admission, then those that wait in order of the queue."""
        return sequences_of(self._replica, self._steps) if self._sequences is None else self._sequences

    def decodes(self) -> Iterator[SequenceView]:
        """Those of its requests that decode, in the order of admission."""
        seen = decodes_of(self._replica, self._steps) if self._sequences is None else iter(self._sequences)
        return (seq for seq in seen if seq.phase is Phase.DECODE)

    def prefix_tokens(self, request: VisibleRequest) -> int:
        """Tokens at the head of the prompt that its prefix cache stores."""
        cache = self._cache
        return 0 if cache is None else cache.stored_tokens(chain(request, cache.block_tokens).keys, reported=True)

    def tier_load(self, request: VisibleRequest) -> tuple[int, float]:
        """Tokens of the prompt that its tiers store beyond its prefix cache, and seconds to load them alone."""
        return predicted_load(self._cache, self._replica.levels, request)

    def step_s(self, prefills: ListOf[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds that its latency model predicts of a step (`harness.api.LatencyModel`)."""
        if self._model is None:
            raise UsageError("This router must know how long steps take; only simulated and paced replicas tell.")
        return self._model.step_s(prefills, decode_seqs, context_tokens)


def sequences_of(replica: Replica, steps: int = 0) -> tuple[SequenceView, ...]:
    """The requests of a replica as a router may see them, `steps` steps of a leap in flight having ended."""
    # what a prefix cache may hold of those that wait is not stored for them
    return (*decodes_of(replica, steps), *(_sequence_view(seq, 0, 0) for seq in replica.waiting))


def decodes_of(replica: Replica, steps: int = 0) -> Iterator[SequenceView]:
    return (_sequence_view(seq, seq.computed + steps, steps) for lane in replica.lanes for seq in lane.decoding)


def _sequence_view(seq: Sequence, stored: int, more: int) -> SequenceView:
    request = seq._request  # `seq.request` makes a view each time
    return SequenceView(
        request.id, request.tag, request.priority, seq.arrived_s, seq.prompt, stored, seq.emitted + more, seq.phase
    )


def view_of(
    replica: Replica,
    gpus: int,
    model: LatencyModel | None,
    now_s: float,
    *,
    whole: bool,
    steps: int = 0,
    early: int = 0,
) -> ReplicaView:
    """A replica as it is now; `whole` lists its sequences too, for a view that will be read later.

    Of a leap in flight `steps` have ended, and it has taken `early` blocks for those that have not begun.
    """
    waiting, blocks, decoding = replica.waiting, replica.blocks, replica.decoding
    preempted, queued_tokens = 0 if replica.swap is None else len(replica.swap), 0
    if waiting:
        emitted = [seq._emitted for seq in waiting]  # a queue may be thousands long, and is counted at every change
        preempted += len(emitted) - emitted.count(0)
        queued_tokens = sum(emitted) + sum([seq.prompt for seq in waiting])
    context_tokens = decoding.context + steps * decoding.rows
    if replica.pipeline is not None:
        context_tokens = sum(lane.decoding.context for lane in replica.lanes)  # pipelines do not leap
    return ReplicaView(
        replica.index, replica.role, replica.alive, replica.draining, gpus, len(waiting), replica.running, preempted,
        queued_tokens, waiting[0].prompt + waiting[0]._emitted if waiting else 0, blocks.free + early, blocks.total,
        blocks.size, context_tokens, now_s, replica, model,
        sequences_of(replica, steps) if whole else None, replica.cache, steps,
    )  # fmt: skip


@dataclass(slots=True)
class ClusterView:
    """All replicas, the requests that the router holds in order, and the ids of those that are being migrated."""

    replicas: ListOf[ReplicaView]
    held: ListOf[VisibleRequest]
    migrating: Mapping[int, tuple[int, int]]
    """Request id: (source, target)."""

    def open(self, *roles: Role) -> list[ReplicaView]:
        """The replicas of these roles (all where there are none) to which requests may be sent."""
        return [replica for replica in self.replicas if replica.open and (not roles or replica.role in roles)]


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What a gateway knows of a request that is over, in seconds; `failed` where it ended with an error."""

    request: VisibleRequest
    replica: int
    end_s: float
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    failed: bool = False


@runtime_checkable
class DecidingRouter(Protocol):
    """A router that knows the time, and may hold or reject a request."""

    @property
    def report_s(self) -> float:
        """Seconds between two reports of the replicas; 0: views are always fresh."""
        ...

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """Where the request goes. Without side effects on what it has not decided."""
        ...


@runtime_checkable
class PeriodicRouter(Protocol):
    """A router that acts by itself every `tick_s` seconds."""

    @property
    def tick_s(self) -> float: ...

    def tick(self, now_s: float, view: ClusterView) -> Iterable[Action]:
        """What is to be done now, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a router needs of its cluster; without it, it would do nothing there, or fail in the middle of a run.

    `layout`: it acts on replicas alike only (`mixed`), or only where prefill and decode are apart (`apart`); None: on
    any. It changes roles, adds replicas (`scales`), lends memory among replicas without a prefix cache (`lends`), or
    needs to know how long steps take (`step_times`). A cluster that
    it scales has the size that its traffic asks for `settles_s` seconds after the start.
    """

    layout: Literal["mixed", "apart"] | None = None
    changes_roles: bool = False
    scales: bool = False
    lends: bool = False
    step_times: bool = False
    settles_s: float = 0.0


@runtime_checkable
class RequiringRouter(Protocol):
    """A router that does not go with every cluster."""

    @property
    def requires(self) -> Requirements: ...


@runtime_checkable
class OrderedRouter(Protocol):
    """A router that holds in order: where one request is held until a replica changes, so is each that came later."""

    @property
    def holds_in_order(self) -> bool:
        """Whether it does; then only the first of those that wait for a change is decided on again."""
        ...


@runtime_checkable
class HandOffRouter(Protocol):
    """A router that decides again when a prompt is computed."""

    def hand_off(self, request: VisibleRequest, now_s: float, view: ClusterView) -> int | Reject | None:
        """The decode replica that gets it (None: the one planned, or the rule for hand-offs), or why it ends here."""
        ...


@runtime_checkable
class LearningRouter(Protocol):
    """A router that learns of every request that ends."""

    def on_finish(self, finished: FinishedRequest) -> None: ...


def requirements(router: object) -> Requirements:
    """What this router needs of its cluster."""
    return router.requires if isinstance(router, RequiringRouter) else Requirements()


def acts(router: object) -> bool:
    """Whether this router knows time."""
    return isinstance(router, (DecidingRouter, PeriodicRouter, LearningRouter))


def finished(seq: Sequence, replica: int, end_s: float, *, failed: bool = False) -> FinishedRequest:
    """What a gateway has seen of this sequence."""
    token_s, tokens = seq.token_s, seq.emitted
    first_s = token_s[0] - seq.request.scheduled_s if token_s else None
    tpot_s = tpot(token_s[0], token_s[-1], tokens) if token_s else None
    return FinishedRequest(seq.request, replica, end_s, tokens, first_s, tpot_s, failed)
