"""Chains: one system under endless traffic of one seed at one rate, observed for as long as a search needs.

A chain starts empty, its first `cut_s` seconds are not counted, and load goes on while the last counted requests
finish: a run that is drained at its end is too good, because the last requests have the system to themselves. The
simulation stays alive between two extensions, so a longer chain costs only what is new of it.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import ENDED_WELL
from harness.data.dependencies import dropped, ended_s
from harness.data.lists import number
from harness.data.records import to_table
from harness.data.schedule import requests_of
from harness.experiments.capacity.conditions import shares, with_typical
from harness.experiments.trial import at_rate, without_steps
from harness.metrics.measure import first_last
from harness.metrics.objective import ObjectiveCounts, ShareKey, added
from harness.runner.plan import load_workload, make_backend
from harness.spec import parse

if TYPE_CHECKING:
    from harness.api import Loaded, Request, RequestRecord, Simulator, Slo
    from harness.experiments.capacity.conditions import Share
    from harness.options import RunSpec

Counts: TypeAlias = npt.NDArray[np.int64]

SCORED = 4096
"""Records that are scored together."""

EVERY_S = 5.0
"""Seconds of waiting between two words about a chain."""

APART_S = 1e5
AHEAD = 20_000
"""Seconds between two arrivals of an unloaded system: longer than any request or session takes."""
FILLED = 0.99
"""Of the sessions that are under way in the steady state, those that have to be there before a chain counts."""


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """A chain that a search needs, observed for `blocks` blocks of `block_s` seconds after `cut_s`.

    A request that is open `patience_s` after the last block has missed.
    """

    seed: int
    rate_rps: float
    cut_s: float
    block_s: float
    blocks: int
    patience_s: float

    @property
    def until_s(self) -> float:
        """Seconds up to the end of the last block."""
        return self.cut_s + self.blocks * self.block_s

    @property
    def requests(self) -> int:
        """Requests that are expected up to then."""
        return math.ceil(self.rate_rps * self.until_s)

    @property
    def chain(self) -> tuple[int, float, float, float]:
        """What does not change when the chain is made longer."""
        return self.seed, self.rate_rps, self.cut_s, self.block_s


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What a chain counted: `met` and `of` by condition, each (blocks,); a block holds the requests due in it.

    `open` (blocks,) are the requests under way at the end of each, `sent` all that were simulated, those outside of
    the blocks included.
    """

    request: ChainRequest
    met: dict[ShareKey, Counts]
    of: dict[ShareKey, Counts]
    open: Counts
    sent: int

    def part(self, request: ChainRequest) -> Observed | None:
        """The first blocks of the chain; None where it is shorter."""
        n = request.blocks
        if n > len(self.open):
            return None
        met, of = ({key: counts[:n] for key, counts in all_.items()} for all_ in (self.met, self.of))
        return Observed(request, met, of, self.open[:n], self.sent)


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Requests (or sessions) one by one: shares that met each condition, and the time to the last token.

    `filled_s` is how long endless sessions take to become as many as they will be: 0 where there are none.
    """

    shares: tuple[Share, ...]
    mean_s: float
    p99_s: float
    filled_s: float = 0.0


def chainable(spec: RunSpec, loaded: Loaded) -> str | None:
    """Why this traffic cannot be a chain; None where it can.

    A chain has to go on for ever with the same law of traffic, and to know of each request by itself whether it met.
    """
    if loaded.timing != "drawn":
        return "a recording has an end and a rate of its own"
    if loaded.operational_time is not None:
        return "the rate of these arrivals follows a curve, so there is no steady state"
    if parse(parse(spec.backend).args.get("latency", "") or spec.latency or "operators").name == "recorded":
        return "recorded step times belong to one run"
    if "fail" in parse(spec.backend).args:
        return "a failure happens once"
    first = next(loaded.workload.start(np.random.default_rng(0)))
    if first["slo_task_s"].null_count < len(first):
        return "deadlines of tasks are judged over whole sessions"
    return None


class Chain:
    """A live simulation that can be observed further and further."""

    def __init__(self, spec: RunSpec, own_rps: float, slo: Slo, request: ChainRequest) -> None:
        made = at_rate(replace(spec, seed=request.seed), request.rate_rps, own_rps)
        self._request = request
        self._traffic = Traffic(load_workload(made).workload.start(_generator(request.seed)), self._dropped)
        self._records = self._traffic.served_by(simulator(made))
        self._new: list[RequestRecord] = []
        self._given_up: set[int] = set()
        self._counts = ObjectiveCounts(slo)
        self._came = self._ended = np.zeros(0, np.int64)  # requests by block, those before the first block in that

    def __repr__(self) -> str:
        return f"<Chain seed {self._request.seed}, {self._request.rate_rps:g} req/s, {self._request.blocks} blocks>"

    def observe(self, request: ChainRequest, tell: Callable[[str], None] = lambda _: None) -> Observed:
        """Everything up to the end of the last block; `tell` hears every few seconds how far it is."""
        assert request.chain == self._request.chain
        self._request = request
        until_s, traffic = request.until_s, self._traffic
        traffic.count_until(until_s)
        reported_s = time.monotonic()
        for record in self._records:
            traffic.open_s.pop(record.request_id, None)
            now_s = ended_s(record)
            if record.scheduled_s < until_s:
                traffic.open_before -= 1
            if record.request_id in self._given_up:
                self._given_up.discard(record.request_id)
            else:
                self._new.append(record)
            if len(self._new) >= SCORED:
                self._score()
                if time.monotonic() - reported_s > EVERY_S:
                    reported_s = time.monotonic()
                    share = min(1.0, now_s / until_s)
                    tell(f"seed {request.seed}, {request.rate_rps:g} req/s: {share:.0%} of {until_s:,.0f} s")
            if now_s >= until_s and (traffic.open_before <= 0 or now_s >= until_s + request.patience_s):
                break
        self._score()
        for request_id, due_s in traffic.open_s.items():
            if due_s < until_s and request_id not in self._given_up:
                self._given_up.add(request_id)
                block = int((due_s - request.cut_s) // request.block_s)
                self._came = added(self._came, np.bincount([max(block, 0)]))
                self._counts.add_missed(block)
        blocks = request.blocks
        change = _padded(self._came, blocks)[:blocks] - _padded(self._ended, blocks)[:blocks]
        return Observed(
            request,
            {key: _padded(counts, blocks)[:blocks] for key, counts in self._counts.met.items()},
            {key: _padded(counts, blocks)[:blocks] for key, counts in self._counts.of.items()},
            np.cumsum(change),
            traffic.sent,
        )

    def _dropped(self, record: RequestRecord) -> None:
        self._new.append(record)

    def _score(self) -> None:
        if not self._new:
            return
        table = to_table(self._new)
        self._new = []
        block = np.floor((number(table, "scheduled_s") - self._request.cut_s) / self._request.block_s).astype(int)
        self._counts.add(table, block)
        self._came = added(self._came, np.bincount(np.maximum(block, 0)))
        end_s = number(table, "ended_s")
        last_s = first_last(table)[1]
        ended = np.floor((np.where(np.isnan(last_s), end_s, last_s) - self._request.cut_s) / self._request.block_s)
        self._ended = added(self._ended, np.bincount(np.maximum(ended, 0).astype(int)))


def unloaded(spec: RunSpec, slo: Slo, requests: int) -> Unloaded:
    """So many requests, each arrival long after the one before has been answered."""
    drawn: list[pa.Table] = []  # with the follow-ups of all that is sent, which would be late if drawn afterwards
    for table in load_workload(spec).workload.start(_generator(spec.seed)):
        drawn.append(table)
        if sum(map(len, drawn)) >= AHEAD:
            break
    traffic = Traffic(iter([pa.concat_tables(drawn)]), lambda _: None, apart_s=APART_S)
    found: list[RequestRecord] = []
    for record in traffic.served_by(simulator(spec)):
        found.append(record)
        if len(found) >= requests:
            break
    table = to_table(found).sort_by("request_id")
    end_s, due_s = first_last(table)[1], number(table, "scheduled_s")
    e2e_s = (end_s - due_s)[np.isfinite(end_s)]
    mean_s = float(e2e_s.mean()) if len(e2e_s) else 0.0
    return Unloaded(
        with_typical(shares(table, slo), table, slo),
        mean_s,
        float(np.quantile(e2e_s, 0.99)) if len(e2e_s) else 0.0,
        filled_s(pa.concat_tables(drawn), mean_s),
    )


def filled_s(drawn: pa.Table, each_s: float) -> float:
    """Seconds after which an endless stream of the sessions of a schedule has 99% of its mean number under way, where
    each request takes `each_s`; 0 without sessions.

    Of sessions that begin at a constant rate and last D, the share E[min(D, t)] / E[D] is under way at t.
    """
    begun_s: dict[int, float] = {}
    ended_s: dict[int, float] = {}  # by request
    last_s: dict[int, float] = {}
    rows = drawn.filter(pc.is_valid(drawn["session"])).select(["id", "session", "scheduled_s", "delay_s", "after"])
    for id_, session, due_s, delay_s, after in zip(*rows.sort_by("id").to_pydict().values(), strict=True):
        due_s = max([due_s, *(ended_s[parent] + delay_s for parent in after)])
        begun_s.setdefault(session, due_s)
        ended_s[id_] = due_s + each_s
        last_s[session] = max(last_s.get(session, 0.0), ended_s[id_])
    lasts_s = np.sort([last_s[session] - first_s for session, first_s in begun_s.items()])
    if not len(lasts_s):
        return 0.0
    longer = np.arange(len(lasts_s) - 1, -1, -1)
    under_way = np.cumsum(lasts_s) + longer * lasts_s
    return float(lasts_s[np.searchsorted(under_way, FILLED * under_way[-1])])


def simulator(spec: RunSpec) -> Simulator:
    return cast("Simulator", make_backend(without_steps(spec)))


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed))


def _padded(counts: Counts, size: int) -> Counts:
    return np.concatenate([counts, np.zeros(max(0, size - len(counts)), np.int64)])


class Traffic:
    """Requests as they are drawn, in order of time, and those that answers set free: `harness.data.dependencies` for
    traffic without end. A row of a session may be drawn after the answer that it waits for has ended.
    """

    def __init__(
        self, chunks: Iterator[pa.Table], drop: Callable[[RequestRecord], None], apart_s: float | None = None
    ) -> None:
        self._chunks = chunks
        self._drop = drop
        self._apart_s = apart_s
        self._due: list[tuple[float, int, Request]] = []  # heap of follow-ups whose answers had ended when drawn
        self._children: dict[int, list[int]] = {}  # request -> those that wait for it
        self._waiting: dict[int, tuple[Request, int, float]] = {}  # request, answers to come, earliest time so far
        self._ended: dict[int, tuple[float, bool, int | None]] = {}  # of requests with a session
        self._until_s = math.inf
        self._last_s = 0.0
        self.open_s: dict[int, float] = {}  # sent and without a record: when each was due
        self.open_before = 0  # those of them that are due before the time that is counted
        self.sent = 0

    def served_by(self, simulated: Simulator) -> Iterator[RequestRecord]:
        """The records of a simulator. Only sessions have follow-ups: where there are none replicas need not wait for
        one another."""
        first = next(self._chunks)
        self._chunks = chain([first], self._chunks)
        sessions = first["session"].null_count < len(first)
        return simulated.simulate(iter(self), self.follow_ups if sessions else None)

    def count_until(self, until_s: float) -> None:
        """Count the open requests that are due before this time."""
        self._until_s = until_s
        self.open_before = sum(due_s < until_s for due_s in self.open_s.values())

    def __iter__(self) -> Iterator[Request]:
        started = 0
        for chunk in self._chunks:
            follows = pc.list_value_length(chunk["after"]).to_numpy(zero_copy_only=False) > 0
            if follows.any():
                for request in requests_of(chunk.filter(pa.array(follows))):
                    self._wait(request)
                chunk = chunk.filter(pa.array(~follows))
            for request in requests_of(chunk):
                first = request
                if self._apart_s is not None:
                    started += 1
                    first = replace(request, scheduled_s=started * self._apart_s)
                while self._due and self._due[0][0] <= first.scheduled_s:
                    yield self._sent(heapq.heappop(self._due)[2])
                self._last_s = first.scheduled_s
                yield self._sent(first)

    def follow_ups(self, record: RequestRecord) -> list[Request]:
        """The requests for which this was the last answer to wait for."""
        ended = [record]
        free: list[Request] = []
        while ended:
            one = ended.pop()
            if one.session is not None:
                self._ended[one.request_id] = ended_s(one), one.status in ENDED_WELL, one.session
            for child in self._children.pop(one.request_id, ()):
                if child not in self._waiting:
                    continue
                request, left, due_s = self._waiting[child]
                due_s = max(due_s, ended_s(one) + request.delay_s)
                if one.status not in ENDED_WELL and request.session is not None and request.session == one.session:
                    del self._waiting[child]
                    ended.append(dropped(replace(request, scheduled_s=due_s), one))
                    self._drop(ended[-1])
                elif left == 1:
                    del self._waiting[child]
                    free.append(self._sent(replace(request, scheduled_s=due_s)))
                else:
                    self._waiting[child] = request, left - 1, due_s
        return free

    def _wait(self, request: Request) -> None:
        """A request that waits for answers, some of which may have ended before it was drawn."""
        due_s, left = request.scheduled_s, 0
        for parent in request.after:
            if parent not in self._ended:
                self._children.setdefault(parent, []).append(request.id)
                left += 1
                continue
            end_s, ok, session = self._ended[parent]
            due_s = max(due_s, end_s + request.delay_s)
            if not ok and session == request.session:  # its session is over
                self._ended[request.id] = due_s, False, session
                return
        if left:
            self._waiting[request.id] = request, left, due_s
        else:
            due_s = max(due_s, self._last_s)
            heapq.heappush(self._due, (due_s, request.id, replace(request, scheduled_s=due_s)))

    def _sent(self, request: Request) -> Request:
        self.sent += 1
        self.open_s[request.id] = request.scheduled_s
        self.open_before += request.scheduled_s < self._until_s
        return request
