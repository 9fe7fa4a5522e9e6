"""A cluster of the engine: the core's loop under the wall clock, with an executor for each replica.

The executors are elsewhere, one process a replica; messages to them and from them are all that happens here. `Loop`
decides as in the simulator, so that equal times give equal batches.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, replace
from math import inf, nextafter

from backends.engine_process.generation import Answers, GenerationParams, PlannedStep, Work
from backends.executors.paced import Pace, pace_facts
from backends.serving.batch import Batch, Sequence
from backends.serving.cluster import Cluster
from backends.serving.handoff import Transfer
from backends.serving.hierarchy import Transit
from backends.serving.loop import Loop
from backends.serving.migration import Migration
from backends.serving.replica import Replica
from backends.serving.routing import Fail
from backends.simulator.core import preemption_costs
from backends.simulator.layout import ActionCounts
from backends.simulator.real_time import Incoming, Turn
from harness.api import ActionEvent, Ended, Request


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the KV blocks `source_blocks` of replica `source` into `blocks`, or without these to host memory.

    `number` comes back when that is done.
    """

    number: int
    source: int
    source_blocks: list[int]
    blocks: list[int] | None
    request_id: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget what host memory holds of a request."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy blocks into the tiers of a replica and from there, then forget what these do not store any more.

    `stored` and `loaded` are (key, id of a block); `number` comes back when all is done.
    """

    number: int
    stored: list[tuple[int, int]]
    loaded: list[tuple[int, int]]
    evicted: list[int]


Message = Work | Copy | Drop | Offload


class EngineCluster:
    """The driver of a cluster whose replicas have executors; `send(replica, message)` passes one of these a message.

    The executors of a paced cluster, one of `paces` a replica, wait until a step is over; transfers take the time of
    the link there. Others compute and copy, which takes what it takes; a transfer no less than the link. All times are
    of the caller's clock. What becomes known after something later has happened happens after that: every instant is
    handled once, so that a replay that knows when each step and copy ended decides the same.
    """

    def __init__(
        self,
        cluster: Cluster,
        answers: Answers,
        send: Callable[[int, Message], None],
        paces: ListOf[Pace] = (),
        start_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.results: deque[Turn] = deque()
        self._answers = answers
        self._send = send
        self._paces = paces
        self._incoming = Incoming()
        if cluster.hierarchy is not None and not paces:
            cluster.hierarchy.carry = self.carry
        self.loop = Loop(cluster, self, self._incoming, mover=self, fails=True)
        self.loop.replicates = bool(paces)
        self.loop.begin(start_s)
        self._facts: Mapping[str, object] = {"begun_s": start_s}  # for run.json, with the next turn
        self._steps: dict[int, PlannedStep] = {}  # by replica: in flight
        self._due_s: dict[int, float] = {}  # by replica: when its paced step is due, until its executor reports
        self._moving: dict[int, tuple[ActionEvent, Callable[[float], None]]] = {}  # copies by number, what an end means
        self._numbers = 0
        self._acted = ActionCounts()
        self._withdrawn: set[int] = set()  # their tokens are needed until they have left
        self._hosted: dict[int, int] = {}  # request id: replica whose host memory has its KV
        self._pushed: dict[int, int] = {}  # request id: tokens whose KV was pushed and has no blocks yet

    @property
    def next_s(self) -> float:
        """When `advance` has something to do if no executor reports anything; inf when never."""
        return max(self.loop.next_s, self._held_until_s(self.loop.next_s))

    def arrive(self, request: Request, params: GenerationParams | None, at_s: float) -> Turn | None:
        """A request arrives, not before what has happened already; what its refusal is, if the model cannot take it."""
        at_s = max(self._after_now_s(at_s), self._incoming.last_s)
        refusal = self._answers.refusal(request)
        if refusal is not None:  # no replica sees it
            return Turn(at_s, ended=[Ended(request.id, at_s, "rejected", refusal)])
        self._answers.add(request, params)
        self._incoming.put(request, at_s)
        return None

    def withdraw(self, request_id: int) -> None:
        """A request is not wanted any more: it is in no further step."""
        if self._incoming.withdraw(request_id):
            self._answers.forget(request_id)
        else:
            self._withdrawn.add(request_id)
            self.loop.withdraw(request_id, self.loop.now_s)

    def ran(self, index: int, sampled: ListOf[int | None], end_s: float) -> None:
        """The executor of a replica has run its step until `end_s`, and sampled a token for each piece."""
        step = self._steps[index]
        if step.work.end_s is None:
            self._answers.take(step, sampled)
        else:
            del self._due_s[index]
            end_s = self._paces[index].ended(step.work.end_s, end_s)
        self.loop.ended(self.cluster.replicas[index], [self._after_now_s(end_s)])

    def copied(self, number: int, at_s: float) -> None:
        """The copy of this number is made."""
        copy, then = self._moving.pop(number)
        # A copy that was quicker than the link would have been counts from when the link is through.
        copy = replace(copy, end_s=self._after_now_s(max(at_s, copy.end_s)))
        self.loop.note(copy)
        then(copy.end_s)

    def lost(self, index: int, now_s: float) -> None:
        """The executor of a replica is gone."""
        self._steps.pop(index, None)
        self._due_s.pop(index, None)
        self.loop.at(max(now_s, self.loop.now_s), Fail(index))

    def advance(self, now_s: float) -> Iterator[Turn]:
        """What has happened until now."""
        # A paced step that ends in time counts from when it was due. Until its executor reports, or it is late,
        # nothing is decided for a later time: the decision would not know of what came before it.
        if now_s < self._held_until_s(now_s):
            now_s = nextafter(min(self._due_s.values()), -inf)
        yield from self.loop.advance(now_s)
        if gone := self._withdrawn - self.loop.withdrawn:
            self._withdrawn -= gone
            for request_id in gone:
                self._over(request_id)
            self._tell(Turn(self.loop.now_s))  # memory is free again, and perhaps no step follows that would say so
            yield self.results.pop()

    # ---- what the loop calls ----------------------------------------------------------------------------------

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> None:  # noqa: ARG002  its own end
        """Pass the step of a batch to the executor, which will report its end."""
        if self._paces:
            step = self._answers.plan_paced(self._paces[replica.index], replica, batch)
        else:
            step = self._answers.plan(replica, batch)
            self._place_pushed(step, replica)
            for request_id, _, leaves in step.work.swaps:
                if leaves:
                    self._hosted[request_id] = replica.index
                else:
                    del self._hosted[request_id]
        self._steps[replica.index] = step
        if step.work.end_s is not None:
            self._due_s[replica.index] = step.work.end_s
        self._send(replica.index, step.work)

    def move(self, transfer: Transfer, end_s: float) -> float | None:
        """Let the executor of the target copy the KV, or what a live migration has left of it."""
        seq, source, target = transfer.seq, transfer.source, transfer.target
        assert source is not None
        done = 0 if transfer.migration is None else transfer.migration.copied_tokens // source.blocks.size
        table = source.outbox.leaving[seq][1][done : source.blocks.blocks_for(seq.computed)]
        if self._paces or not table:
            return self._over_link(seq, source, target, end_s)
        blocks = None
        if seq.blocks:
            blocks = target.table(seq)[done : done + len(table)]
        else:  # it is pushed: where it goes is known when it has landed
            self._hosted[seq.request.id], self._pushed[seq.request.id] = target.index, seq.computed
        self._copy(source, table, target, blocks, seq, end_s, lambda at_s: self.loop.landed(transfer, at_s))
        return None

    def copy(self, migration: Migration, first_token: int, end_s: float) -> float | None:
        """Let the executor of the target copy the blocks that are full."""
        seq, source, target = migration.seq, migration.source, migration.target
        first, last = first_token // source.blocks.size, migration.copied_tokens // source.blocks.size
        table = seq.table[first:last]
        if self._paces or not table:
            return self._over_link(seq, source, target, end_s)
        blocks = target.name_reserved(seq.request.id, last)[first:last]
        self._copy(source, table, target, blocks, seq, end_s, lambda at_s: self.loop.copied(migration, at_s))
        return None

    def carry(self, transits: ListOf[Transit]) -> None:
        """Let the executor of a replica copy what it exchanges with its tiers from now on."""
        replica, size = transits[0].replica, transits[0].replica.blocks.size
        stored: list[tuple[int, int]] = []
        loaded: list[tuple[int, int]] = []
        for transit in transits:
            if transit.request_id is None:
                stored += zip(transit.keys, transit.ids, strict=True)
            else:
                ids = replica.name_reserved(transit.request_id, len(transit.keys))
                loaded += zip(transit.keys, ids, strict=True)

        def arrive(at_s: float) -> None:
            for transit in transits:
                self.loop.transits(at_s, replica.index, transit)

        now_s, tokens = self.loop.now_s, size * (len(stored) + len(loaded))
        self._numbers += 1
        self._moving[self._numbers] = ActionEvent("copy", now_s, now_s, replica.index, tokens=tokens), arrive
        evicted = [key for transit in transits for key in transit.evicted]
        self._send(replica.index, Offload(self._numbers, stored, loaded, evicted))

    def commit(self, replica: Replica, end_s: list[float]) -> list[Sequence]:
        """Commit the batch in flight, and tell what it brought."""
        batch = replica.in_flight
        assert batch is not None
        turn = Turn(end_s[-1])
        done = self._answers.commit(turn, replica, batch, self._steps.pop(replica.index))
        if self._paces:
            turn.facts = pace_facts(self._paces)
        if batch.preempted or batch.swaps:
            turn.facts = {**turn.facts, **preemption_costs(self.cluster.replicas)}
        if self.cluster.hierarchy is not None:
            turn.facts = {**turn.facts, "tiers": self.cluster.hierarchy.facts()}
        self._tell(turn)
        return done

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:
        """A sequence is over without a step."""
        ended = self._answers.end(seq, replica, now_s, "ok" if error is None else "error", error)
        self._over(seq.request.id)
        self._tell(Turn(now_s, ended=[ended]))

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:
        self._over(request.id)
        ended = Ended(request.id, now_s, "rejected", reason, replica=replica, arrived_s=now_s)
        self._tell(Turn(now_s, ended=[ended]))

    # ---- inside -----------------------------------------------------------------------------------------------

    def _after_now_s(self, at_s: float) -> float:
        return max(at_s, nextafter(self.loop.now_s, inf))

    def _copy(
        self, source: Replica, table: list[int], target: Replica, blocks: list[int] | None, seq: Sequence, end_s: float,
        then: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._numbers += 1
        copy = ActionEvent("copy", self.loop.now_s, end_s, source.index, target.index, seq.request.id)
        self._moving[self._numbers] = copy, then
        self._send(target.index, Copy(self._numbers, source.index, list(table), blocks, seq.request.id))

    def _over_link(self, seq: Sequence, source: Replica, target: Replica, end_s: float) -> float:
        """No executor has anything to copy: it is through when the link is."""
        self.loop.note(ActionEvent("copy", self.loop.now_s, end_s, source.index, target.index, seq.request.id))
        return end_s

    def _held_until_s(self, at_s: float) -> float:
        """Until when what happens at `at_s` waits for a paced step that is due before, and may still end in time."""
        due_s = min(self._due_s.values(), default=inf)
        return due_s + self._paces[0].late_s if self._due_s and due_s <= at_s else -inf

    def _place_pushed(self, step: PlannedStep, replica: Replica) -> None:
        """What was pushed into host memory goes into its blocks with the first step that has its sequence."""
        if not self._pushed:
            return
        swaps = step.work.swaps
        swaps[:] = [swap for swap in swaps if not (swap[2] and self._pushed.pop(swap[0], 0))]  # it never left there
        for seq, _ in step.items:
            tokens = self._pushed.pop(seq.request.id, 0)
            if seq.computed < tokens:  # it found no room, and is computed again
                self._drop(seq.request.id)
            elif tokens:
                swaps.append((seq.request.id, replica.table(seq), False))

    def _over(self, request_id: int) -> None:
        self._answers.forget(request_id)
        self._pushed.pop(request_id, None)
        self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        holder = self._hosted.pop(request_id, None)
        if holder is not None and self.cluster.replicas[holder].alive:
            self._send(holder, Drop(request_id))

    def _tell(self, turn: Turn) -> None:
        replicas = self.cluster.replicas
        turn.facts, self._facts = {**self._facts, **turn.facts}, {}
        turn.running = sum(replica.running for replica in replicas)
        turn.free_blocks = sum(replica.blocks.free for replica in replicas if replica.alive)
        turn.total_blocks = sum(replica.blocks.total for replica in replicas if replica.alive)
        if self.loop.actions:
            turn.actions, self.loop.actions = self.loop.actions, []
            self._acted.add(turn.actions)
            if self.cluster.acts or len(replicas) > 1:  # else they are copies of its tiers alone
                turn.facts = {**turn.facts, **self._acted.facts(self.loop)}
        self.results.append(turn)

    def check(self) -> None:
        self.cluster.check()

    def __repr__(self) -> str:
        return f"<EngineCluster {len(self._steps)} steps, {len(self._moving)} copies under way, {self.cluster!r}>"
