"""The loop of a cluster under any clock: one instant after the other.

At one instant batches are committed first, then KV lands, then planned changes happen, then requests arrive, then the
router acts, then hand-offs begin, then replicas form new batches; ties in order of creation. A driver runs batches
and transfers, and says when they end. Leaping and stepping give equal results.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf
from sys import float_info
from typing import Generic, TypeVar

from backends.serving.actions import Actions
from backends.serving.batch import Batch, Sequence, VisibleRequest
from backends.serving.cluster import Cluster
from backends.serving.decodes import Decodes
from backends.serving.handoff import Transfer, arrived_prefilled, start_handoffs
from backends.serving.hierarchy import Channel, Transit
from backends.serving.migration import Migration, Moves
from backends.serving.pipeline import Shares, Stages
from backends.serving.plugins import Arrivals, Committer, Driver, Mover
from backends.serving.replica import Replica
from backends.serving.routing import (
    NONE_UP,
    ClusterView,
    DecidingRouter,
    Decision,
    Fail,
    HandOffRouter,
    Hold,
    LearningRouter,
    OrderedRouter,
    PeriodicRouter,
    Reject,
    ReplicaView,
    Send,
    Up,
    finished,
    view_of,
)
from backends.serving.speculation import Drafts
from harness.api import ActionEvent, Request
from harness.errors import UsageError

T = TypeVar("T")


Event = tuple[float, int, int, int, object]
"""Time, what happens, replica, number, payload."""
AHEAD_S = 1.0
"""How far a leap goes that may be cut: what lies behind a cut was computed in vain."""
PREFILL_S = 0.1
"""The same of a leap that the next request may cut, once its prompt is computed elsewhere."""
COMMIT, LAND, COPIED, ENTER, CHANGE, REPORT, TICK, ASK = range(8)
"""A batch ends, KV lands, a stage of a migration is copied, a first stage is free, something planned happens, replicas
report, the router acts, it decides again on a held request: in this order at one instant, arrivals before the last two.
"""


LAST_S = float_info.max
IDLE = 1000


class Loop(Generic[T]):
    """Drives `cluster`.

    `coupled` says that an answer may bring about requests at once, `fails` that replicas may go down at any time.
    """

    def __init__(
        self,
        cluster: Cluster,
        driver: Driver[T],
        arrivals: Arrivals,
        log: Callable[[Batch, list[float], Decodes | Drafts], None] | None = None,
        *,
        leap: bool = False,
        coupled: bool = True,
        mover: Mover | None = None,
        fails: bool = False,
    ) -> None:
        self.cluster = cluster
        self.now_s = 0.0
        self.actions: list[ActionEvent] = []
        self.held: dict[int, tuple[VisibleRequest, Hold, float]] = {}  # by the router, how, since when
        self._held_requests: list[VisibleRequest] | None = []  # the same for views; None where it has changed
        self.withdrawn: set[int] = set()  # and still in a step, or under way between two replicas
        self.stages = [Stages(replica) for replica in cluster.replicas]
        self._driver = driver
        self._commits = driver.commit if isinstance(driver, Committer) else None
        self._arrivals = arrivals
        self._log = log
        self.mark: Callable[[float], None] | None = None  # takes the instants at which leaps might have been cut
        self._hierarchy = cluster.hierarchy
        if self._hierarchy is not None:
            self._hierarchy.push, self._hierarchy.memory_freed = self.transits, self.memory_freed
        self._leap = leap
        self._coupled = coupled
        self._only_decodes = all(replica.role == "decode" for replica in cluster.replicas)
        router = cluster.router
        self._decide = router.decide if isinstance(router, DecidingRouter) else None
        self._report_s = router.report_s if isinstance(router, DecidingRouter) else 0.0
        self._periodic = router if isinstance(router, PeriodicRouter) else None
        self._learning = router if isinstance(router, LearningRouter) else None
        self._hand_off_rule = router.hand_off if isinstance(router, HandOffRouter) else None
        self._in_order = isinstance(router, OrderedRouter) and router.holds_in_order
        self.acts = cluster.acts or fails
        self.replicates = True  # whether stored blocks may be copied from one prefix cache into another
        self._views: list[ReplicaView | None] = [None] * len(cluster.replicas)
        self._changed = False  # something that the router may see, since it decided last
        self._stuck_s: float | None = None  # since when nothing but the router could let a held request go
        self._events: list[Event] = []  # heap
        self._number = 0
        self._idle_ticks = 0  # ticks and reports in a row at which nothing ran and nothing was done
        self._passive = 0  # events in the heap that only held requests wait for: ticks, reports, changes
        self._changes = 0  # in the heap
        # Leaps go on while a router sees them, or past ends of prompts elsewhere, and are cut where a request comes.
        whole = leap and all(r.pipeline is None and r.cache is None and r.drafts is None for r in cluster.replicas)
        # Nothing but hand-offs sees a decode replica alone, and not before their KV has moved.
        self.hands_off = whole and not self.acts and len(cluster.decodes) == 1 and cluster.links.link.token_s > 0
        self._cuts = self.hands_off or (
            whole and self._decide is not None and all(replica.role == "mixed" for replica in cluster.replicas)
        )
        self._leaps: list[Event | None] = [None] * len(cluster.replicas)  # by replica, those that may be cut
        self._cut: set[int] = set()  # replicas whose leap in flight has been cut, and logged
        self._prepaid = [0] * len(cluster.replicas)  # blocks of the leap in flight that its commit will take again
        self.free: set[int] = set()  # replicas that may form a batch at this instant
        self.offered: set[int] = set()  # decode replicas that may begin a hand-off at this instant
        self.returned: dict[int, Sequence] = {}  # by request id: lost their replica, not their tokens
        self._begun_s = 0.0
        self._moves = Moves(self, mover)
        self._acting = Actions(self, self._moves)
        self._planned: list[tuple[float, Fail | Up]] = []
        for every_s in (self._report_s, 0.0 if self._periodic is None else self._periodic.tick_s):
            if every_s < 0:
                raise UsageError(f"A router cannot act or see reports every {every_s:g} s.")

    # ---- what drivers call ------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When the next thing happens; inf when nothing will."""
        arrival_s, events = self._arrivals.next_s, self._events
        # Ticks and reports bring forth one another: alone they would keep an idle cluster going for ever.
        if self._passive and arrival_s == inf and not self._lasting and self._arrivals.over and not self._may_let_go():
            return inf
        return min(arrival_s, events[0][0]) if events else arrival_s

    @property
    def _lasting(self) -> bool:
        """Whether anything but ticks, reports and changes is to happen."""
        return len(self._events) > self._passive

    def begin(self, now_s: float) -> None:
        """Time begins: the router acts and sees reports from now on. Called once, before the first request."""
        self._begun_s = self.now_s = now_s
        self._acting.begin(now_s)
        if self._report_s:
            self._passive += 1
            self._push(now_s, REPORT, 0, None)
        if self._periodic is not None and self._periodic.tick_s:
            self._passive += 1
            self._push(now_s, TICK, 0, None)
        for at_s, change in self._planned:
            self.at(now_s + at_s, change)

    def plan(self, after_s: float, change: Fail | Up) -> None:
        """A change that happens `after_s` seconds after `begin`, which is called later."""
        self.acts = True
        if self.hands_off:
            self.hands_off = self._cuts = False
        self._planned.append((after_s, change))

    def at(self, at_s: float, change: Fail | Up) -> None:
        """A change at this time, which is not before the last thing that happened."""
        self.acts = True
        self._passive += 1
        self._changes += 1
        self._push(at_s, CHANGE, change.replica, change)

    def ended(self, replica: Replica, end_s: list[float]) -> None:
        """The batch in flight of this replica has ended, not before now, after `start` did not say when."""
        self._push(end_s[-1], COMMIT, replica.index, end_s)

    def landed(self, transfer: Transfer, at_s: float) -> None:
        """A transfer is through, not before now."""
        self._push(at_s, LAND, transfer.target.index, transfer)

    def copied(self, migration: Migration, at_s: float) -> None:
        """A stage of a migration is through, not before now."""
        self._push(at_s, COPIED, migration.target.index, migration)

    def advance(self, until_s: float = inf) -> Iterator[T]:
        """Everything up to `until_s`; batches form when the caller has taken what the ends of others gave."""
        arrivals, results, events = self._arrivals, self._driver.results, self._events
        last_s = min(until_s, LAST_S)
        while True:
            now_s = arrivals.next_s
            if events and events[0][0] < now_s:
                now_s = events[0][0]
            if now_s > last_s or (self._passive and arrivals.next_s == inf and self.next_s == inf):
                if not self.held or not arrivals.over or self.next_s < inf:
                    break
                self._give_up()
                now_s = self.now_s
            self.now_s = now_s
            if self.mark is not None:
                self.mark(now_s)
            # Ends before arrivals: who arrives as a batch ends finds the memory that it gives back, under either clock.
            while events and events[0][0] == now_s and events[0][1] < TICK:
                _, what, index, _, payload = heappop(events)
                if what == COMMIT:
                    self._commit(index, payload)  # type: ignore[arg-type]  # the payload of COMMIT: ends of steps
                elif what == ENTER:
                    self.free.add(index)
                    continue
                else:
                    self._happen(what, index, payload, now_s)
                while results:
                    yield results.popleft()
            while arrivals.next_s == now_s:
                if (request := arrivals.pop()) is not None:
                    self._arrive(request, now_s)
                while results:
                    yield results.popleft()
            if self.acts:
                while events and events[0][0] == now_s:
                    _, what, index, _, payload = heappop(events)
                    self._happen(what, index, payload, now_s)
                self._ask_again(now_s)
                while results:
                    yield results.popleft()
            # Batches last: one that is formed earlier would miss what arrives at the same time.
            self._form_all(now_s)
            if self.held:
                stuck = not self._lasting and not self._changes and arrivals.next_s == inf
                self._stuck_s = None if not stuck else self.now_s if self._stuck_s is None else self._stuck_s
        if until_s == inf:
            assert not any(r.waiting for r in self.cluster.replicas if r.alive), (
                "a request can neither run nor be refused"
            )
            assert not self.cluster.under_way

    def withdraw(self, request_id: int, now_s: float) -> None:
        """A request is not wanted any more: it gets no more tokens, and is in no further step."""
        self._held_requests = None
        if self.held.pop(request_id, None) is None:
            self.withdrawn.add(request_id)
            self.drop_withdrawn(now_s)
        else:
            self.returned.pop(request_id, None)

    def gpu_s(self, now_s: float) -> float:
        """GPU seconds of all replicas until now, those included that load their weights."""
        return self._acting.gpu_s(now_s)

    # ---- what actions and migrations call ---------------------------------------------------------------------

    def free_at(self, at_s: float, index: int) -> None:
        """A replica may form a batch then."""
        self._push(at_s, ENTER, index, None)

    def cut_no_leaps(self) -> None:
        """Leaps end where the router may look, from now on."""
        self._cuts = False

    def transits(self, at_s: float, index: int, transit: Channel | Transit) -> None:
        """Transfers of a channel between a tier and a replica may be through then, or one arrives."""
        self._push(at_s, LAND, index, transit)

    def has_grown(self, replica: Replica) -> None:
        """The cluster has a replica more."""
        self.stages.append(Stages(replica))
        self._views.append(None)
        self._leaps.append(None)
        self._prepaid.append(0)

    def show(self, replica: Replica, now_s: float) -> None:
        """The router knows this replica as it is now, without a report."""
        self._views[replica.index] = self._view_of(replica, now_s)
        self._changed = True

    def forget(self, replica: Replica) -> None:
        """A replica has failed: its batch in flight never ends."""
        index = replica.index
        self._events[:] = [e for e in self._events if e[2] != index or e[1] not in (COMMIT, ENTER)]
        heapify(self._events)
        self._prepaid[index] = 0
        self.free.discard(index)
        self.offered.discard(index)
        self.stages[index] = Stages(replica)

    def check_empty(self, replica: Replica, now_s: float) -> None:
        """Do what waits for a replica to be empty."""
        self._acting.check_empty(replica, now_s)

    # ---- events -----------------------------------------------------------------------------------------------

    def _push(self, at_s: float, what: int, index: int, payload: object) -> Event:
        self._number = number = self._number + 1
        # Of equal events the older one goes first, and the heap never compares payloads.
        event = at_s, what, index, number, payload
        heappush(self._events, event)
        return event

    def _push_next(self, what: int, count: int, every_s: float) -> None:
        """The next tick or report, after number `count`. Where a router has left an idle cluster alone for `IDLE` of
        them, the next one is that before the next arrival or planned change.
        """
        self._idle_ticks = 0 if len(self._events) >= self._passive or self.held else self._idle_ticks + 1
        following = count + 1
        if self._idle_ticks > IDLE and self._arrivals.over and (next_s := self._arrivals.next_s) < inf:
            next_s = min([next_s, *(event[0] for event in self._events if event[1] == CHANGE)])
            following = max(following, int((next_s - self._begun_s) / every_s) - 1)
        self._push(self._begun_s + following * every_s, what, following, None)

    def _happen(self, what: int, index: int, payload: object, now_s: float) -> None:
        if isinstance(payload, Transfer):
            if not self.acts or payload in self._moves.transfers:  # else an end of it has failed
                self._moves.land(payload, now_s)
        elif isinstance(payload, Migration):
            self._moves.copied(payload, now_s)
        elif isinstance(payload, Channel):
            assert self._hierarchy is not None
            self._hierarchy.go_on(payload, index, now_s)
        elif isinstance(payload, Transit):
            assert self._hierarchy is not None
            self._hierarchy.arrive(payload, now_s)
        elif isinstance(payload, (Fail, Up)):
            self._passive -= 1
            self._changes -= 1
            self._idle_ticks = 0
            self._acting.change(payload, now_s)
        elif what == REPORT:
            if self._hierarchy is not None:
                self._hierarchy.report()
            self._views = [self._view_of(replica, now_s) for replica in self.cluster.replicas]
            self._changed = True
            self._push_next(REPORT, index, self._report_s)
        elif what == TICK:
            assert self._periodic is not None
            # All actions are known before the first is done: a router decides on one state of the cluster.
            actions = list(self._periodic.tick(now_s, self._view(now_s)))  # they change what it has seen
            if actions:
                self._idle_ticks = 0
            self._push_next(TICK, index, self._periodic.tick_s)
            self._changed = True
            for action in actions:
                self._acting.do(action, now_s)
        elif what == ASK and index in self.held and self.held[index][1].until_s == now_s:
            self.ask(self.held[index][0], now_s)

    def _commit(self, index: int, ends: list[float]) -> None:
        replica = self.cluster.replicas[index]
        if self._leaps[index] is not None:
            self._leaps[index] = None
            # How many steps a leap has is known only now, unless it was cut.
            if index in self._cut:
                self._cut.discard(index)
            elif self._log is not None:
                assert replica.in_flight is not None
                self._log(replica.in_flight, ends, replica.decoding)
        shares = self.stages[index].shares
        if shares is not None:
            assert replica.in_flight is not None
            shares.end()
            if self._log is not None:
                self._log(replica.in_flight, ends, replica.decoding)
        # The commit takes the blocks of all steps of a leap; those that were taken ahead are not taken twice.
        replica.blocks.free += self._prepaid[index]
        self._prepaid[index] = 0
        if self._commits is not None:
            done = self._commits(replica, ends)
        else:
            batch = replica.in_flight
            assert batch is not None
            done = replica.commit(batch, ends)
            for seq in done:
                self._driver.end(seq, index, None, ends[-1])
        if shares is not None:
            self._time(replica, shares)
        self.free.add(index)
        if replica.inbox.offers:
            self.offered.add(index)
        fresh = replica.outbox.fresh
        if fresh:
            for seq in fresh:
                self.offer(seq, replica, fresh=True)
            fresh.clear()
        if self.acts:
            self.touch(index)
            if self._learning is not None:
                for seq in done:
                    self._learning.on_finish(finished(seq, index, ends[-1]))
            for seq in done:
                self.cluster.planned.pop(seq._request.id, None)
            for migration in self._moves.stopping.pop(index, ()):
                self._moves.stop(migration, ends[-1])
            self._acting.check_empty(replica, ends[-1])
        if self.withdrawn:
            self.drop_withdrawn(ends[-1])

    def lose(self, seq: Sequence, index: int, why: str, now_s: float) -> None:
        """A sequence that was on this replica ends with an error."""
        self._driver.end(seq, index, why, now_s)
        if self._learning is not None:
            self._learning.on_finish(finished(seq, index, now_s, failed=True))

    def offer(self, seq: Sequence, source: Replica | None, *, fresh: bool = False) -> None:
        """Let a decode replica have this sequence; `fresh`: its prompt has just been computed."""
        why: str | None = None if self.cluster.decodes else NONE_UP
        if why is None and fresh and self._hand_off_rule is not None:
            to = self._hand_off_rule(seq.request, self.now_s, self._view(self.now_s))
            if isinstance(to, Reject):
                why = to.reason
            elif to is not None:
                self.cluster.planned[seq._request.id] = to
        if why is None:
            self.offered.add(self.cluster.offer(seq, source).index)
        else:
            self.cluster.planned.pop(seq._request.id, None)
            if source is not None:
                source.release(seq, self.now_s)
                self.memory_freed(source)
            self.lose(seq, 0 if source is None else source.index, why, self.now_s)

    def cut(self, replica: Replica, now_s: float) -> None:
        """Let a leap in flight end with the step that runs now, or that has ended just now: a request comes."""
        index, event, batch = replica.index, self._leaps[replica.index], replica.in_flight
        if event is None or index in self._cut:
            return
        assert batch is not None and isinstance(replica.decoding, Decodes)
        ends: list[float] = event[4]  # type: ignore[assignment]  # the payload of COMMIT
        last = bisect_left(ends, now_s)
        if self._log is not None:
            self._log(batch, ends[: last + 1], replica.decoding)
        self._cut.add(index)
        if ends[last] > now_s and last + 1 == len(ends):
            return
        self._events.remove(event)
        heapify(self._events)
        del ends[last + 1 :]
        # What it took for steps that do not run is free again.
        prepaid = replica.decoding.blocks_after_first(len(ends))
        replica.blocks.free += self._prepaid[index] - prepaid
        self._prepaid[index] = prepaid
        if ends[last] > now_s:
            self._leaps[index] = self._push(ends[last], COMMIT, index, ends)
        else:
            self._commit(index, ends)

    def interrupt(self, replica: Replica, now_s: float) -> None:
        """Cut a leap; where there is a journal what comes now comes between two steps, so that it can be repeated."""
        (self.cut if replica.journal is None else self.settle)(replica, now_s)

    def settle(self, replica: Replica, now_s: float) -> None:
        """Make a leap in flight what stepping would be now: what has ended is committed, one step runs."""
        index = replica.index
        self.cut(replica, now_s)
        event, self._leaps[index] = self._leaps[index], None
        if event is None:
            return
        self._cut.discard(index)
        replica.blocks.free += self._prepaid[index]
        self._prepaid[index] = 0
        ends: list[float] = event[4]  # type: ignore[assignment]
        batch = replica.in_flight
        if len(ends) > 1:
            assert batch is not None
            replica.go_on(batch, ends[:-1])
            del ends[:-1]
            self.touch(index)

    def settle_all(self, now_s: float) -> None:
        """All leaps in flight, as above."""
        for replica in self.cluster.replicas:
            self.settle(replica, now_s)

    # ---- arrivals and the router ------------------------------------------------------------------------------

    def _arrive(self, request: Request, now_s: float) -> None:
        cluster = self.cluster
        if self._only_decodes and request.output_tokens == 1 and cluster.refusal(request) is None:
            # its only token comes with its prompt, and decode replicas alone have nothing to do for it
            self._driver.end(arrived_prefilled(request, now_s), cluster.replicas[0].index, None, now_s)
        elif (unserved := cluster.unserved(request)) is not None:
            self._driver.reject(request, unserved, None, now_s)
        elif self._decide is not None:
            self.ask(VisibleRequest(request), now_s)
        else:
            index, refusal = cluster.add(request, now_s)
            if refusal is not None:
                self._driver.reject(request, refusal, index, now_s)
            elif cluster.replicas[index].role == "decode":
                self.offered.add(index)
            else:
                self.free.add(index)
                if self.acts:
                    self.touch(index)

    def ask(self, visible: VisibleRequest, now_s: float) -> None:
        """Let the router decide on a request that arrives, was held, or has lost its replica."""
        request = visible._request
        decision: Decision
        if self._decide is not None:
            decision = self._decide(visible, now_s, self._view_for(request, now_s))
        else:
            replica = self.cluster.choose(request)
            decision = Reject(NONE_UP) if replica is None else Send(replica.index)
        if isinstance(decision, Send):
            decision = self._send(request, decision, now_s)
        if isinstance(decision, Hold):
            if decision.until_s is not None and decision.until_s <= now_s:
                decision = Hold()  # its time is over: only a change can bring more
            if not self.held:
                self.settle_all(now_s)  # from now on the router decides after every step
                self._changed = False  # it has just seen everything
            was = self.held.get(request.id)
            self.held[request.id] = visible, decision, now_s if was is None else was[2]
            if was is None:
                self._held_requests = None
            if decision.until_s is not None and (was is None or was[1].until_s != decision.until_s):
                self._push(decision.until_s, ASK, request.id, None)
            return
        self._release(request.id, now_s)
        if isinstance(decision, Reject):
            self._refuse(request, decision.reason, now_s)

    def _release(self, request_id: int, now_s: float) -> None:
        """The router does not hold the request any more, if it did."""
        if (was := self.held.pop(request_id, None)) is not None:
            self._held_requests = None
            self.note(ActionEvent("hold", was[2], now_s, None, request_id=request_id))

    def _refuse(self, request: Request, reason: str, now_s: float) -> None:
        self.note(ActionEvent("reject", now_s, now_s, None, request_id=request.id, detail=reason))
        seq = self.returned.pop(request.id, None)
        if seq is None:
            self._driver.reject(request, reason, None, now_s)
        else:
            self.lose(seq, 0, reason, now_s)

    def _send(self, request: Request, to: Send, now_s: float) -> Send | Hold | Reject:
        """Queue a request where the router wants it; held where that replica, unseen, went down or only decodes now."""
        cluster = self.cluster
        if not 0 <= to.replica < len(cluster.replicas):
            raise UsageError(f"The router sent request {request.id} to replica {to.replica}; there is none.")
        if to.decode is not None and not 0 <= to.decode < len(cluster.replicas):
            raise UsageError(f"The router sent request {request.id} to decode on {to.decode}; there is none.")
        if cluster.model_of(request) not in (None, cluster.members[to.replica].serves):
            raise UsageError(f"The router sent request {request.id} to replica {to.replica}, which has another model.")
        replica, seq = cluster.replicas[to.replica], self.returned.get(request.id)
        colocated = to.decode == to.replica
        if not replica.alive or (replica.role == "decode" and not colocated):
            return Hold()
        # A request comes between two steps: those of a leap that would begin after it has come are not run without it.
        self.interrupt(replica, now_s)
        refusal = replica.refusal(request, whole=True) if colocated else cluster.refusal_after(replica, request)
        if refusal is None:
            refusal = replica.add(request, now_s) if seq is None else replica.refusal(request)
        if refusal is not None:
            if seq is None and self._learning is not None:  # one that was here before is lost, which it learns as well
                self._learning.on_finish(finished(Sequence(request, 0, now_s), to.replica, now_s, failed=True))
            return Reject(refusal)
        if seq is not None:
            del self.returned[request.id]
            replica.restart(seq, now_s)
        if colocated:
            replica.serve_whole(request.id, now_s)
        elif to.decode is not None:
            cluster.planned[request.id] = to.decode
        self.free.add(to.replica)
        self.touch(to.replica)
        return to

    def _ask_again(self, now_s: float) -> None:
        """Ask for those that are held until something changes."""
        if self._changed and self.held:
            for visible, hold, _ in list(self.held.values()):
                if hold.until_s is None or hold.on_change:
                    self.ask(visible, now_s)
                    if self._in_order and visible.id in self.held:
                        break
        self._changed = False

    def _may_let_go(self) -> bool:
        """Whether the router may still let a held request go when nothing but ticks and reports will happen.

        It has seen each of them twice, and every change, before its requests are rejected.
        """
        tick_s = 0.0 if self._periodic is None else self._periodic.tick_s
        stuck_s = 0.0 if self._stuck_s is None else self.now_s - self._stuck_s
        waits = self._changes > 0 or self._stuck_s is None or stuck_s < 2 * max(self._report_s, tick_s)
        return bool(self.held) and waits

    def _give_up(self) -> None:
        for visible, *_ in list(self.held.values()):
            self._release(visible.id, self.now_s)
            self._refuse(visible._request, "the router held it until nothing could change any more", self.now_s)

    # ---- what the router sees ---------------------------------------------------------------------------------

    def touch(self, index: int) -> None:
        """A replica has changed: what the router sees of it, unless it waits for a report."""
        if not self._report_s:
            self._changed = True
            self._views[index] = None

    def memory_freed(self, replica: Replica) -> None:
        """Without a batch of its own that has ended: what waits for memory there may go on."""
        self.free.add(replica.index)
        if replica.inbox.offers:
            self.offered.add(replica.index)
        self.touch(replica.index)
        self._acting.check_empty(replica, self.now_s)

    def _view_of(self, replica: Replica, now_s: float) -> ReplicaView:
        member, reported = self.cluster.members[replica.index], bool(self._report_s)
        if reported and replica.cache is not None:
            replica.cache.report()
        steps, early, until_s = self._progress(replica, now_s)
        view = view_of(replica, member.gpus, member.model, now_s, whole=reported, steps=steps, early=early)
        if not reported:
            view._until_s = until_s
        return view

    def _progress(self, replica: Replica, now_s: float) -> tuple[int, int, float]:
        """Of a leap in flight: steps that have ended, blocks that it has taken for those that have not begun, and until
        when this is so."""
        event, early = self._leaps[replica.index], self._prepaid[replica.index]
        if event is None:
            return 0, 0, inf
        ends: list[float] = event[4]  # type: ignore[assignment]
        ended = bisect_right(ends, now_s)
        begun = ended if ended and ends[ended - 1] == now_s else ended + 1
        if early:
            early -= replica.decoding.blocks_after_first(begun)  # type: ignore[union-attr]  # drafts do not leap
        return ended, early, now_s if begun == ended else ends[ended]

    def _view(self, now_s: float) -> ClusterView:
        views = self._views
        for index, view in enumerate(views):
            if view is None:
                views[index] = self._view_of(self.cluster.replicas[index], now_s)
            elif view._until_s <= now_s and self._leaps[index] is not None:
                replica = view._replica
                decoding = replica.decoding
                view._steps, early, view._until_s = self._progress(replica, now_s)
                view.free_blocks = replica.blocks.free + early
                view.context_tokens = decoding.context + view._steps * decoding.rows
                view.reported_s = now_s
        if self._held_requests is None:
            self._held_requests = [visible for visible, *_ in self.held.values()]
        moves = {}
        for request_id, move in self._moves.under_way.items():
            moves[request_id] = move.source.index, move.target.index
        return ClusterView(views, self._held_requests, moves)  # type: ignore[arg-type]  # none is None by now

    def _view_for(self, request: Request, now_s: float) -> ClusterView:
        """What the router sees when it decides on a request: replicas of another base model are open to none."""
        view, members = self._view(now_s), self.cluster.members
        if (name := self.cluster.model_of(request)) is not None:
            view.replicas = [r if members[r.index].serves == name else replace(r, draining=True) for r in view.replicas]
        return view

    def note(self, event: ActionEvent) -> None:
        """Keep what happened for the table of actions."""
        self.actions.append(event)

    def drop_withdrawn(self, now_s: float) -> None:
        """Cancel withdrawn requests that are neither in a step nor on their way to another replica."""
        # A leap holds its sequences to its end, which is later than that of the step which runs now.
        self.settle_all(now_s)
        replicas = self.cluster.replicas
        for request_id in list(self.withdrawn):
            replica = next((replica for replica in replicas if replica.has(request_id)), None)
            if replica is None:
                if not any(seq._request.id == request_id for r in replicas for seq in r.outbox.leaving):
                    self.withdrawn.discard(request_id)
            elif not replica.runs(request_id):
                replica.cancel(request_id, now_s)
                self.withdrawn.discard(request_id)
                self.memory_freed(replica)

    # ---- batches ----------------------------------------------------------------------------------------------

    def _form_all(self, now_s: float) -> None:
        """Begin the hand-offs that may begin, then the batches."""
        replicas = self.cluster.replicas
        if self.offered:
            for index in sorted(self.offered):
                self._hand_off(replicas[index], now_s)
            self.offered.clear()
        if len(self.free) == 1:
            index = self.free.pop()
            if self._idle(replicas[index], now_s):
                self._form(replicas[index], now_s, last=True)
        else:
            free = [index for index in sorted(self.free) if self._idle(replicas[index], now_s)]
            self.free.clear()
            # A leap may not go beyond the end of a batch that is yet to be formed; only ends of quiet replicas do not
            # matter.
            quiet = len(free)  # from there on replicas that no other one waits for
            while quiet and self._quiet(replicas[free[quiet - 1]]):
                quiet -= 1
            for place, index in enumerate(free, 1):
                self._form(replicas[index], now_s, last=self._cuts or place >= quiet)
        if self.free or self.offered:  # what was handed on at no cost of time while batches were formed
            self._form_all(now_s)

    def _idle(self, replica: Replica, now_s: float) -> bool:
        """Whether it may form a batch; a pipeline schedules again when its first stage is free."""
        if replica.pipeline is not None:
            if self.stages[replica.index].free_s[0] > now_s:
                return False
        elif replica.in_flight is not None:
            return False
        return not self.acts or (replica.alive and self._acting.paused_s.get(replica.index, -inf) <= now_s)

    def _hand_off(self, target: Replica, now_s: float) -> bool:
        """Whether any hand-off into `target` began."""
        if not target.inbox.offers:
            return False
        if self.hands_off:
            self.interrupt(target, now_s)  # what a leap took ahead is free again, and who lands joins the next step
        begun = start_handoffs(target, self.cluster.links, now_s, pull=self.cluster.pull)
        for end_s, transfer in begun:
            self._moves.begin(end_s, transfer, now_s)
        return bool(begun)

    def _form(self, replica: Replica, now_s: float, *, last: bool) -> None:
        index = replica.index
        stages = self.stages[index]
        if self._hierarchy is None:
            batch = replica.schedule(now_s)
        else:
            self._hierarchy.fetch(replica, now_s)
            batch = replica.schedule(now_s)
            self._hierarchy.write(replica, now_s)
            if batch is not None and batch.steps > 1:  # tiers see each step that finds or gives up a block
                assert replica.cache is not None
                unstored = replica.cache.unstored()
                batch.steps = 1 if replica.waiting else min(batch.steps, replica.decoding._steps_ahead(unstored))
        began = bool(replica.inbox.offers) and self._hand_off(replica, now_s)
        if batch is None:
            return
        if self.acts:
            self.touch(index)
        if began:
            batch.steps = 1  # memory is another now, and who has landed joins the next step
        if stages.shares is not None:
            work_s = self._driver.start(replica, batch, 0.0, 0.0)
            assert work_s is not None
            assert batch.lane is not None
            stages.shares.begin(batch.lane, work_s[0], now_s)
            self._time(replica, stages.shares)
            self.free.add(index)  # another lane may have something to do
            return
        if stages.count > 1:
            stage = self._driver.start(replica, batch, 0.0, 0.0)
            assert stage is not None
            end_s = stages.enter(stage[0], now_s)
            if self._log is not None:
                self._log(batch, [end_s], replica.decoding)
            self._push(stages.free_s[0], ENTER, index, None)
            self._push(end_s, COMMIT, index, [end_s])
            return
        cuts = self._cuts and last and not self.held
        if cuts:
            horizon_s = now_s + AHEAD_S
            if self.hands_off:
                horizon_s = self._events[0][0] if self._events else self._arrivals.next_s + PREFILL_S
        else:
            horizon_s = self._horizon_s() if self._leap and last and not self.free and not self.held else now_s
        ends = self._driver.start(replica, batch, now_s, horizon_s)
        if ends is None:
            return
        cuts = cuts and len(ends) > 1
        if self.acts and not cuts and len(ends) > 1 and ends[-1] >= horizon_s:
            ends.pop()  # the router may read the state then, when all earlier steps must be committed
        if self._log is not None and not cuts:
            self._log(batch, ends, replica.decoding)
        if len(ends) > 1 and isinstance(replica.decoding, Decodes):
            # Views, hand-offs and reservations read `free` meanwhile: what a leap takes after its first step must not
            # be given to them.
            self._prepaid[index] = prepaid = replica.decoding.blocks_after_first(len(ends))
            replica.blocks.free -= prepaid
        event = self._push(ends[-1], COMMIT, index, ends)
        if cuts:
            self._leaps[index] = event

    def _time(self, replica: Replica, shares: Shares) -> None:
        """A lane has begun or ended a batch: the next end is another, and no stale one is left."""
        self._events[:] = [e for e in self._events if e[2] != replica.index or e[1] != COMMIT]
        heapify(self._events)
        if shares.end_s is not None:
            assert replica.pipeline is not None
            replica.pipeline.leaves_next(shares.lane)
            self._push(shares.end_s[0], COMMIT, replica.index, shares.end_s)

    def _quiet(self, replica: Replica) -> bool:
        """Whether the end of a batch of this replica changes nothing for others: it hands nothing on, nothing waits for
        its memory (which would free that of another replica), and no answer brings about another request."""
        if replica.role != "decode" and (not self.acts or replica.role == "prefill"):
            return False
        if self._coupled or replica.inbox.offers or replica.pipeline is not None:
            return False
        return not self.acts or not (self.held or replica.index in self._moves.stopping)

    def _horizon_s(self) -> float:
        """When the state of a replica may next be read or changed by something other than its own steps."""
        horizon_s, replicas = self._arrivals.next_s, self.cluster.replicas
        if self._coupled and self._events:
            return min(horizon_s, self._events[0][0])
        for at_s, what, index, _, _ in self._events:
            if at_s < horizon_s and not (what == COMMIT and self._quiet(replicas[index])):
                horizon_s = at_s
        return horizon_s

    def check(self) -> None:
        self.cluster.check()

    def __repr__(self) -> str:
        return f"<Loop next at {self.next_s:.6f} s, {self.cluster!r}>"
