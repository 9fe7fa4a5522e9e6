"""xLLM: prefill and decode replicas whose roles follow the load, with offline requests in what online ones leave.

Source: xLLM technical report, arXiv 2510.14686; jd-opensource/xllm and jd-opensource/xllm-service. It claims 1.67 and
1.1 times the rate of minimal load, and 75 % more offline throughput than online priority.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from backends.serving.batch import Batch, Phase, Sequence, VisibleRequest
from backends.serving.plugins import Predictor
from backends.serving.policies.vllm_v1 import VllmV1
from backends.serving.replica import Replica, Role
from backends.serving.routing import (
    NONE_UP,
    Action,
    ClusterView,
    Decision,
    FinishedRequest,
    Migrate,
    Reject,
    ReplicaView,
    Requirements,
    Send,
    SequenceView,
    SetRole,
)
from backends.systems._sent import Sent
from harness.api import LatencyModel
from harness.bounds import AtLeastOne, Checked, NotNegative, PartialShare, Positive, PositiveShare, check
from harness.errors import UsageError
from harness.registry import make

AHEAD = 4096
"""Steps at most for which the prediction is looked up; the largest power of two that a leap may need."""
LONGEST = 1 << 20
"""Tokens; a context is never longer."""


@dataclass(slots=True)
class OnlineFirst:
    """Keeps the queue of a replica in order, online requests first, and takes memory from offline ones first."""

    _last: int = field(default=-1, init=False)  # order of the last arrival that is sorted in

    def sort(self, replica: Replica) -> None:
        """Let online requests that are new in the queue pass the offline ones in it; it may be long, so only the new
        ones are looked at."""
        waiting = replica.waiting
        new: list[Sequence] = []
        while waiting and waiting[-1].order > self._last:
            new.append(waiting.pop())
        if not new:
            return
        self._last = max(seq.order for seq in new)
        first = _online_ahead(replica)
        for seq in reversed(new):
            if offline(seq):
                waiting.append(seq)
            else:
                waiting.insert(first, seq)
                first += 1

    def preempt(self, replica: Replica, batch: Batch, seq: Sequence) -> None:
        """Take the memory of an offline request; it queues behind online ones and before other offline ones."""
        replica.preempt(batch, seq)
        waiting = replica.waiting
        if waiting and waiting[0] is seq:
            waiting.popleft()
            waiting.insert(_online_ahead(replica), seq)

    def evict(self, replica: Replica, batch: Batch) -> bool:
        """Preempt the offline request admitted last; False where there is none."""
        victim = max((seq for seq in replica.holders() if offline(seq)), key=lambda seq: seq.admitted, default=None)
        if victim is not None:
            self.preempt(replica, batch, victim)
        return victim is not None

    def make_room(self, replica: Replica, batch: Batch) -> None:
        """Evict offline requests until what runs can go on."""
        if replica.drafts is not None:
            replica.drafts.plan(len(replica.decoding), replica.blocks.free)
        while self._growth(replica) > replica.blocks.free and self.evict(replica, batch):
            pass

    @staticmethod
    def _growth(replica: Replica) -> int:
        prompts = sum([replica.blocks_to_grow(seq, seq.need()) for seq in replica.prefilling])
        return replica.decoding.blocks_needed() + prompts


def _online_ahead(replica: Replica) -> int:
    return sum(1 for _ in takewhile(lambda seq: not offline(seq), replica.waiting))


def offline(seq: Sequence) -> bool:
    """Whether no one waits for its answer."""
    return seq.request.offline


@dataclass(slots=True)
class OocPolicy:
    """Online-offline co-location: offline requests fill what online ones leave of a replica, within their objective.

    A decode replica is latency-strict: offline sequences decode there as long as the predicted step meets the objective
    of online ones. All others are latency-relaxed: offline prompts run when no online one waits, and offline requests
    may decode there too. The router `ooc` sends offline requests to relaxed replicas and pulls them onto strict ones.
    Source: `pd_ooc_scheduler.cpp`. There an online prompt interrupts an offline one between two layers; here between
    two steps, so offline prompts run in chunks.

    Online requests as under `vllm-v1` (`budget` tokens a step, `max_seqs` running sequences).

    On a strict replica a step with offline sequences is predicted to take at most `share` of `tpot_s` seconds; those
    for which there is no time sit out with their memory. On a relaxed one at most `saturation` offline requests run,
    in chunks of `chunk` prompt tokens; with `interrupt` a prompt that has begun goes back to the queue when an online
    one waits. An offline request starts where its prompt and the answer that `predictor` estimates leave `reserve` of
    the memory free.
    """

    tpot_s: Positive = 0.05
    share: PositiveShare = 0.98
    interrupt: bool = True
    chunk: AtLeastOne = 8192
    saturation: AtLeastOne = 256
    reserve: PartialShare = 0.1
    predictor: str = "quantile"
    budget: int = 8192
    max_seqs: int = 256
    _base: VllmV1 = field(init=False, repr=False, compare=False)
    _chunks: VllmV1 = field(init=False, repr=False, compare=False)
    _lengths: Predictor = field(init=False, repr=False, compare=False)
    _order: OnlineFirst = field(default_factory=OnlineFirst, init=False, repr=False, compare=False)
    _model: LatencyModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._base = VllmV1(self.budget, self.max_seqs)
        self._chunks = VllmV1(max(min(self.budget, self.chunk), self.max_seqs), self.max_seqs)
        self._lengths = make("predictors", self.predictor)

    def use_model(self, model: LatencyModel) -> None:
        """What predicts the steps of a strict replica."""
        self._model = model

    def on_finish(self, seq: Sequence) -> None:
        self._lengths.on_finish(seq)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Strict on decode replicas, else relaxed."""
        self._order.sort(replica)
        self._order.make_room(replica, batch)
        if replica.role == "decode":
            self._strict(replica, batch)
        else:
            self._relaxed(replica, batch)

    # ---- latency-strict ---------------------------------------------------------------------------------------

    def _strict(self, replica: Replica, batch: Batch) -> None:
        """Online sequences, then offline ones while the prediction holds; what lost its memory waits for the router,
        which moves it to a relaxed replica, as long as anything runs."""
        for seq in [seq for seq in replica.parked if not offline(seq)]:
            replica.unpark(seq)
        self._choose(replica)
        budget_left = self._base.run(replica, batch)
        if not batch.preempted:
            idle = not replica.running
            self._base.admit(replica, batch, budget_left, lambda seq: idle or not offline(seq))
            batch.repeats = self._holds_for(replica)

    def _choose(self, replica: Replica) -> None:
        """Offline sequences sit out, those that joined last first, or decode again."""
        decoding = replica.decoding
        if self._predicted_s(len(decoding), decoding.context) > self._most_s:
            for seq in [seq for seq in decoding if offline(seq)][::-1]:
                if len(decoding) == 1:
                    return  # alone it is as fast as it can be
                replica.park(seq)
                if self._predicted_s(len(decoding), decoding.context) <= self._most_s:
                    return
            return
        while replica.parked:
            seq = next(iter(replica.parked))
            step_s = self._predicted_s(len(decoding) + 1, decoding.context + seq.computed)
            if decoding.members and step_s > self._most_s:
                return
            replica.unpark(seq)

    @property
    def _most_s(self) -> float:
        return self.share * self.tpot_s

    def _predicted_s(self, seqs: int, context_tokens: int) -> float:
        if not seqs:
            return 0.0
        if self._model is None:
            raise UsageError(
                "The policy ooc must know how long steps of a decode replica take; only simulated and paced replicas "
                "tell."
            )
        return self._model.decode_s(seqs, context_tokens)

    def _holds_for(self, replica: Replica) -> bool | int:
        """For how many steps the same sequences decode, as their contexts grow."""
        seqs, context = len(replica.decoding), replica.decoding.context
        if self._predicted_s(seqs, context) > self._most_s:
            return True  # there is no other offline sequence that could sit out
        return bisect_right(
            range(AHEAD), self._most_s, 1, key=lambda step: self._predicted_s(seqs, context + step * seqs)
        )

    # ---- latency-relaxed --------------------------------------------------------------------------------------

    def _relaxed(self, replica: Replica, batch: Batch) -> None:
        while replica.parked:
            replica.unpark()
        if self._online(replica):
            self._online_step(replica, batch)
        else:
            budget_left = self._chunks.run(replica, batch)
            if not batch.preempted:
                self._chunks.admit(replica, batch, budget_left, lambda seq: self._may_start(replica, batch, seq))
        batch.repeats = not (batch.preempted or replica.parked)

    @staticmethod
    def _online(replica: Replica) -> bool:
        """Whether an online prompt waits or is being computed."""
        waits = bool(replica.waiting) and not offline(replica.waiting[0])
        return waits or not all(map(offline, replica.prefilling))

    def _online_step(self, replica: Replica, batch: Batch) -> None:
        """Online prompts; decodes run beside them where one of those is online."""
        if self.interrupt:
            for seq in [seq for seq in replica.prefilling if offline(seq)]:
                self._order.preempt(replica, batch, seq)
        waiting = replica.waiting
        # while a sequence is swapped out none is admitted, so that eviction would not help
        while replica.swap is None and waiting and not offline(waiting[0]) and not replica.admissible():
            if not self._order.evict(replica, batch):
                break
        evicted = len(batch.preempted)
        decodes = not replica.decoding.members or not all(map(offline, replica.decoding))
        budget_left = self._base.run(replica, batch, decodes=decodes)
        if len(batch.preempted) == evicted:
            self._base.admit(replica, batch, budget_left, lambda seq: not offline(seq))
        if not batch.prefills and not batch.decode_seqs and replica.decoding.members:
            replica.decode(batch)  # memory admits no online prompt, and what decodes is all there is

    def _may_start(self, replica: Replica, batch: Batch, seq: Sequence) -> bool:
        """Whether an offline request may start on a relaxed replica; only the first prompt of a step may be cut."""
        if not replica.running:
            return True
        if replica.running >= self.saturation or (batch.prefills and seq.need() > self._chunks.budget - batch.tokens()):
            return False
        blocks = replica.blocks
        tokens = seq.prompt + max(int(self._lengths.output_tokens(seq)), seq.emitted + 1)
        return blocks.free - blocks.blocks_for(tokens) >= self.reserve * blocks.total


@dataclass(slots=True)
class OnlinePriorityPolicy:
    """Online priority: vLLM v1 with online requests first in the queue, and offline ones first to lose their memory.

    The baseline of this name in the report, section 5.2. Nothing bounds how many offline requests run beside online
    ones, and a prompt that has begun goes on.

    `budget` tokens a step, at most `max_seqs` running sequences, as `vllm-v1` has them.
    """

    budget: int = 8192
    max_seqs: int = 256
    _base: VllmV1 = field(init=False, repr=False, compare=False)
    _order: OnlineFirst = field(default_factory=OnlineFirst, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._base = VllmV1(self.budget, self.max_seqs)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Running sequences in order, then online requests, then offline ones, under the budget."""
        self._order.sort(replica)
        self._order.make_room(replica, batch)
        self._base.fill(replica, batch)


@dataclass(slots=True)
class OocRouter(Checked):
    """Online-offline co-location: prefill replicas serve offline requests whole, and decode replicas pull some of them.

    Prefill replicas are latency-relaxed, decode replicas latency-strict: these take offline requests over while they
    decode, when there is room. Use it with the policy `ooc`, which holds offline sequences back within a replica.
    Source: `pd_ooc_scheduler.cpp`.

    Online requests as `min-load` has them; offline ones go to the prefill replica with the fewest of them.

    Every `tick_s` seconds a decode replica pulls offline sequences from prefill replicas, at most `pulls` at a time,
    while less than `memory` of its KV memory is in use and its predicted step takes less than `pull_share` of `tpot_s`
    seconds. It prefers the longest context with which `saturation` sequences (about where a larger batch takes as much
    longer as it has more sequences) would still meet `share` of `tpot_s`. An offline request that lost its memory on a
    decode replica goes back to a prefill replica.
    """

    tpot_s: Positive = 0.05
    share: Positive = 0.98
    pull_share: Positive = 0.9
    memory: Positive = 0.9
    saturation: AtLeastOne = 256
    pulls: AtLeastOne = 8
    tick_s: Positive = 0.25
    report_s: NotNegative = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _offline: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Replica by request id."""
    _loads: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Offline requests that were sent there by replica."""

    @property
    def requires(self) -> Requirements:
        """Prefill and decode replicas, and predicted times."""
        return Requirements("apart", step_times=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """By predicted work; offline requests whole to the prefill replica that has the fewest."""
        if not request.offline:
            return self._sent.least_loaded(request, now_s, view)
        replicas = view.open("prefill", "mixed")
        if not replicas:
            return Reject(NONE_UP)
        index = self._least(replicas)
        self._forget(request.id)
        self._offline[request.id] = index
        self._loads[index] = self._loads.get(index, 0) + 1
        return Send(index, index)

    def tick(self, now_s: float, view: ClusterView) -> Iterator[Action]:  # noqa: ARG002  the same at any time
        """Offline sequences onto decode replicas, and those that lost their memory there away from them."""
        relaxed = view.open("prefill")
        if not relaxed or not self._offline:
            return
        for strict in view.open("decode"):
            if strict.waiting:
                for seq in strict.sequences():
                    if seq.request_id in self._offline and seq.phase is Phase.WAITING:
                        yield Migrate(seq.request_id, strict.index, self._least(relaxed))
        candidates: list[tuple[SequenceView, int]] | None = None
        for strict in view.open("decode"):
            seqs, context = strict.running, strict.context_tokens
            room = int(self.memory * strict.total_blocks) - (strict.total_blocks - strict.free_blocks)
            for _ in range(self.pulls - sum(target == strict.index for _, target in view.migrating.values())):
                if room <= 0 or strict.step_s([], max(1, seqs), context) >= self.pull_share * self.tpot_s:
                    break
                if candidates is None:
                    candidates = [
                        (seq, source.index) for source in relaxed for seq in source.decodes()
                        if seq.request_id in self._offline and seq.request_id not in view.migrating
                    ]  # fmt: skip
                if not candidates:
                    return
                best = self._best(candidates, self._preferred_tokens(strict, seqs, context))
                tokens = best[0].stored_tokens
                if strict.step_s([], seqs + 1, context + tokens) > self.share * self.tpot_s:
                    break
                candidates.remove(best)
                yield Migrate(best[0].request_id, best[1], strict.index, live=False)
                seqs, context, room = seqs + 1, context + tokens, room - tokens // strict.block_tokens - 1

    def on_finish(self, finished: FinishedRequest) -> None:
        if finished.request.offline:
            self._forget(finished.request.id)
        else:
            self._sent.on_finish(finished)

    def _preferred_tokens(self, strict: ReplicaView, seqs: int, context: int) -> int:
        """The longest context of further sequences with which a batch of `saturation` meets the objective."""
        batch = max(self.saturation, seqs + 1)
        low, high = 0, LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            if strict.step_s([], batch, context + (batch - seqs) * middle) <= self.share * self.tpot_s:
                low = middle
            else:
                high = middle - 1
        return low

    @staticmethod
    def _best(candidates: list[tuple[SequenceView, int]], most_tokens: int) -> tuple[SequenceView, int]:
        """The longest up to `most_tokens`, else the shortest."""
        fits = [candidate for candidate in candidates if candidate[0].stored_tokens <= most_tokens]
        return max(fits, key=_stored) if fits else min(candidates, key=_stored)

    def _least(self, replicas: list[ReplicaView]) -> int:
        return min(replicas, key=lambda replica: self._loads.get(replica.index, 0)).index

    def _forget(self, request_id: int) -> None:
        index = self._offline.pop(request_id, None)
        if index is not None:
            self._loads[index] -= 1


def _stored(one: tuple[SequenceView, int]) -> int:
    return one[0].stored_tokens


@dataclass(frozen=True, slots=True)
class MinLoadRouter:
    """Min load: the replica with the least work before it, by predicted time.

    The policy "minimal load" that the report compares with, section 5.2.

    Prompts go where the predicted time of those before them is least, and decode where the predicted step is.

    Uses the time that the latency model predicts of each prompt and step; replicas report every `report_s` seconds
    (0: at once).
    """

    report_s: float = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)

    @property
    def requires(self) -> Requirements:
        """Predicted times."""
        return Requirements(step_times=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """Prefill and decode replica with the least load."""
        return self._sent.least_loaded(request, now_s, view)

    def on_finish(self, finished: FinishedRequest) -> None:
        self._sent.on_finish(finished)


@dataclass(slots=True)
class SloFlipRouter(Checked):
    """SLO-aware choice of prefill and decode replicas, whose roles flip with the load.

    Source: `instance_mgr.cpp`, policy `SLO_AWARE` (targets 1 s and 50 ms); section 3.2 of the report. That service
    flips while it decides on a request; here roles change at ticks, one replica at a time, which then has that role for
    `settle_s` seconds at least.

    Targets in seconds for the first token (`ttft_s`) and for those that follow (`tpot_s`).

    A prompt goes to the prefill replica with the least predicted time, and decodes on the first replica whose predicted
    step meets `tpot_s`, else on the fastest. Where no prefill replica will meet `ttft_s`, a decode replica with time to
    spare computes the prompt itself.

    At a tick a prefill replica becomes a decode replica if no decode replica met its target since the last one, and if
    the queues of prompts are short or decode replicas are fewer; an idle decode replica becomes a prefill replica.
    At least `keep_prefill` and `keep_decode` replicas are left; a replica that flips runs nothing for `cost_s`.
    """

    ttft_s: Positive = 1.0
    tpot_s: Positive = 0.05
    tick_s: Positive = 1.0
    settle_s: NotNegative = 5.0
    cost_s: NotNegative = 0.0
    keep_prefill: AtLeastOne = 1
    keep_decode: AtLeastOne = 1
    report_s: NotNegative = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _flipped_s: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _short: bool = field(default=False, init=False, repr=False, compare=False)  # of decode replicas, since the tick

    @property
    def requires(self) -> Requirements:
        """Prefill and decode replicas, whose roles it changes by predicted times."""
        return Requirements("apart", changes_roles=True, step_times=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """Prefill replica by predicted time, decode replica by predicted step."""
        sent, prefills, decodes = self._sent, view.open("prefill"), view.open("decode")
        if not prefills or not decodes:
            return sent.least_loaded(request, now_s, view)
        prefill = min(prefills, key=lambda r: sent.ttft_s(r, request, now_s))
        steps_s = [sent.tpot_s(replica, request) for replica in decodes]
        fits = [replica for replica, step_s in zip(decodes, steps_s, strict=True) if step_s <= self.tpot_s]
        self._short |= not fits
        if sent.ttft_s(prefill, request, now_s) > self.ttft_s:
            idlest = decodes[steps_s.index(min(steps_s))]
            spare = min(steps_s) < self.tpot_s * (len(decodes) - 1) / len(decodes)
            if spare and sent.ttft_s(idlest, request, now_s) < sent.ttft_s(prefill, request, now_s):
                return sent.send(request, idlest, idlest, now_s)
        return sent.send(request, prefill, fits[0] if fits else decodes[steps_s.index(min(steps_s))], now_s)

    def tick(self, now_s: float, view: ClusterView) -> list[Action]:
        """At most one change of role."""
        short, self._short = self._short, False
        prefills, decodes = view.open("prefill"), view.open("decode")
        if not prefills or not decodes:
            return []
        queues_s = [self._sent.queue_s(replica, now_s) for replica in prefills]
        if short:
            calm = sum(queues_s) / len(prefills) < self.ttft_s * (len(prefills) - 1) / len(prefills)
            if len(prefills) > self.keep_prefill and (calm or len(decodes) < len(prefills)):
                order = sorted(range(len(prefills)), key=queues_s.__getitem__)
                return self._flip([prefills[i] for i in order], "decode", now_s)
        elif len(decodes) > self.keep_decode:
            idle = [r for r in decodes if not self._sent.decodes(r)[0] and not r.waiting]
            return self._flip(idle, "prefill", now_s)
        return []

    def on_finish(self, finished: FinishedRequest) -> None:
        self._sent.on_finish(finished)

    def _flip(self, candidates: list[ReplicaView], role: Role, now_s: float) -> list[Action]:
        for replica in candidates:
            if now_s >= self._flipped_s.get(replica.index, -self.settle_s) + self.settle_s:
                self._flipped_s[replica.index] = now_s
                return [SetRole(replica.index, role, cost_s=self.cost_s)]
        return []


@dataclass(frozen=True, slots=True)
class ZeroEvictAdmission(Checked):
    """Zero-evict admission: runs all sequences ahead to a fixed length, block by block, and admits if none runs short.

    Source: the documentation of xLLM (jd-opensource/xllm), zero-evict scheduler; `max_decode_token_per_sequence` 256.

    No sequence may run out of blocks before all have `max_decode_tokens` tokens of output.
    """

    max_decode_tokens: AtLeastOne = 256

    @property
    def decision_is_stable(self) -> bool:
        """False: the later a sequence begins, the less it overlaps with the others."""
        return False

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether the blocks last; memory is fullest at the ends, so only they are looked at."""
        sequences = [seq, *replica.all_holders()]
        futures = [(s.prompt + s.emitted, max(1, self.max_decode_tokens - s.emitted)) for s in sequences]
        blocks = replica.blocks
        return all(
            sum([blocks.blocks_for(held + rest) for held, to_come in futures if to_come >= rest]) <= blocks.total
            for rest in {to_come for _, to_come in futures}
        )
