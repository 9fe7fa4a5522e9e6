"""DistServe's simulator where a replica has several pipeline stages: every stage is a worker with queues of its own.

Source: LLMServe/DistServe @82831f1, simdistserve/base/worker.py and scheduler.py. There batches merge at every stage,
and any number of them is in flight, unlike in `serving/pipeline.py`: so the compatibility mode has a loop of its own
here, without a `steps` table. With one stage the shared serving core does the same, and is used.
"""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from backends.latency.abc import Abc
from backends.simulator.ended import rejected
from backends.simulator.layout import ReplicaGroup
from backends.simulator.loop import Arrivals
from harness.api import FollowUps, LatencyModel, Request, RequestRecord
from harness.registry import make


class Item:
    """One request on its way: `left` tokens are to come, `context` are stored."""

    __slots__ = (
        "context",
        "decode_start_s",
        "left",
        "prefill_end_s",
        "prefill_start_s",
        "replica",
        "request",
        "token_s",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.context = request.prompt_tokens
        self.left = request.output_tokens
        self.token_s = array("d")
        self.replica = 0
        self.prefill_start_s: float | None = None
        self.prefill_end_s: float | None = None
        self.decode_start_s: float | None = None

    def token(self, now_s: float) -> None:
        self.left -= 1
        self.token_s.append(now_s)


class Worker:
    """One stage of one replica."""

    __slots__ = ("batch", "decodes", "following", "index", "is_first", "is_last", "limits", "model", "prefilling",
                 "prompts")  # fmt: skip

    def __init__(self, index: int, rank: int, part: ReplicaGroup, model: LatencyModel, limits: tuple[int, int]) -> None:
        self.index = index
        self.is_first, self.is_last = rank == 0, rank == part.shape.pp - 1
        self.model = model
        self.limits = limits  # tokens of a prefill batch, context tokens of a decode batch
        self.prompts: deque[list[Item]] = deque()  # of the first stage one by one, then batch by batch
        self.decodes: deque[Item] = deque()
        self.following: Worker = self
        self.batch: list[Item] | None = None
        self.prefilling = 0

    def load(self, queue: deque[Item] | deque[list[Item]]) -> int:
        """What the original's scheduler compares."""
        return self.prefilling + len(queue)

    def start(self, now_s: float) -> float | None:
        """Begin the next batch; when it will be done, or None where nothing waits."""
        if self.prompts:
            self.batch = self._prompts(now_s)
            self.prefilling = len(self.batch)
            return now_s + self.model.step_s([(item.request.prompt_tokens, 0) for item in self.batch], 0, 0)
        if not self.decodes:
            return None
        self.batch, context = self._decodes(now_s)
        return now_s + self.model.decode_s(len(self.batch), context)

    def _prompts(self, now_s: float) -> list[Item]:
        if not self.is_first:
            return self.prompts.popleft()
        batch, left = [], self.limits[0]
        while self.prompts and self.prompts[0][0].request.prompt_tokens <= left:
            item = self.prompts.popleft()[0]
            left -= item.request.prompt_tokens
            item.prefill_start_s = now_s
            batch.append(item)
        return batch

    def _decodes(self, now_s: float) -> tuple[list[Item], int]:
        batch: list[Item] = []
        context, left, queue = 0, self.limits[1], self.decodes
        while queue and queue[0].context + 1 <= left:
            item = queue.popleft()
            left -= item.context + 1
            context += item.context
            if item.decode_start_s is None:
                item.decode_start_s = now_s
            batch.append(item)
        return batch, context


class Rings:
    """All workers of the parts; an item goes from stage to stage, and round again for each token."""

    def __init__(
        self, parts: tuple[ReplicaGroup, ...], requests: Iterator[Request], follow_ups: FollowUps | None
    ) -> None:
        self._arrivals = Arrivals(requests)
        self._follow_ups = follow_ups
        self._policy = make("policies", parts[0].policy)
        self._events: list[tuple[float, int, bool, Worker]] = []  # heap of (time, number, batch done?, worker)
        self._number = 0
        self._heads: list[tuple[ReplicaGroup, list[Worker]]] = []
        index = 0
        for part in parts:
            heads = []
            for _ in range(part.count):
                heads.append(_ring(part, index))
                index += 1
            self._heads.append((part, heads))
        self._entry = self._heads[0]
        self._apart = len(parts) > 1

    def records(self) -> Iterator[RequestRecord]:
        """One record per request, in the order in which they end."""
        events, arrivals = self._events, self._arrivals
        while True:
            event_s = events[0][0] if events else inf
            if arrivals.next_s == event_s == inf:
                return
            if arrivals.next_s <= event_s:
                now_s = arrivals.next_s
                ended = self._arrive(arrivals.pop(), now_s)
            else:
                now_s, _, done, worker = heappop(events)
                ended = self._leave(worker, now_s) if done else []
                if worker.batch is None and (end_s := worker.start(now_s)) is not None:
                    self._push(worker, end_s, done=True)
            for record in ended:
                yield record
                if self._follow_ups is not None:
                    arrivals.add(self._follow_ups(record), now_s)

    def _arrive(self, request: Request, now_s: float) -> list[RequestRecord]:
        refusal = self._policy.refusal(request.prompt_tokens, request.output_tokens)
        part, heads = self._entry
        if refusal is not None:
            return [rejected(request, refusal, heads[0].index, request.scheduled_s).record()]
        item = Item(request)
        if part.role != "decode":
            head = min(heads, key=lambda worker: worker.load(worker.prompts))
            item.replica = head.index
            head.prompts.append([item])
            self._wake(head, now_s)
            return []
        item.prefill_start_s = item.prefill_end_s = now_s
        item.token(now_s)
        return self._decode(item, now_s)

    def _decode(self, item: Item, now_s: float) -> list[RequestRecord]:
        """A prompt is computed: the item decodes on the least busy replica that is there for it."""
        if not item.left:
            return [_record(item, apart=False)]
        heads = self._heads[-1][1]
        head = heads[0]
        if self._heads[-1][0].role == "decode":
            head = min(heads, key=lambda worker: worker.load(worker.decodes))
        else:
            head = next(worker for worker in heads if worker.index == item.replica)
        item.replica = head.index
        head.decodes.append(item)
        self._wake(head, now_s)
        return []

    def _leave(self, worker: Worker, now_s: float) -> list[RequestRecord]:
        batch, worker.batch = worker.batch, None
        assert batch is not None
        ended: list[RequestRecord] = []
        if not worker.prefilling:
            batch = self._count(batch, ended, now_s) if worker.is_last else batch
            worker.following.decodes.extend(batch)
        elif not worker.is_last:
            worker.following.prompts.append(batch)
        else:
            for item in batch:
                item.prefill_end_s = now_s
                item.token(now_s)
                ended += self._decode(item, now_s)
            batch = []
        worker.prefilling = 0
        if batch and worker.following is not worker:
            self._wake(worker.following, now_s)
        return ended

    def _count(self, batch: list[Item], ended: list[RequestRecord], now_s: float) -> list[Item]:
        """All items of a batch have emitted a token; returns those with more to come."""
        further = []
        for item in batch:
            item.context += 1
            item.token(now_s)
            if item.left:
                further.append(item)
            else:
                ended.append(_record(item, apart=self._apart))
        return further

    def _wake(self, worker: Worker, now_s: float) -> None:
        if worker.batch is None:
            self._push(worker, now_s, done=False)

    def _push(self, worker: Worker, at_s: float, *, done: bool) -> None:
        self._number += 1
        heappush(self._events, (at_s, self._number, done, worker))


def _ring(part: ReplicaGroup, index: int) -> Worker:
    """The first worker of a replica; its stages follow one another in a ring. Only the first pays for calls."""
    policy = make("policies", part.policy)
    limits = (policy.max_prefill_tokens, policy.max_decode_tokens)
    assert isinstance(part.model, Abc)
    later = replace(part.model, call_s=0.0, call_token_s=0.0)
    workers = [Worker(index, rank, part, later if rank else part.model, limits) for rank in range(part.shape.pp)]
    for worker, following in zip(workers, [*workers[1:], workers[0]], strict=True):
        worker.following = following
    return workers[0]


def _record(item: Item, *, apart: bool) -> RequestRecord:
    request, handed_s = item.request, item.prefill_end_s if apart else None
    return RequestRecord(
        request.id, request.scheduled_s, request.scheduled_s, item.token_s, None, request.prompt_tokens,
        len(item.token_s), request.output_tokens, "ok", None, request.session, request.turn, request.tag, None, None,
        item.replica, 0, item.prefill_start_s, item.prefill_end_s, handed_s, handed_s, item.decode_start_s,
        request.slo_ttft_s, request.slo_tpot_s, request.scheduled_s, None, request.slo_task_s,
    )  # fmt: skip
