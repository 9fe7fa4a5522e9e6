"""The event loop of a cluster of whole replicas under the virtual clock: commits, then arrivals, then schedules."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from backends.latency.recorded import Recorded, Repetition
from backends.serving.batch import Batch, Oracle, Sequence
from backends.serving.cluster import Cluster, Loads
from backends.serving.loop import Loop
from backends.simulator.step_log import StepLog
from harness import api
from harness.api import FollowUps, LatencyModel, Request, RequestRecord, Status

if TYPE_CHECKING:
    from backends.serving.replica import Replica

Column = list[object]
LOOP: Final = 96  # up to so many steps a plain loop is faster than numpy
SHORT: Final = 12  # the same where each step is a call of the latency model
LEAP: Final = 512  # steps that numpy adds up at a time
_COUNT = np.arange(LEAP, dtype=np.int64)


class EndedSequence:
    """A sequence that is answered, rejected, or ended by an error; `ended_s` where that was not its last token."""

    __slots__ = ("cache_hit", "ended_s", "error", "replica", "seq", "status")

    def __init__(
        self, seq: Sequence, replica: int | None, status: Status = "ok", error: str | None = None,
        ended_s: float | None = None, cache_hit: api.CacheHit | None = None,
    ) -> None:  # fmt: skip
        self.seq = seq
        self.replica = replica
        self.status: Status = status
        self.error = error
        self.ended_s = ended_s
        self.cache_hit: api.CacheHit | None = cache_hit

    def record(self) -> RequestRecord:
        seq = self.seq
        request = Oracle.request(seq)
        scheduled_s = request.scheduled_s
        answers = seq.answers
        return RequestRecord(
            request.id, scheduled_s, scheduled_s, seq.token_s, token_n(seq), seq.prompt, answers * seq.emitted,
            answers * request.output_tokens, self.status, self.error, request.session, request.turn, request.tag, None,
            seq.cached_tokens, self.replica, seq.preemptions, seq.prefill_start_s, seq.prefill_end_s,
            seq.handoff_start_s, seq.handoff_end_s, seq.decode_start_s, request.slo_ttft_s, request.slo_tpot_s,
            None if self.status == "rejected" or self.cache_hit else seq.arrived_s, self.ended_s, request.slo_task_s,
            slo_e2e_s=request.slo_e2e_s, answers=None if answers == 1 else answers, cache_hit=self.cache_hit,
        )  # fmt: skip


def token_n(seq: Sequence) -> list[int] | None:
    """How many tokens came out at each stamp of a sequence; None where it was one each."""
    if seq.answers > 1:
        return [seq.answers * count for count in seq.tokens_per_stamp()]
    return None if seq.token_n is None else seq.tokens_per_stamp()


def rejected(request: Request, reason: str, replica: int | None, now_s: float) -> EndedSequence:
    """A request that is not served."""
    return EndedSequence(Sequence(request, 0, now_s), replica, "rejected", reason, max(now_s, request.scheduled_s))


def columns(ended: list[EndedSequence]) -> dict[str, Column]:
    """The columns of the `requests` table of these sequences, in their order; those that are null are left out."""
    sequences = [entry.seq for entry in ended]
    requests = [Oracle.request(seq) for seq in sequences]
    scheduled_s: Column = [request.scheduled_s for request in requests]
    outputs = [request.output_tokens for request in requests]
    return {
        "request_id": [request.id for request in requests],
        "session": [request.session for request in requests],
        "turn": [request.turn for request in requests],
        "tag": [request.tag for request in requests],
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "token_s": [seq.token_s for seq in sequences],
        "token_n": [token_n(seq) for seq in sequences],
        "prompt_tokens": [seq.prompt for seq in sequences],
        "cached_tokens": [seq.cached_tokens for seq in sequences],
        "output_tokens": [seq.answers * seq.emitted for seq in sequences],
        "output_tokens_asked": [seq.answers * output for seq, output in zip(sequences, outputs, strict=True)],
        "status": [entry.status for entry in ended],
        "error": [entry.error for entry in ended],
        "replica": [entry.replica for entry in ended],
        "preemptions": [seq.preemptions for seq in sequences],
        "prefill_start_s": [seq.prefill_start_s for seq in sequences],
        "prefill_end_s": [seq.prefill_end_s for seq in sequences],
        "handoff_start_s": [seq.handoff_start_s for seq in sequences],
        "handoff_end_s": [seq.handoff_end_s for seq in sequences],
        "decode_start_s": [seq.decode_start_s for seq in sequences],
        "slo_ttft_s": [request.slo_ttft_s for request in requests],
        "slo_tpot_s": [request.slo_tpot_s for request in requests],
        "arrived_s": [
            None if entry.status == "rejected" or entry.cache_hit else entry.seq.arrived_s for entry in ended
        ],
        "ended_s": [entry.ended_s for entry in ended],
        "slo_task_s": [request.slo_task_s for request in requests],
        "slo_e2e_s": [None if request.extra is None else request.slo_e2e_s for request in requests],
        "answers": [None if seq.answers == 1 else seq.answers for seq in sequences],
        "cache_hit": [entry.cache_hit for entry in ended],
    }


class FrontEnd(NamedTuple):
    """Seconds of a request before its scheduler, and more for each token of its prompt."""

    request_s: float = 0.0
    token_s: float = 0.0

    def arrived_s(self, request: Request) -> float:
        """When the request is at its scheduler."""
        return request.scheduled_s + self.request_s + self.token_s * request.prompt_tokens

    def in_order(self, schedule: Iterable[Request]) -> Iterator[tuple[float, Request]]:
        """When each request arrives and itself, in this order: a short prompt may overtake a long one."""
        if not self.token_s:  # they arrive as they come, and nothing is read ahead
            request_s = self.request_s
            for request in schedule:
                yield request.scheduled_s + request_s, request
            return
        begun: list[tuple[float, int, Request]] = []  # heap
        for place, request in enumerate(schedule):
            while begun and begun[0][0] <= request.scheduled_s:
                yield heappop(begun)[::2]
            heappush(begun, (self.arrived_s(request), place, request))
        while begun:
            yield heappop(begun)[::2]


NO_FRONT_END = FrontEnd()


def simulate(
    cluster: Cluster,
    model: LatencyModel,
    steps: StepLog | None,
    requests: Iterator[Request],
    follow_ups: FollowUps | None,
    *,
    leap: bool,
    front: FrontEnd = NO_FRONT_END,
) -> Iterator[EndedSequence]:
    """What ends, in this order."""
    replicas, arrivals = cluster.replicas, Arrivals(requests, front=front)
    several = len(replicas) > 1
    coupled = follow_ups is not None and several  # an answer of one replica may release a request to another
    # Where a router sees nothing that changes within a leap, or the loads that it compares only grow, a leap goes on
    # until a request is sent to its replica.
    far = leap and several and not coupled and (cluster.weighs is not None or not cluster.watches)
    watched = cluster.watches and not far
    leaps, loads, arrived = Leaps(replicas, steps), None, None
    if several and cluster.weighs is not None:
        loads = Loads(cluster.weighs, replicas, leaps.settle if far and cluster.watches else None)
    if steps is not None and several:
        arrived, steps.alone = steps.put_in_order(), cluster.watches
    ending = leaps.ending
    arrival_s = arrivals.next_s
    while True:
        # One pass handles one instant: commits, then arrivals, then schedules. The core defines this order, in
        # which the journal of the engine replays to the same batches.
        now_s = arrival_s
        idle: list[int] = []
        if ending and ending[0][0] <= now_s:
            now_s = ending[0][0]
            while ending and ending[0][0] == now_s:
                _, index, ends = heappop(ending)
                if far and (ends is not leaps.ends[index] or ends[-1] != now_s):
                    continue  # it was cut
                idle.append(index)
                for seq in leaps.commit(index, ends):
                    ended = EndedSequence(seq, index)
                    yield ended
                    if follow_ups is not None:
                        arrivals.add(follow_ups(ended.record()), now_s)
                        arrival_s = arrivals.next_s
        elif now_s == inf:
            assert not any(replica.waiting for replica in replicas), "a request can neither run nor be refused"
            return
        if far:
            leaps.now_s, leaps.idle = now_s, idle
        if loads is not None:
            loads.changed.update(idle)
        while arrival_s == now_s:
            request = arrivals.pop()
            arrival_s = arrivals.next_s
            if arrived is not None:
                arrived(now_s)
            replica = cluster.choose(request) if loads is None else replicas[loads.least()]
            assert replica is not None
            index = replica.index
            if far:
                leaps.cut(index)
            refusal = replica.add(request, now_s)
            if refusal is not None:
                ended = rejected(request, refusal, index, now_s)
                yield ended
                if follow_ups is not None:
                    arrivals.add(follow_ups(ended.record()), now_s)
                    arrival_s = arrivals.next_s
            elif replica.in_flight is None:
                idle.append(index)
            if loads is not None:
                loads.changed.add(index)
        free = idle if len(idle) < 2 else sorted(set(idle))
        for index in free:
            batch = replicas[index].schedule(now_s)
            if batch is None:
                continue
            # A leap handles all steps of an unchanged batch as one event. It ends with the step during which the
            # batch may change: at the next arrival, and if answers release requests, at the next end of any batch.
            # Of several replicas that start now only the last may leap: it alone knows the ends of the others.
            horizon_s = inf if far else arrival_s if leap else now_s
            if coupled and leap:
                horizon_s = now_s if index != free[-1] else min(arrival_s, ending[0][0]) if ending else arrival_s
            leaps.ends[index] = ends = step_ends(model, batch, now_s, horizon_s)
            if watched and len(ends) > 1 and ends[-1] >= horizon_s:
                ends.pop()  # the router reads the state at the arrival, when all earlier steps must be committed
            heappush(ending, (ends[-1], index, ends))
        if loads is not None:
            loads.changed.update(free)


class Leaps:
    """The batches in flight on replicas alike, each as many steps as it repeats.

    A leap may go on past arrivals: then what has ended of it is committed where a router reads its replica, and it ends
    with the step that runs where a request comes.
    """

    __slots__ = ("_log", "_replicas", "ending", "ends", "idle", "now_s")

    def __init__(self, replicas: list[Replica], steps: StepLog | None) -> None:
        self._replicas = replicas
        self._log = None if steps is None else steps.append
        self.ending: list[tuple[float, int, list[float]]] = []  # heap of (last end, replica, ends), with some of old
        self.ends: list[list[float]] = [[] for _ in replicas]  # of the steps in flight
        self.idle: list[int] = []  # replicas that may form a batch at this instant
        self.now_s = 0.0

    def commit(self, index: int, ends: list[float]) -> list[Sequence]:
        """Steps of the batch in flight have ended."""
        replica = self._replicas[index]
        batch = replica.in_flight
        assert batch is not None
        if self._log is not None:
            self._log(batch, ends, replica.decoding)
        return replica.commit(batch, ends)

    def settle(self, index: int) -> bool:
        """Bring a replica to what it is now; False where it is that."""
        ends, replica = self.ends[index], self._replicas[index]
        batch = replica.in_flight
        if batch is None or not (ended := bisect_right(ends, self.now_s)):
            return False
        if ends[ended - 1] == self.now_s:
            self.commit(index, ends[:ended])
            self.ends[index] = []
            self.idle.append(index)
            return True
        if self._log is not None:
            self._log(batch, ends[:ended], replica.decoding)
        replica.go_on(batch, ends[:ended])
        del ends[:ended]
        return True

    def cut(self, index: int) -> None:
        """A request comes: the leap in flight ends with the step that runs, or that has ended just now."""
        ends = self.ends[index]
        last = bisect_left(ends, self.now_s)
        if self._replicas[index].in_flight is None or last + 1 >= len(ends):
            return
        del ends[last + 1 :]
        if ends[last] == self.now_s:
            self.commit(index, ends)
            self.idle.append(index)  # the request may be refused
        else:
            heappush(self.ending, (ends[last], index, ends))


class Arrivals:
    """The requests of the schedule and the follow-ups, in order of time.

    A request arrives when the front end of its server is done with it, so that a short prompt may overtake a long one.
    At one instant follow-ups go first, by id. Where `arrived` is given it says when a request arrives, and orders all
    that arrive at one instant.
    """

    __slots__ = ("_arrived", "_front", "_later", "_next", "_planned", "_planned_s", "next_s", "over")

    def __init__(
        self,
        schedule: Iterator[Request],
        arrived: Callable[[Request], tuple[float, float, int]] | None = None,
        front: FrontEnd = NO_FRONT_END,
    ) -> None:
        self.over = arrived is None  # what is not planned comes from answers; a run that is repeated went on waiting
        self._arrived = arrived
        self._front = front
        self._planned = front.in_order(schedule) if arrived is None else ((arrived(r)[0], r) for r in schedule)
        self._later: list[tuple[float, float, int, Request]] = []  # heap
        self._read()
        self.next_s = self._planned_s

    def _read(self) -> None:
        """Take the next request from the schedule, and when it arrives."""
        over: tuple[float, Request | None] = inf, None
        self._planned_s, self._next = next(self._planned, over)

    def add(self, follow_ups: Iterable[Request], now_s: float) -> None:
        """Requests that an answer brought about, none of them before `now_s`."""
        for request in follow_ups:
            at_s, sent_s, number = (
                (self._front.arrived_s(request), 0.0, request.id) if self._arrived is None else self._arrived(request)
            )
            heappush(self._later, (max(at_s, now_s), sent_s, number, request))
        if self._later:
            self.next_s = min(self.next_s, self._later[0][0])

    def pop(self) -> Request:
        is_later = bool(self._later) and self._later[0][0] == self.next_s
        if is_later and self._arrived is not None and self._next is not None and self._planned_s <= self.next_s:
            is_later = self._arrived(self._next)[1:] >= self._later[0][1:3]
        if is_later:
            request = heappop(self._later)[3]
        else:
            assert self._next is not None
            request = self._next
            self._read()
        self.next_s = self._planned_s
        if self._later and self._later[0][0] < self.next_s:
            self.next_s = self._later[0][0]
        return request


class CachedArrivals:
    """The same requests before a response cache: one that it does not answer arrives when it has searched.

    `hits` takes what it answers, when the answer is there.
    """

    def __init__(self, arrivals: Arrivals, cache: api.ResponseCache, hits: deque[EndedSequence]) -> None:
        self.over = True
        self._arrivals = arrivals
        self._cache = cache
        self._hits = hits
        self._searched: list[tuple[float, int, Request, api.CachedAnswer | None]] = []  # heap

    def add(self, follow_ups: Iterable[Request], now_s: float) -> None:
        """Requests that an answer brought about, none of them before `now_s`."""
        self._arrivals.add(follow_ups, now_s)

    @property
    def next_s(self) -> float:
        return min(self._arrivals.next_s, self._searched[0][0]) if self._searched else self._arrivals.next_s

    def pop(self) -> Request | None:
        """The request that arrives at `next_s`; None where it is but looked up then, or answered."""
        now_s = self.next_s
        if self._searched and self._searched[0][0] == now_s:
            _, _, request, answer = heappop(self._searched)
            if answer is None:
                return request
            seq = Sequence(request, 0, now_s)
            seq.answer(now_s)
            self._hits.append(EndedSequence(seq, None, cache_hit=answer.hit))
            return None
        request = self._arrivals.pop()
        answer = self._cache.lookup(request, now_s)
        wait_s = self._cache.search_s if answer is None else answer.after_s
        heappush(self._searched, (now_s + wait_s, request.id, request, answer))
        return None


def step_ends(model: LatencyModel, batch: Batch, now_s: float, horizon_s: float) -> list[float]:
    """Ends of the steps of a batch: at least one, and all that start before `horizon_s` while the batch repeats."""
    seqs, context = batch.decode_seqs, batch.context_tokens
    if batch.draft_rows:
        now_s += batch.draft_steps * model.decode_s(seqs - batch.draft_rows, context)
    if batch.swaps:
        now_s += batch.swap_s
    now_s += batch.setup_s
    longer = batch.adapter_factor
    if batch.takes_s is not None:
        return [now_s + batch.takes_s * longer]
    # Pieces of prompts are other ones in the next step.
    if batch.loads:
        return [now_s + model.step_s(batch.loads, seqs, context) * longer]
    if batch.repeats_until_s < horizon_s:
        horizon_s = batch.repeats_until_s
    steps_left, line = batch.steps, model.decode_line(seqs)
    ends: list[float] = []
    if line is None:
        for _ in range(steps_left if steps_left < SHORT else SHORT):
            now_s += model.decode_s(seqs, context) * longer
            ends.append(now_s)
            if now_s >= horizon_s:
                return ends
            context += seqs
        return _further_ends(model, batch, context, steps_left - SHORT, now_s, horizon_s, ends)
    if not isinstance(line, tuple):
        line.extend(ends, steps_left if steps_left < LOOP else LOOP, now_s, horizon_s, context, seqs, longer)
        if steps_left <= LOOP or ends[-1] >= horizon_s:
            return ends
        return _further_ends(model, batch, context + LOOP * seqs, steps_left - LOOP, ends[-1], horizon_s, ends)
    base_s, slope_s = line
    for _ in range(steps_left if steps_left < LOOP else LOOP):
        now_s += (base_s + slope_s * context) * longer
        ends.append(now_s)
        if now_s >= horizon_s:
            return ends
        context += seqs
    return _further_ends(model, batch, context, steps_left - LOOP, now_s, horizon_s, ends)


def _further_ends(
    model: LatencyModel, batch: Batch, context: int, left: int, now_s: float, horizon_s: float, ends: list[float]
) -> list[float]:
    """`ends` and those of the next `left` decode steps, whole vectors at a time."""
    seqs, longer = batch.decode_seqs, batch.adapter_factor
    while left > 0:
        count = min(left, LEAP)
        durations = model.decode_many_s(seqs, context + seqs * _COUNT[:count])
        if longer != 1.0:
            durations = durations * longer
        durations[0] += now_s
        more = np.add.accumulate(durations)  # in sequence: the times equal those of the plain loop to the last bit
        now_s = float(more[-1])
        if now_s >= horizon_s:
            more = more[: int(np.searchsorted(more, horizon_s)) + 1]
            left = 0
        ends.extend(more.tolist())
        context += seqs * count
        left -= count
    return ends


class Flow:
    """One simulation: the driver of its loop, whose results are what ends."""

    def __init__(
        self,
        cluster: Cluster,
        steps: StepLog | None,
        requests: Iterable[Request],
        follow_ups: FollowUps | None,
        *,
        leap: bool,
        front: FrontEnd = NO_FRONT_END,
        recorded: Recorded | None = None,
        cache: api.ResponseCache | None = None,
    ) -> None:
        self.results: deque[EndedSequence] = deque()
        self._members = cluster.members
        self._steps = steps
        self._recorded = recorded
        self._times = None if recorded is None else Repetition(recorded, cluster.replicas)
        if self._times is not None and cluster.hierarchy is not None and self._times.tier_copies:
            cluster.hierarchy.carry = self._times.carry  # else its tiers are simulated, as they were there
        self._cache = cache
        arrivals = Arrivals(iter(requests), None if recorded is None else recorded.arrived, front)
        self._arrivals = arrivals if cache is None else CachedArrivals(arrivals, cache, self.results)
        self._follow_ups = follow_ups
        self.loop = Loop(
            cluster, self, self._arrivals, None if steps is None else steps.append, leap=leap,
            coupled=follow_ups is not None, mover=self._times, fails=recorded is not None,
        )  # fmt: skip

    def ended(self) -> Iterator[EndedSequence]:
        """What ends, in this order."""
        recorded, number = self._recorded, 0
        if self._steps is not None and self.loop.hands_off:
            self.loop.mark = self._steps.put_in_order()
        self.loop.begin(0.0 if recorded is None else recorded.begun_s)
        for ended in self.loop.advance(inf if recorded is None else recorded.last_s):
            if self._cache is not None and ended.cache_hit is None:
                self._cache.store(Oracle.request(ended.seq), ended.record())
            yield ended
            number += 1
            if self._follow_ups is not None:
                self._arrivals.add(self._follow_ups(ended.record()), self.loop.now_s)
        if recorded is not None:
            recorded.check_ended(number)

    def start(self, replica: Replica, batch: Batch, now_s: float, horizon_s: float) -> list[float]:
        """Ends of its steps by the latency model of the replica, or that of the recorded step."""
        if self._times is not None:
            return [self._times.end_s(replica, batch)]
        model = self._members[replica.index].model
        assert model is not None
        return step_ends(model, batch, now_s, horizon_s)

    def end(self, seq: Sequence, replica: int, error: str | None, now_s: float) -> None:
        if error is None:
            self.results.append(EndedSequence(seq, replica))
        else:
            self.results.append(EndedSequence(seq, replica, "error", error, now_s))

    def reject(self, request: Request, reason: str, replica: int | None, now_s: float) -> None:
        self.results.append(rejected(request, reason, replica, now_s))
