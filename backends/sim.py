"""The simulator: the serving core under a virtual clock; a latency model says how long each batch takes.

Nothing is scheduled here: the replicas decide, this loop only keeps the time. At one instant batches are committed
first, then requests arrive, then replicas form new batches. A batch that would repeat is carried out as one leap up
to the next event; stepping through it instead gives the same records, bit for bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType
from typing import Literal

import numpy as np
import pyarrow as pa

from backends._core import Core
from backends._front import behind_front_end
from backends._layout import (
    Asked,
    Part,
    altered,
    block_cost,
    blocks_of,
    cluster,
    first_token_only,
    link_of,
    token_bytes,
    told,
    with_further_token,
)
from backends._realtime import RealTime
from backends._sides import Rate
from backends._steplog import StepLog
from backends._swapping import gave_way
from backends.latency.recorded import Recorded
from backends.serving.batch import Batch
from backends.serving.cluster import Cluster
from backends.serving.handoff import Link
from backends.serving.journal import Journal
from backends.serving.pipeline import Pipeline
from backends.serving.replica import Replica
from backends.serving.sequence import Sequence
from harness.api import FollowUps, LatencyModel, Request, RequestRecord
from harness.catalog import model
from harness.errors import UsageError

LANES = 1 << 20  # a lane of a pipeline draws as a replica of its own: its number times this, plus the replica's
HAND_OFF = MappingProxyType({"handoff": ("pull",), "link": ("nvlink",)})
"""What only a cluster with prefill and decode replicas has, and how it is written when nobody asked for it."""
COMPAT_LACKS = MappingProxyType(
    {"admission": ("fcfs",), "speculate": (None, "off"), "prefix_cache": ("off", "false"), "preempt": ("recompute",)}
)
"""What a compatibility mode does not have, and how it is written when it is off."""
LOOP = 32  # steps of a leap that a plain loop adds up faster than numpy does
LEAP = 512  # steps that numpy adds up at a time
_COUNT = np.arange(LEAP, dtype=np.int64)


@dataclass(slots=True)
class Sim:
    """A simulated cluster of `replicas` equal replicas, each on `tp` x `pp` GPUs, `pp` of them stages of a pipeline.

    Or, with `prefill=2:tp=2` and `decode=1`, so many replicas for prefill and for decode alone: KV is handed on over
    `link` (nvlink, pcie, none, 25Gbps, 600GBps:latency=1ms), pulled or pushed (`handoff`). With `prefill` alone every
    request ends with its first token, with `decode` alone requests come with their prompts computed. A side may have a
    policy, router and latency model of its own (`decode=1:policy=distserve-decode:max_seqs=64`); `router` is that of
    the prefill side.

    `latency`, `policy`, `kv`, `admission` and `router` are specs of their kinds; what they draw follows from `seed`.
    KV memory is what `hardware` leaves beside the weights of `model` at `utilisation`, unless `kv_blocks` (or `kv`
    itself) says how many blocks there are. `journal` keeps every call into the replicas in memory, for tests. Without
    `log_steps` the run has no `steps` table and is a sixth faster; without `leap` it is slower and equal.
    `compat=distserve_sim` behaves as DistServe's simulator: it replaces policy and kv, and needs `latency=abc`.
    """

    model: str = "opt-13b"
    hardware: str = "a100-80g"
    latency: str = "roofline"
    policy: str = "sarathi"
    kv: str = "paged"
    admission: str = "fcfs"
    prefix_cache: str = "off"
    speculate: str | None = None
    preempt: str = "recompute"
    tp: int = 1
    pp: int = 1
    replicas: int = 1
    router: str = "round-robin"
    prefill: str | None = None
    decode: str | None = None
    handoff: Literal["pull", "push"] = "pull"
    link: str = "nvlink"
    utilisation: float = 0.9
    kv_blocks: int | None = None
    leap: bool = True
    journal: bool = False
    log_steps: bool = True
    compat: str | None = None
    seed: int = 0
    cluster: Cluster = field(init=False)
    _model: LatencyModel | Recorded = field(init=False)
    _steps: StepLog = field(init=False)
    _asked: Asked = field(init=False, repr=False)
    _parts: tuple[Part, ...] = field(init=False, repr=False)
    _link: Link = field(init=False, repr=False)
    _rate: Rate | None = field(init=False, repr=False)
    _flow: object = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.tp < 1 or self.pp < 1:
            asked = f"{self.replicas}, {self.tp} and {self.pp}"
            raise ValueError(f"replicas, tp and pp must be at least 1, got {asked}")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation must be a share in (0, 1], got {self.utilisation}")
        if self.handoff not in ("pull", "push"):
            raise ValueError(f"handoff must be pull or push, got '{self.handoff}'")
        self._asked = Asked(
            self.model, self.hardware, self.latency, self.policy, self.kv, self.tp, self.pp, self.replicas, self.router,
            self.prefill, self.decode, self.compat,
        )  # fmt: skip
        self._refuse_what_would_be_ignored()
        self._parts = self._asked.parts()
        self._link, self._rate = Link(), None
        if self.prefill is not None and self.decode is not None and self.compat is None:
            self._link, self._rate = link_of(self.link, self.model, self.hardware)
        first = self._parts[0]
        self._model = first.model
        if self.compat is not None:
            self.latency, self.policy, self.kv = first.latency, first.policy, first.kv
        self.reset()

    def _refuse_what_would_be_ignored(self) -> None:
        if self.compat is not None:
            self._refuse({**COMPAT_LACKS, **HAND_OFF}, f"compat={self.compat} has no")
        elif self.prefill is None and self.decode is None:  # one side alone may be a part of a cluster that has a link
            self._refuse(HAND_OFF, "Without prefill and decode replicas there is no")

    def _refuse(self, options: Mapping[str, tuple[str | None, ...]], why: str) -> None:
        for name, off in options.items():
            if (given := getattr(self, name)) not in off:
                raise UsageError(f"{why} {name}; leave out {name}={given}.")

    def reset(self) -> None:
        """Forget everything that was simulated: fresh replicas, empty memory."""
        self.cluster = cluster(self._parts, self._replica, self._link, pull=self.handoff == "pull")
        self._steps = StepLog(replica.blocks.size for replica in self.cluster.replicas)

    def _replica(self, part: Part, index: int) -> Replica:
        core = Core(part.policy, part.kv, self.admission, self.seed, self.prefix_cache, self.speculate, self.preempt)
        core.check()
        memory = core.memory(token_bytes(part, self._asked))
        blocks = blocks_of(part, memory, self._asked, self.utilisation, self.kv_blocks)
        journal, cost = Journal() if self.journal else None, block_cost(part, memory, self._asked)
        front = core.replica(memory, blocks, index, journal, cost)
        if part.pp > 1:
            Pipeline(front, [core.replica(memory, blocks, LANES * (n + 1) + index, None, cost) for n in range(part.pp)])
        return front

    def simulate(self, requests: Iterable[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end; `requests` are ordered by `scheduled_s`."""
        if isinstance(self._model, Recorded):
            return self._model.retimed(
                requests,
                follow_ups,
                lambda first, more: _simulate(self.cluster, self._model, self._steps, first, more, leap=False),
            )
        requests, follow_ups = self._as_served(requests, follow_ups)
        steps, model = self._steps if self.log_steps else None, self._model
        if front_s := getattr(model, "front_s", 0.0):
            return behind_front_end(
                front_s, requests, follow_ups,
                lambda first, more: self._simulate(model, steps, first, more),
            )  # fmt: skip
        return self._simulate(model, steps, iter(requests), follow_ups)

    def _simulate(
        self, model: LatencyModel, steps: StepLog | None, requests: Iterator[Request], follow_ups: FollowUps | None
    ) -> Iterator[RequestRecord]:
        if self._plain:
            return _simulate(self.cluster, model, steps, requests, follow_ups, leap=self.leap)
        if self.compat is not None and any(part.pp > 1 for part in self._parts):
            from backends._simdistserve import Rings

            return Rings(self._parts, requests, follow_ups).records()
        from backends._flow import flow  # it drives the same replicas with the functions of this module

        self._flow = flow(self.cluster, self._parts, steps, requests, follow_ups, leap=self.leap)
        return self._flow.records()

    @property
    def _plain(self) -> bool:
        """Whether replicas are alike and have one batch in flight each."""
        return self._parts[0].role == "mixed" and self.pp == 1

    def _as_served(
        self, requests: Iterable[Request], follow_ups: FollowUps | None
    ) -> tuple[Iterable[Request], FollowUps | None]:
        """The requests as this cluster serves them."""
        if self.prefill is not None and self.decode is None:
            return altered(first_token_only, requests, follow_ups)
        if self.compat is not None:
            return altered(with_further_token, requests, follow_ups)
        return requests, follow_ups

    def real_time(self) -> RealTime:
        """The same replicas, policy and latency model for a clock that runs by itself.

        Raises UsageError where there is no such thing: for step times of a stored run, and in a compatibility mode.
        """
        latency = self._model
        if isinstance(latency, Recorded):
            raise UsageError("latency=recorded repeats a run that is over; it cannot serve requests as they come.")
        if self.compat is not None:
            raise UsageError(f"compat={self.compat} makes other answers than were asked for; it cannot serve them.")
        if (self.prefill is None) != (self.decode is None):
            raise UsageError("To serve requests give prefill and decode replicas, not one of the two alone.")
        models: list[LatencyModel] = [part.model for part in self._parts for _ in range(part.count)]  # type: ignore[misc]  # none is Recorded
        front_s = getattr(self._model, "front_s", 0.0)
        return RealTime(
            self.cluster, lambda batch, start_s: _ends(models[batch.replica], batch, start_s, start_s)[0], front_s
        )

    def steps_table(self) -> pa.Table:
        """The `steps` rows since the last call."""
        return self._steps.table()

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json."""
        blocks = self.cluster.replicas[0].blocks
        bubbles = getattr(self._flow, "bubble_share", None) if any(part.pp != 1 for part in self._parts) else None
        return {
            "backend": "sim", "model": self.model, "max_tokens": model(self.model).max_tokens,
            "hardware": self.hardware, "latency": self.latency,
            "policy": " + ".join(dict.fromkeys(part.policy for part in self._parts)), "kv": self.kv,
            "admission": self.admission, "speculate": self.speculate or "off", "preempt": self.preempt,
            "kv_blocks": blocks.total, "kv_tokens": blocks.total * blocks.size, "replicas": len(self.cluster.replicas),
            "router": self._parts[0].router, "tp": self.tp, "pp": self.pp,
            "gpus": sum(part.gpus for part in self._parts), "prefix_cache": self.cluster.replicas[0].cache is not None,
            **told(self._parts, self.cluster, self._rate, self.handoff),
            **({} if bubbles is None else {"bubble_share": bubbles}), **gave_way(self.cluster.replicas),
        }  # fmt: skip


def _simulate(
    cluster: Cluster,
    model: LatencyModel | Recorded,
    steps: StepLog | None,
    requests: Iterator[Request],
    follow_ups: FollowUps | None,
    *,
    leap: bool,
) -> Iterator[RequestRecord]:
    replicas, log = cluster.replicas, steps.append if steps is not None else None
    recorded = model if isinstance(model, Recorded) else None
    arrivals = _Arrivals(requests, recorded.sent_order if recorded is not None else None)
    watched = cluster.watches
    coupled = follow_ups is not None and len(replicas) > 1  # what ends on one replica may arrive at another
    ending: list[tuple[float, int, list[float]]] = []  # heap of (end, replica, step ends) of the batches in flight
    arrival_s = arrivals.next_s
    while True:
        now_s = arrival_s
        idle: list[int] = []
        if ending and ending[0][0] <= now_s:
            now_s = ending[0][0]
            while ending and ending[0][0] == now_s:
                _, index, ends = heappop(ending)
                idle.append(index)
                batch = replicas[index].in_flight
                if batch is None:
                    continue  # a recorded executor woke up
                for seq in replicas[index].commit(batch, ends):
                    record = _record(seq, index)
                    yield record
                    if follow_ups is not None:
                        arrivals.add(follow_ups(record), now_s)
                        arrival_s = arrivals.next_s
        elif now_s == inf:
            assert not any(replica.waiting for replica in replicas), "a request can neither run nor be refused"
            return
        while arrival_s == now_s:
            request = arrivals.pop()
            arrival_s = arrivals.next_s
            index, refusal = cluster.add(request, now_s)
            if refusal is not None:
                record = _rejected(request, refusal, index)
                yield record
                if follow_ups is not None:
                    arrivals.add(follow_ups(record), now_s)
                    arrival_s = arrivals.next_s
            elif replicas[index].in_flight is None:
                idle.append(index)
        free = idle if len(idle) < 2 else sorted(set(idle))
        for index in free:
            replica = replicas[index]
            if recorded is not None and (start_s := recorded.next_start_s(index)) > now_s:
                if start_s < inf:
                    heappush(ending, (start_s, index, []))  # the recorded executor was not ready yet
                continue
            batch = replica.schedule(now_s)
            if batch is None:
                continue
            if isinstance(model, Recorded):
                ends = [model.end_s(replica, batch)]
            else:
                horizon_s = arrival_s
                if not leap or (coupled and index != free[-1]):  # those after it at this instant may end before a leap
                    horizon_s = now_s
                elif coupled and ending:
                    horizon_s = min(arrival_s, ending[0][0])
                ends = _ends(model, batch, now_s, horizon_s)
                if watched and len(ends) > 1 and ends[-1] >= horizon_s:
                    ends.pop()  # a router that looks then must find all steps before this one done
            if log is not None:
                log(batch, ends, replica.decoding)
            heappush(ending, (ends[-1], index, ends))


class _Arrivals:
    """The requests of the schedule and the follow-ups, in order of time.

    At one instant follow-ups go first, by id; where `rank` is given it orders all that arrive at one instant.
    """

    __slots__ = ("_later", "_next", "_rank", "_schedule", "next_s")

    def __init__(self, schedule: Iterator[Request], rank: Callable[[Request], tuple[float, int]] | None = None) -> None:
        self._schedule = schedule
        self._rank = rank
        self._later: list[tuple[float, tuple[float, int], Request]] = []  # heap
        self._next = next(schedule, None)
        self.next_s = self._next.scheduled_s if self._next is not None else inf

    def add(self, follow_ups: Iterable[Request], now_s: float) -> None:
        """Requests that an answer brought about, none of them before `now_s`."""
        for request in follow_ups:
            rank = (0.0, request.id) if self._rank is None else self._rank(request)
            heappush(self._later, (max(request.scheduled_s, now_s), rank, request))
        if self._later:
            self.next_s = min(self.next_s, self._later[0][0])

    def pop(self) -> Request:
        """The request that arrives at `next_s`."""
        if self._later and self._later[0][0] == self.next_s and not self._planned_first():
            request = heappop(self._later)[2]
        else:
            assert self._next is not None
            request = self._next
            self._next = next(self._schedule, None)
        self.next_s = self._next.scheduled_s if self._next is not None else inf
        if self._later and self._later[0][0] < self.next_s:
            self.next_s = self._later[0][0]
        return request

    def _planned_first(self) -> bool:
        planned = self._next
        if self._rank is None or planned is None or planned.scheduled_s > self.next_s:
            return False
        return self._rank(planned) < self._later[0][1]


def _ends(model: LatencyModel, batch: Batch, now_s: float, horizon_s: float) -> list[float]:
    """Ends of the steps of a batch: at least one, and all that start before `horizon_s` while the batch repeats."""
    seqs, context = batch.decode_seqs, batch.context_tokens
    if batch.draft_rows:
        now_s += batch.draft_steps * model.decode_s(seqs - batch.draft_rows, context)
    if batch.swaps:
        now_s += batch.swap_s
    now_s += batch.map_s
    if batch.loads:
        return [now_s + model.step_s(batch.loads, seqs, context)]
    left, line = batch.steps, model.decode_line(seqs)
    if line is None:
        return _further_ends(model, seqs, context, left, now_s, horizon_s, [])
    base_s, slope_s = line
    ends = []
    for _ in range(left if left < LOOP else LOOP):
        now_s += base_s + slope_s * context
        ends.append(now_s)
        if now_s >= horizon_s:
            return ends
        context += seqs
    return _further_ends(model, seqs, context, left - LOOP, now_s, horizon_s, ends)


def _further_ends(
    model: LatencyModel, seqs: int, context: int, left: int, now_s: float, horizon_s: float, ends: list[float]
) -> list[float]:
    """`ends` and those of the next `left` decode steps, whole vectors at a time."""
    while left > 0:
        count = min(left, LEAP)
        durations = model.decode_many_s(seqs, context + seqs * _COUNT[:count])
        durations[0] += now_s
        more = np.add.accumulate(durations)  # in the order in which a loop would add
        now_s = float(more[-1])
        if now_s >= horizon_s:
            more = more[: int(np.searchsorted(more, horizon_s)) + 1]
            left = 0
        ends.extend(more.tolist())
        context += seqs * count
        left -= count
    return ends


def _record(seq: Sequence, replica: int) -> RequestRecord:
    request = seq.request
    scheduled_s = request.scheduled_s
    token_n = None if seq.token_n is None else seq.tokens_per_stamp()
    return RequestRecord(
        request.id, scheduled_s, scheduled_s, seq.token_s, token_n, seq.prompt, seq.emitted, request.output_tokens,
        "ok", None, request.session, request.turn, request.tag, None, seq.cached_tokens, replica, seq.preemptions,
        seq.prefill_start_s, seq.prefill_end_s, seq.handoff_start_s, seq.handoff_end_s, seq.decode_start_s,
        request.slo_ttft_s,
        request.slo_tpot_s, seq.arrived_s, None, request.slo_task_s,
    )  # fmt: skip


def _rejected(request: Request, reason: str, replica: int) -> RequestRecord:
    return RequestRecord(
        request.id, request.scheduled_s, request.scheduled_s, (), (), request.prompt_tokens, 0, request.output_tokens,
        "rejected", reason, request.session, request.turn, request.tag, None, None, replica, 0,
        slo_ttft_s=request.slo_ttft_s, slo_tpot_s=request.slo_tpot_s, ended_s=request.scheduled_s,
        slo_task_s=request.slo_task_s,
    )  # fmt: skip
