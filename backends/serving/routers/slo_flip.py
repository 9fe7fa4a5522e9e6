"""SLO-aware choice of prefill and decode replicas, whose roles flip with the load.

Source: jd-opensource/xllm-service, `instance_mgr.cpp`, policy `SLO_AWARE` (targets 1 s and 50 ms); xLLM technical
report, arXiv 2510.14686, section 3.2. That service flips while it decides on a request; here roles change at ticks, one
replica at a time, which then has that role for `settle_s` seconds at least.
"""

from dataclasses import dataclass, field

from backends.serving._checks import positive
from backends.serving.batch import VisibleRequest
from backends.serving.replica import Role
from backends.serving.routers._sent import Sent
from backends.serving.routing import (
    Action,
    ClusterView,
    Decision,
    FinishedRequest,
    ReplicaView,
    Requirements,
    SetRole,
)


@dataclass(slots=True)
class SloFlip:
    """Targets in seconds for the first token (`ttft_s`) and for those that follow (`tpot_s`).

    A prompt goes to the prefill replica with the least predicted time, and decodes on the first replica whose predicted
    step meets `tpot_s`, else on the fastest. Where no prefill replica will meet `ttft_s`, a decode replica with time to
    spare computes the prompt itself.

    At a tick a prefill replica becomes a decode replica if no decode replica met its target since the last one, and if
    the queues of prompts are short or decode replicas are fewer; an idle decode replica becomes a prefill replica.
    At least `keep_prefill` and `keep_decode` replicas are left; a replica that flips runs nothing for `cost_s`.
    """

    ttft_s: float = 1.0
    tpot_s: float = 0.05
    tick_s: float = 1.0
    settle_s: float = 5.0
    cost_s: float = 0.0
    keep_prefill: int = 1
    keep_decode: int = 1
    report_s: float = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _flipped_s: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _short: bool = field(default=False, init=False, repr=False, compare=False)  # of decode replicas, since the tick

    def __post_init__(self) -> None:
        positive(self, "keep_prefill", "keep_decode")
        if min(self.ttft_s, self.tpot_s, self.tick_s) <= 0 or min(self.settle_s, self.cost_s) < 0:
            raise ValueError("ttft_s, tpot_s and tick_s must be above 0, settle_s and cost_s at least 0")

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
