"""Reported queue: the replica with the shortest queue by its last report, which may be old.

Between two reports all requests go the same way, so that queues build up by turns: the herd of a global scheduler with
local queues.
Source: the baseline of Jin et al., P/D-Serve, arXiv 2408.08147; Mitzenmacher, How useful is old
information?, IEEE TPDS 2000.
"""

from dataclasses import dataclass, field

from backends.serving.batch import VisibleRequest
from backends.serving.routing import ClusterView, Decision, Hold, Send


@dataclass(slots=True)
class ReportedQueue:
    """The fewest waiting requests, of equals the fewest running ones, then the first; reports come every `report_s`.

    With `counts` it adds what it has sent since the report, as a gateway that remembers does.

    Uses waiting and running requests of each replica, as old as the last report; 0 sees them as they are.
    """

    report_s: float = 0.1
    counts: bool = False
    _sent: dict[int, int] = field(default_factory=dict, init=False, repr=False)  # by replica, since the last report
    _reported_s: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.report_s < 0:
            raise ValueError(f"report_s must be at least 0, got {self.report_s:g}")

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
