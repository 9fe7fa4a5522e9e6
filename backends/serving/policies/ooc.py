"""Online-offline co-location: offline requests fill what online ones leave of a replica, within their objective.

A decode replica is latency-strict: offline sequences decode there as long as the predicted step meets the objective
of online ones. All others are latency-relaxed: offline prompts run when no online one waits, and offline requests may
decode there too. The router `ooc` sends offline requests to relaxed replicas and pulls them onto strict ones.
Source: jd-opensource/xllm-service, `pd_ooc_scheduler.cpp`; xLLM technical report, arXiv 2510.14686. There an online
prompt interrupts an offline one between two layers; here between two steps, so offline prompts run in chunks.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from backends.serving._checks import positive
from backends.serving.batch import Batch, Sequence
from backends.serving.plugins import Predictor
from backends.serving.policies._online_first import OnlineFirst, offline
from backends.serving.policies.vllm_v1 import VllmV1
from backends.serving.replica import Replica
from harness.api import LatencyModel
from harness.errors import UsageError
from harness.registry import make

AHEAD = 4096
"""Steps at most for which the prediction is looked up; the largest power of two that a leap may need."""


@dataclass(slots=True)
class Ooc:
    """Online requests as under `vllm-v1` (`budget` tokens a step, `max_seqs` running sequences).

    On a strict replica a step with offline sequences is predicted to take at most `share` of `tpot_s` seconds; those
    for which there is no time sit out with their memory. On a relaxed one at most `saturation` offline requests run,
    in chunks of `chunk` prompt tokens; with `interrupt` a prompt that has begun goes back to the queue when an online
    one waits. An offline request starts where its prompt and the answer that `predictor` estimates leave `reserve` of
    the memory free.
    """

    tpot_s: float = 0.05
    share: float = 0.98
    interrupt: bool = True
    chunk: int = 8192
    saturation: int = 256
    reserve: float = 0.1
    predictor: str = "quantile"
    budget: int = 8192
    max_seqs: int = 256
    _base: VllmV1 = field(init=False, repr=False, compare=False)
    _chunks: VllmV1 = field(init=False, repr=False, compare=False)
    _lengths: Predictor = field(init=False, repr=False, compare=False)
    _order: OnlineFirst = field(default_factory=OnlineFirst, init=False, repr=False, compare=False)
    _model: LatencyModel | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive(self, "chunk", "saturation")
        if self.tpot_s <= 0 or not 0 < self.share <= 1 or not 0 <= self.reserve < 1:
            raise ValueError("tpot_s must be above 0, share in (0, 1] and reserve in [0, 1)")
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
        left = self._base.run(replica, batch)
        if not batch.preempted:
            alone = not replica.running
            self._base.admit(replica, batch, left, lambda seq: alone or not offline(seq))
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
            left = self._chunks.run(replica, batch)
            if not batch.preempted:
                self._chunks.admit(replica, batch, left, lambda seq: self._may_start(replica, batch, seq))
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
        left = self._base.run(replica, batch, decodes=decodes)
        if len(batch.preempted) == evicted:
            self._base.admit(replica, batch, left, lambda seq: not offline(seq))
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
