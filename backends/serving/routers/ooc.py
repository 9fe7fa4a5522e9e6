"""Online-offline co-location: prefill replicas serve offline requests whole, and decode replicas pull some of them.

Source: jd-opensource/xllm-service, `pd_ooc_scheduler.cpp`; xLLM technical report, arXiv 2510.14686. Prefill replicas
are latency-relaxed, decode replicas latency-strict: these take offline requests over while they decode, when there is
room. Use it with the policy `ooc`, which holds offline sequences back within a replica.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from backends.serving._checks import positive
from backends.serving.batch import Phase, VisibleRequest
from backends.serving.routers._sent import Sent
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
)

LONGEST = 1 << 20
"""Tokens; a context is never longer."""


@dataclass(slots=True)
class Ooc:
    """Online requests as `min-load` has them; offline ones go to the prefill replica with the fewest of them.

    Every `tick_s` seconds a decode replica pulls offline sequences from prefill replicas, at most `pulls` at a time,
    while less than `memory` of its KV memory is in use and its predicted step takes less than `pull_share` of `tpot_s`
    seconds. It prefers the longest context with which `saturation` sequences (about where a larger batch takes as much
    longer as it has more sequences) would still meet `share` of `tpot_s`. An offline request that lost its memory on a
    decode replica goes back to a prefill replica.
    """

    tpot_s: float = 0.05
    share: float = 0.98
    pull_share: float = 0.9
    memory: float = 0.9
    saturation: int = 256
    pulls: int = 8
    tick_s: float = 0.25
    report_s: float = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _offline: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Replica by request id."""
    _loads: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Offline requests that were sent there by replica."""

    def __post_init__(self) -> None:
        positive(self, "saturation", "pulls")
        if min(self.tpot_s, self.share, self.pull_share, self.memory, self.tick_s) <= 0 or self.report_s < 0:
            raise ValueError("tpot_s, share, pull_share, memory and tick_s must be above 0, report_s at least 0")

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
                        (seq, one.index) for one in relaxed for seq in one.decodes()
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
        fits = [one for one in candidates if one[0].stored_tokens <= most_tokens]
        return max(fits, key=_stored) if fits else min(candidates, key=_stored)

    def _least(self, replicas: list[ReplicaView]) -> int:
        return min(replicas, key=lambda replica: self._loads.get(replica.index, 0)).index

    def _forget(self, request_id: int) -> None:
        index = self._offline.pop(request_id, None)
        if index is not None:
            self._loads[index] -= 1


def _stored(one: tuple[SequenceView, int]) -> int:
    return one[0].stored_tokens
