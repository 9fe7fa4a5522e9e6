"""Recorded times: the simulator runs on the clock of a stored run, such as one of the engine.

Each step and each copy of KV, between replicas or between one and its tiers, ends when it did in that run, each request
arrives when that run's scheduler saw it, and time begins when it did there. With the same policies, routers and memory
the simulator then gives every token time of the run, equal to the last bit: its error is its latency model's error and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from backends.serving.batch import Batch, Sequence
from harness.api import FollowUps, LatencyModel, Request, RequestRecord
from harness.data.folder import load
from harness.data.records import STEPS
from harness.errors import NotValid, UsageError
from harness.registry import make
from harness.spec import parse

if TYPE_CHECKING:
    from backends.serving.handoff import Transfer
    from backends.serving.hierarchy import Transit
    from backends.serving.migration import Migration
    from backends.serving.replica import Replica, Role

FORMED = ("start_s", "prefill_tokens", "waiting", "running", "free_blocks")
"""Columns of a step in which the batch that the simulator forms must equal that of the run."""


@dataclass(slots=True)
class Recorded:
    """`run` is the folder of a run that has `steps.parquet` and `requests.parquet`.

    Not a LatencyModel: times are looked up by the place of a step, not computed from its load. Pages and KV memory are
    those of the run, too, unless they are given. Runs with failures, or requests that were given up, are refused.
    """

    run: str
    facts: Mapping[str, Any] = field(init=False, repr=False)
    begun_s: float = field(init=False, repr=False)
    last_s: float = field(init=False, repr=False)
    """When the last step of the run ended, or the last request arrived."""
    steps: pa.Table = field(init=False, repr=False)
    copies: dict[int, list[float]] = field(init=False, repr=False)  # by request id: ends in their order
    tier_copies: dict[int, list[float]] = field(init=False, repr=False)  # by replica: those from and to its tiers
    tokens: dict[int, list[int] | None] = field(init=False, repr=False)  # by request id: of each stamp; None: one
    _arrived: dict[int, tuple[float, float]] = field(init=False, repr=False)  # by request id: (arrived, sent)

    def __post_init__(self) -> None:
        run = load(self.run)
        self.facts = cast("dict[str, Any]", run.info.backend)
        self.steps = STEPS.empty_table() if run.steps is None else run.steps
        names = ("request_id", "arrived_s", "sent_s", "status", "token_n")
        ids, arrived_s, sent_s, statuses, tokens = (run.requests[name].to_pylist() for name in names)
        self._arrived = {i: (a, s) for i, a, s in zip(ids, arrived_s, sent_s, strict=True) if a is not None}
        if not self._arrived:
            raise UsageError(f"'{self.run}' has no arrived_s: its backend did not record arrivals at its scheduler.")
        on_engine = self.facts.get("backend") == "engine"
        lost = [
            status
            for i, status in zip(ids, statuses, strict=True)
            if status in ("timeout", "cancelled") or (on_engine and status != "dropped" and i not in self._arrived)
        ]
        if lost:
            raise UsageError(
                f"{len(lost)} requests of '{self.run}' were given up, are longer than its model takes, or failed with "
                "it; recorded repeats none of these."
            )
        actions = [] if run.actions is None else run.actions.to_pylist()
        if any(action["kind"] == "down" and action["detail"] == "failed" for action in actions):
            raise UsageError(f"A replica failed in '{self.run}'; recorded repeats runs without failures.")
        self.last_s = max([*self.steps["end_s"].to_pylist(), *(at_s for at_s, _ in self._arrived.values())])
        self.copies, self.tier_copies = {}, {}
        for action in actions:
            request_id = action["request_id"]
            if action["kind"] == "copy" and request_id is None:
                self.tier_copies.setdefault(action["replica"], []).append(action["end_s"])
            elif action["kind"] == "copy":
                self.copies.setdefault(request_id, []).append(action["end_s"])
            elif action["kind"] == "hold" and request_id in self._arrived:  # at the router, before any replica saw it
                at_s, left_s = self._arrived[request_id]
                self._arrived[request_id] = min(at_s, action["at_s"]), left_s
        # How many drafts were right follows from what a model wrote; without one it is chance, as in the simulator.
        spoke = on_engine and "late_after_s" not in self.facts
        self.tokens = dict(zip(ids, tokens, strict=True)) if spoke else {}
        self.begun_s = self.facts.get("begun_s", 0.0)

    def of(self, role: Role) -> Mapping[str, Any]:
        """Facts of the replicas of this role in the run."""
        return {**self.facts, **self.facts.get(role, {})}

    def known_model(self, role: Role) -> LatencyModel | None:
        """The latency model of the run, for policies and routers that must know how long steps take."""
        facts = self.of(role)
        if "latency" not in facts or parse(facts["latency"]).name == "recorded":
            return None
        system = {name: facts[name] for name in ("model", "hardware", "tp", "pp", "dp", "ep") if name in facts}
        built: LatencyModel = make("latency", facts["latency"], **system)
        return built

    def check_ended(self, number: int) -> None:
        """Raise NotValid unless as many requests have ended as arrived in the run."""
        if number < len(self._arrived):
            missing = len(self._arrived) - number
            raise NotValid(
                f"{missing} of {len(self._arrived)} requests have not ended when the last one of the run has; give it "
                "the run's workload, policy, router and memory."
            )

    def retimed(
        self,
        requests: Iterable[Request],
        follow_ups: FollowUps | None,
        simulate: Callable[[Iterator[Request], FollowUps | None], Iterator[RequestRecord]],
    ) -> Iterator[RequestRecord]:
        """Simulate the requests that arrived in the run, in that order; records have the sending times of the run."""

        def arriving(incoming: Iterable[Request]) -> list[Request]:
            return sorted((request for request in incoming if request.id in self._arrived), key=self.arrived)

        more = None if follow_ups is None else lambda record: arriving(follow_ups(record))
        for record in simulate(iter(arriving(requests)), more):
            record.sent_s = self._arrived[record.request_id][1]
            yield record

    def arrived(self, request: Request) -> tuple[float, float, int]:
        """When the scheduler of the run saw a request, and the order of those of one instant: that of sending."""
        return *self._arrived[request.id], request.id

    def right_drafts(self, seq: Sequence, drafts: int) -> int:  # noqa: ARG002  the model had so many
        """How many drafts of a sequence were right in the step that gives its next tokens."""
        counts = self.tokens[seq.request.id]
        return 0 if counts is None else counts[len(seq.token_s)] - 1


class Repetition:
    """A recorded run once more: ends of its steps and of its copies, each the next one of its replica or request."""

    def __init__(self, recorded: Recorded, replicas: Iterable[Replica]) -> None:
        self._recorded = recorded
        self._steps: dict[int, list[tuple[float, ...]]] = {}
        steps = recorded.steps
        columns = (steps[name].to_pylist() for name in ("replica", "end_s", *FORMED))
        for replica, *row in zip(*columns, strict=True):
            self._steps.setdefault(replica, []).append(tuple(row))
        self._next = dict.fromkeys(self._steps, 0)
        self._copies = {request_id: iter(ends) for request_id, ends in recorded.copies.items()}
        self.tier_copies = {replica: iter(ends) for replica, ends in recorded.tier_copies.items()}
        if recorded.tokens:
            for replica in replicas:
                if replica.drafts is not None:
                    replica.drafts.kept = recorded.right_drafts

    def end_s(self, replica: Replica, batch: Batch) -> float:
        """When the next step of a replica ended. Raises NotValid if the simulator forms another batch than the run."""
        rows, place = self._steps.get(replica.index, []), self._next.get(replica.index, 0)
        prompt_tokens = sum(tokens for _, tokens in batch.prefills)
        formed = batch.start_s, prompt_tokens, batch.waiting, batch.running, batch.free_blocks
        end_s, *ran = rows[place] if place < len(rows) else (inf,)
        if tuple(ran) != formed:
            ran_text, formed_text = (
                ", ".join(f"{name} {value:.9g}" for name, value in zip(FORMED, step, strict=False)) or "none"
                for step in (ran, formed)
            )
            raise NotValid(
                f"Step {place} of replica {replica.index} is another one than in the run (there {ran_text}; here "
                f"{formed_text}); give it the run's policy, router and memory."
            )
        self._next[replica.index] = place + 1
        return end_s

    def move(self, transfer: Transfer, end_s: float) -> float:
        """When all KV of a sequence that moves is at its target."""
        return self._copied_s(transfer.seq, end_s)

    def copy(self, migration: Migration, first_token: int, end_s: float) -> float:  # noqa: ARG002  it is recorded
        """When a stage of a live migration is copied."""
        return self._copied_s(migration.seq, end_s)

    def carry(self, transits: ListOf[Transit]) -> float:
        """When the blocks are copied that a replica exchanges with its tiers from one instant on."""
        return next(self.tier_copies.get(transits[0].replica.index, iter(())), inf)

    def _copied_s(self, seq: Sequence, end_s: float) -> float:
        # A simulated run has no copies but those of its link.
        return next(self._copies.get(seq.request.id, iter(())), inf) if self._copies else end_s
