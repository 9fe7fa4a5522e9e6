"""The simulator: the serving core under a virtual clock; a latency model says how long each batch takes.

Nothing is scheduled here: the replicas decide, this loop only keeps the time. At one instant batches are committed
first, then requests arrive, then replicas form new batches. A batch that would repeat is carried out as one leap up
to the next event; stepping through it instead gives the same records, bit for bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from backends._catalog import kv_capacity_blocks
from backends._compat import Mode, mode
from backends._steplog import StepLog
from backends.latency.recorded import Recorded
from backends.serving.cluster import Cluster
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from harness.api import FollowUps, LatencyModel, Request, RequestRecord
from harness.registry import make

if TYPE_CHECKING:
    import pyarrow as pa

    from backends.serving.batch import Batch
    from backends.serving.sequence import Sequence

LOOP = 16  # steps of a leap that a plain loop adds up faster than numpy does
LEAP = 512  # steps that numpy adds up at a time
_COUNT = np.arange(LEAP, dtype=np.int64)


@dataclass(slots=True)
class Sim:
    """A simulated cluster of `replicas` equal replicas, each on `tp` GPUs.

    `latency`, `policy`, `kv` and `router` are specs of their kinds. KV memory is what `hardware` leaves beside the
    weights of `model` at `utilisation`, unless `kv_blocks` (or `kv` itself) says how many blocks there are.
    `compat=distserve_sim` behaves as DistServe's simulator: it replaces policy and kv, and needs `latency=abc`.
    """

    model: str = "opt-13b"
    hardware: str = "a100-80g"
    latency: str = "roofline"
    policy: str = "sarathi"
    kv: str = "paged"
    tp: int = 1
    replicas: int = 1
    router: str = "round-robin"
    utilisation: float = 0.9
    kv_blocks: int | None = None
    leap: bool = True
    journal: bool = False
    compat: str | None = None
    cluster: Cluster = field(init=False)
    _model: LatencyModel | Recorded = field(init=False)
    _steps: StepLog = field(init=False)
    _compat: Mode | None = field(init=False)

    def __post_init__(self) -> None:
        if self.replicas < 1 or self.tp < 1:
            raise ValueError(f"replicas and tp must be at least 1, got {self.replicas} and {self.tp}")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation must be a share in (0, 1], got {self.utilisation}")
        self._compat = None
        if self.compat is not None:
            latency = None if self.latency == "roofline" else self.latency
            self._compat = mode(self.compat, latency, self.model, self.hardware, self.tp)
            self.latency, self.policy, self.kv = self._compat.latency, self._compat.policy, self._compat.kv
        self._model = make("latency", self.latency, model=self.model, hardware=self.hardware, tp=self.tp)
        self.reset()

    def reset(self) -> None:
        """Forget everything that was simulated: fresh replicas, empty memory."""
        memory: Any = make("kv", self.kv)
        blocks = memory.blocks or self.kv_blocks
        if blocks is None:
            blocks = kv_capacity_blocks(
                self.model, self.hardware, tp=self.tp, utilisation=self.utilisation, block_tokens=memory.block_tokens
            )
        policies = [make("policies", self.policy) for _ in range(self.replicas)]
        self.cluster = Cluster(
            [Replica(p, memory, blocks, i, Journal() if self.journal else None) for i, p in enumerate(policies)],
            make("routers", self.router),
        )
        self._steps = StepLog(memory.block_tokens)

    def simulate(self, requests: Iterable[Request], follow_ups: FollowUps | None = None) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end; `requests` are ordered by `scheduled_s`."""
        if isinstance(self._model, Recorded):
            return self._model.retimed(
                requests, lambda arriving: _simulate(self.cluster, self._model, self._steps, arriving, None, leap=False)
            )
        if self._compat is not None:
            requests = self._compat.requests(requests)
        return _simulate(self.cluster, self._model, self._steps, iter(requests), follow_ups, leap=self.leap)

    def steps_table(self) -> pa.Table:
        """The `steps` rows since the last call."""
        return self._steps.table()

    @property
    def pending_steps(self) -> int:
        """Batches (a leap counts once) that `steps_table` would return now."""
        return len(self._steps)

    def describe(self) -> Mapping[str, object]:
        """Facts for run.json."""
        blocks = self.cluster.replicas[0].blocks
        return {
            "backend": "sim", "model": self.model, "hardware": self.hardware, "latency": self.latency,
            "policy": self.policy, "kv": self.kv, "kv_blocks": blocks.total, "kv_tokens": blocks.total * blocks.size,
            "replicas": self.replicas, "router": self.router, "tp": self.tp, "gpus": self.tp * self.replicas,
        }  # fmt: skip


def _simulate(
    cluster: Cluster,
    model: LatencyModel | Recorded,
    steps: StepLog,
    requests: Iterator[Request],
    follow_ups: FollowUps | None,
    *,
    leap: bool,
) -> Iterator[RequestRecord]:
    replicas = cluster.replicas
    coupled = follow_ups is not None and len(replicas) > 1  # what ends on one replica may arrive at another
    later: list[tuple[float, int, Request]] = []  # heap of follow-ups
    ending: list[tuple[float, int, array[float]]] = []  # heap of (end, replica, step ends) of the batches in flight
    nothing = Request(-1, inf, 1, 1)
    arriving = next(requests, nothing)
    arrival_s = arriving.scheduled_s
    while True:
        now_s = arrival_s
        if ending and ending[0][0] < now_s:
            now_s = ending[0][0]
        if now_s == inf:
            assert not any(replica.waiting for replica in replicas), "a request can neither run nor be refused"
            return
        touched: list[int] = []
        while ending and ending[0][0] == now_s:
            _, index, ends = heappop(ending)
            touched.append(index)
            replica = replicas[index]
            batch = replica.in_flight
            for seq in replica.commit(batch, ends) if batch is not None and ends else ():
                record = _record(seq, index)
                yield record
                if follow_ups is not None:
                    for request in follow_ups(record):
                        heappush(later, (max(request.scheduled_s, now_s), request.id, request))
                    arrival_s = min(arriving.scheduled_s, later[0][0] if later else inf)
        while arrival_s == now_s:
            if later and later[0][0] == now_s and later[0][0] <= arriving.scheduled_s:
                request = heappop(later)[2]
            else:
                request = arriving
                arriving = next(requests, nothing)
            index, refusal = cluster.add(request, now_s)
            if refusal is not None:
                yield _rejected(request, refusal, index)
            touched.append(index)
            arrival_s = arriving.scheduled_s
            if later and later[0][0] < arrival_s:
                arrival_s = later[0][0]
        for index in touched if len(touched) == 1 else sorted(set(touched)):
            replica = replicas[index]
            if replica.in_flight is not None:
                continue
            if isinstance(model, Recorded) and (start_s := model.next_start_s(index)) > now_s:
                if start_s < inf:
                    heappush(ending, (start_s, index, array("d")))  # the recorded executor was not ready yet
                continue
            batch = replica.schedule(now_s)
            if batch is not None:
                horizon_s = arrival_s
                if coupled and ending and ending[0][0] < horizon_s:
                    horizon_s = ending[0][0]
                if isinstance(model, Recorded):
                    ends = array("d", (model.end_s(replica, batch),))
                else:
                    ends = _ends(model, batch, now_s, horizon_s if leap else now_s)
                steps.append(replica, ends)
                heappush(ending, (ends[-1], index, ends))


def _ends(model: LatencyModel, batch: Batch, now_s: float, horizon_s: float) -> array[float]:
    """Ends of the steps of a batch: at least one, and all that start before `horizon_s` while the batch repeats."""
    if batch.prefills:
        return array("d", (now_s + model.step_s(batch.loads, batch.decode_seqs, batch.context_tokens),))
    decode_s, seqs, context, left = model.decode_s, batch.decode_seqs, batch.context_tokens, batch.steps
    ends = array("d")
    append = ends.append
    for _ in range(min(left, LOOP)):
        now_s += decode_s(seqs, context)
        append(now_s)
        if now_s >= horizon_s:
            return ends
        context += seqs
    left -= LOOP
    while left > 0:
        count = min(left, LEAP)
        durations = model.decode_many_s(seqs, context + seqs * _COUNT[:count])
        durations[0] += now_s
        more = np.add.accumulate(durations)
        now_s = float(more[-1])
        if now_s >= horizon_s:
            more = more[: int(np.searchsorted(more, horizon_s)) + 1]
            ends.frombytes(more.tobytes())
            return ends
        ends.frombytes(more.tobytes())
        context += seqs * count
        left -= count
    return ends


def _record(seq: Sequence, replica: int) -> RequestRecord:
    request = seq.request
    scheduled_s = request.scheduled_s
    return RequestRecord(
        request.id, scheduled_s, scheduled_s, seq.token_s(), None, seq.prompt, seq.emitted, request.output_tokens, "ok",
        None, request.session, request.turn, request.tag, None, None, replica, seq.preemptions, seq.prefill_start_s,
        seq.prefill_end_s, None, None, seq.decode_start_s, request.slo_ttft_s, request.slo_tpot_s, seq.arrived_s,
    )  # fmt: skip


def _rejected(request: Request, reason: str, replica: int) -> RequestRecord:
    return RequestRecord(
        request.id, request.scheduled_s, request.scheduled_s, (), (), request.prompt_tokens, 0, request.output_tokens,
        "rejected", reason, request.session, request.turn, request.tag, None, None, replica, 0,
        slo_ttft_s=request.slo_ttft_s, slo_tpot_s=request.slo_tpot_s,
    )  # fmt: skip
