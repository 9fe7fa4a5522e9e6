"""Autoscaling: as many replicas as the queue or the SLO needs, each after the time that loading its weights takes.

Source: `queue` is the rule of the Kubernetes horizontal pod autoscaler (desired = ceil(metric / target), no change
within 10 %, and down only to the highest wish of a while) over the requests in the system; `slo` is ours.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from backends.serving.batch import Phase, VisibleRequest
from backends.serving.routing import (
    NONE_UP,
    Action,
    ClusterView,
    Decision,
    Drain,
    FinishedRequest,
    Reject,
    ReplicaView,
    Requirements,
    Scale,
    Send,
)
from harness.bounds import AtLeastOne, NotNegative, Positive, PositiveShare, check


@dataclass(slots=True)
class Autoscale:
    """Between `least` and `most` replicas; a new one is up after `load_s` seconds, the time to load its weights.

    `rule=queue` wants a replica per `requests` requests that wait or run. `rule=slo` wants one more where fewer than
    `goal` of the requests that ended within `window_s`, or wait too long, met `ttft_s` and `tpot_s`; and one fewer
    where the others would decode in 0.8 `tpot_s` at most and the slowest tenth had its first token in half of `ttft_s`.
    It decides every `tick_s`, and goes down only where every wish of the last `calm_s` seconds was below what is there.
    Requests go to the replica with the fewest.
    """

    rule: Literal["queue", "slo"] = "queue"
    least: AtLeastOne = 1
    most: int = 8
    load_s: NotNegative = 30.0
    requests: Positive = 16.0
    ttft_s: Positive = 1.0
    tpot_s: Positive = 0.05
    goal: PositiveShare = 0.95
    window_s: Positive = 30.0
    tick_s: Positive = 5.0
    calm_s: float = 120.0
    report_s: float = 0.0
    _wishes: deque[tuple[float, int]] = field(default_factory=deque, init=False, repr=False, compare=False)
    _ended: deque[tuple[float, float | None, bool]] = field(default_factory=deque, init=False, repr=False,
                                                            compare=False)  # fmt: skip
    _begun_s: float | None = field(default=None, init=False, repr=False, compare=False)
    _ready_s: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.most < self.least:
            raise ValueError(f"most must be at least {self.least}, got {self.most}.")

    @property
    def requires(self) -> Requirements:
        """Replicas alike, to which it adds; `slo` predicts the step after one is given up."""
        loads = 2 if self.rule == "queue" else self.most - self.least  # too few, then too many at once; or one by one
        settles_s = loads * self.load_s + self.calm_s
        return Requirements("mixed", scales=True, step_times=self.rule == "slo", settles_s=settles_s)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:  # noqa: ARG002
        """The replica with the fewest requests."""
        open_ = view.open("mixed", "prefill")
        if not open_:
            return Reject(NONE_UP)
        return Send(min(open_, key=lambda r: r.requests).index)

    def tick(self, now_s: float, view: ClusterView) -> list[Action]:
        """Replicas to add, or to give up when they are empty."""
        up = view.open("mixed")
        if self._begun_s is None:
            self._begun_s = now_s
        self._ready_s = [ready_s for ready_s in self._ready_s if ready_s > now_s]
        have = len(up) + len(self._ready_s)
        if not up:
            return []
        wish = self._by_queue(up, view, have) if self.rule == "queue" else self._by_slo(up, now_s, have)
        wish = min(self.most, max(self.least, wish))
        self._wishes.append((now_s, wish))
        while self._wishes[0][0] < now_s - self.calm_s:
            self._wishes.popleft()
        if wish > have:
            self._ready_s += [now_s + self.load_s] * (wish - have)
            return [Scale("mixed", self.load_s)] * (wish - have)
        highest = max(n for _, n in self._wishes)
        if highest < have and now_s - self._begun_s >= self.calm_s and not self._ready_s:
            idlest = sorted(up, key=lambda r: (r.requests, -r.index))
            return [Drain(replica.index) for replica in idlest[: have - highest]]
        return []

    def on_finish(self, finished: FinishedRequest) -> None:
        """Whether it met the SLO."""
        met = not finished.failed and finished.ttft_s is not None and finished.ttft_s <= self.ttft_s
        met = met and (finished.tpot_s is None or finished.tpot_s <= self.tpot_s)
        self._ended.append((finished.end_s, finished.ttft_s, met))

    def _by_queue(self, up: list[ReplicaView], view: ClusterView, have: int) -> int:
        needed = (sum(r.requests for r in up) + len(view.held)) / self.requests
        return have if abs(needed - have) <= 0.1 * have else ceil(needed)

    def _by_slo(self, up: list[ReplicaView], now_s: float, have: int) -> int:
        ended = self._ended
        while ended and ended[0][0] < now_s - self.window_s:
            ended.popleft()
        late = sum(
            seq.phase is Phase.WAITING and now_s - seq.arrived_s > self.ttft_s for r in up for seq in r.sequences()
        )
        if late + len(ended) and sum(met for *_, met in ended) < self.goal * (len(ended) + late):
            return have + 1 if not self._ready_s else have  # what is loading may be enough
        if len(up) == 1:
            return have
        ttfts_s = sorted(ttft_s for _, ttft_s, _ in ended if ttft_s is not None)
        slow = bool(ttfts_s) and ttfts_s[len(ttfts_s) * 9 // 10] > 0.5 * self.ttft_s
        seqs, context = sum(r.requests for r in up), sum(r.context_tokens for r in up)
        fewer = len(up) - 1
        step_s = up[0].step_s([], ceil(seqs / fewer), context // fewer) if seqs else 0.0
        return have if slow or step_s > 0.8 * self.tpot_s else have - 1
