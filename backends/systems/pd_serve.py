"""P/D-Serve: gateways forward a request until an idle prefill replica accepts it.

Source: Jin et al., P/D-Serve, arXiv 2408.08147. It claims 42 % more requests within the bound on TTFT than with queues
at the replicas.
"""

from dataclasses import dataclass, field
from math import ceil

from backends.serving.batch import VisibleRequest
from backends.serving.routing import ClusterView, Decision, Hold, Reject, Send
from harness import catalog
from harness.api import Row
from harness.bounds import AtLeastOne, Checked, NotNegative
from harness.spec import link_bytes_per_s

BACKOFF = 5
"""The longest wait between two rounds of tries, in units of the first."""


@dataclass(slots=True)
class RejectForwardRouter(Checked):
    """Reject and forward: a replica takes a request only while it is idle, else the gateway tries the next one and
    waits.

    Requests queue at the gateway, never at a replica, so that no report of how long a queue is has to be right. The
    times of a retry are ours.

    Tries the replicas in order of their requests, fewest first; the first with fewer than `slots` accepts.

    A replica of prefill accepts while it computes fewer than `slots` prompts, one that does whole requests while it
    runs fewer. Where all reject, the gateway tries again after `retry_s`, then ever later up to 5 times that; 0 tries
    again as soon as anything changes. A request that none has accepted after `budget_s` is rejected; by default it
    waits.

    Asks the replicas themselves, so that it depends on no report.
    """

    slots: AtLeastOne = 1
    retry_s: NotNegative = 0.001
    budget_s: float | None = None
    _tries: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # rounds so far of those it holds

    @property
    def report_s(self) -> float:
        """0: an answer to a try is never old."""
        return 0.0

    @property
    def holds_in_order(self) -> bool:
        """True: a replica that rejects one request rejects all."""
        return True

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """The least busy replica if it accepts; where it does not, no other does either."""
        entries = [replica for replica in view.replicas if replica.open and replica.role != "decode"]
        best = min(entries, key=lambda replica: replica.requests, default=None)
        if best is None:
            return Hold()
        if best.requests < self.slots:
            self._tries.pop(request.id, None)
            return Send(best.index)
        if self.budget_s is not None and now_s >= request.scheduled_s + self.budget_s:
            self._tries.pop(request.id, None)
            return Reject(f"no replica accepted it within {self.budget_s:g} s")
        if not self.retry_s:
            return Hold(None if self.budget_s is None else request.scheduled_s + self.budget_s, on_change=True)
        tried = self._tries[request.id] = self._tries.get(request.id, 0) + 1
        return Hold(now_s + min(2 ** (tried - 1), BACKOFF) * self.retry_s)


@dataclass(slots=True)
class ReportedQueueRouter(Checked):
    """Reported queue: the replica with the shortest queue by its last report, which may be old.

    Between two reports all requests go the same way, so that queues build up by turns: the herd of a global scheduler
    with local queues. The baseline of P/D-Serve; Mitzenmacher, How useful is old information?, IEEE TPDS 2000.

    The fewest waiting requests, of equals the fewest running ones, then the first; reports come every `report_s`.

    With `counts` it adds what it has sent since the report, as a gateway that remembers does.

    Uses waiting and running requests of each replica, as old as the last report; 0 sees them as they are.
    """

    report_s: NotNegative = 0.1
    counts: bool = False
    _sent: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by replica, since the last report
    _reported_s: float | None = field(default=None, init=False, repr=False)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:  # noqa: ARG002  any request
        """The replica with the shortest reported queue; held where none is open."""
        entries = [replica for replica in view.replicas if replica.open and replica.role != "decode"]
        if not entries:
            return Hold()
        if entries[0].reported_s != self._reported_s:
            self._reported_s = entries[0].reported_s
            self._sent.clear()
        sent = self._sent if self.counts and self.report_s else {}
        best = min(entries, key=lambda replica: (replica.waiting + sent.get(replica.index, 0), replica.running))
        self._sent[best.index] = self._sent.get(best.index, 0) + 1
        return Send(best.index)


def handoff(
    model: str = "opt-13b", block_tokens: int = 16, length_tokens: int = 2048, link: str = "200Gbps",
    control_s: float = 10e-6,
) -> list[Row]:  # fmt: skip
    """Time a transfer of KV in one piece per block and layer, and in one piece per layer.

    Every piece costs `control_s` besides its bytes. P/D-Serve reports 46 % less time for contiguous transfers; it does
    not print the cost of a piece.

    Source: P/D-Serve, arXiv 2408.08147.
    """
    shape = catalog.model(model)
    size = length_tokens * catalog.kv_bytes_per_token(shape)
    bytes_s, pieces = size / link_bytes_per_s(link), shape.layers * ceil(length_tokens / block_tokens)
    blocks_s, whole_s = pieces * control_s + bytes_s, shape.layers * control_s + bytes_s
    return [{"kv_bytes": size, "pieces": pieces, "in_blocks_s": blocks_s, "in_one_piece_s": whole_s,
             "saved_share": 1 - whole_s / blocks_s}]  # fmt: skip
