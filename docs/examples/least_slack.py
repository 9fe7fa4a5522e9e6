"""Least slack first: who can wait least and still end in time starts next; decodes continue.

An example of a policy with a clock, deadlines and a length predictor.
"""

from dataclasses import dataclass, field

from harness.api import DeadlineSlo
from harness.registry import make


@dataclass(slots=True)
class LeastSlack:
    """At most `max_seqs` running sequences; requests without a deadline have `e2e_s` seconds."""

    predictor: str = "quantile"
    max_seqs: int = 64
    e2e_s: float = 20.0
    _lengths: object = field(init=False, repr=False, compare=False)
    _now_s: float = field(default=0.0, init=False, repr=False, compare=False)
    _step_s: float = field(default=0.02, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._lengths = make("predictors", self.predictor)

    def on_step_start(self, now_s: float) -> None:
        """The clock."""
        self._now_s = now_s

    def on_step_end(self, batch, seconds: float) -> None:  # noqa: ARG002
        """A moving average of how long steps take."""
        self._step_s += 0.1 * (seconds - self._step_s)

    def on_finish(self, seq) -> None:
        """The predictor learns how long answers are."""
        self._lengths.on_finish(seq)

    def slack_s(self, seq) -> float:
        """Seconds that a sequence can wait and still end in time."""
        slo = seq.request.slo
        allowed_s = slo.e2e_s if isinstance(slo, DeadlineSlo) else self.e2e_s
        rest_s = (self._lengths.output_tokens(seq) - seq.emitted) * self._step_s
        return seq.request.scheduled_s + allowed_s - self._now_s - rest_s

    def fill(self, replica, batch) -> None:
        """All decodes, then whole prompts, the most urgent first."""
        if replica.decoding.members:
            replica.decode(batch)
        if replica.running < self.max_seqs and not batch.preempted:
            replica.order_waiting(self.slack_s)
        while replica.waiting and not batch.preempted and replica.running < self.max_seqs and replica.admissible():
            replica.admit(batch, replica.waiting[0].need())
        batch.repeats = not batch.preempted and (replica.running == self.max_seqs or not replica.waiting)
