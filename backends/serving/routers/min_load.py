"""Min load: the replica with the least work before it, by predicted time.

Source: the policy "minimal load" that the xLLM technical report compares with (arXiv 2510.14686, section 5.2).
"""

from dataclasses import dataclass, field

from backends.serving.batch import VisibleRequest
from backends.serving.routers._sent import Sent
from backends.serving.routing import ClusterView, Decision, FinishedRequest, Requirements


@dataclass(frozen=True, slots=True)
class MinLoad:
    """Prompts go where the predicted time of those before them is least, and decode where the predicted step is.

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
