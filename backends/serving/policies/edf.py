"""Earliest deadline first: whose next token, answer or program is due first runs; the baseline EDF of JITServe.

Source: Liu and Layland, JACM 1973; JITServe (NSDI 2026), comparison with EDF. Chunked prefill as in Sarathi-Serve.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from backends.serving.batch import Batch, Sequence
from backends.serving.policies._programs import Programs
from backends.serving.policies._ranked import Ranks, Seats
from backends.serving.replica import Replica
from harness.api import LatencySlo


@dataclass(slots=True)
class Edf:
    """At most `max_seqs` sequences run in a step of `budget` tokens; all are ranked every `interval` steps.

    A request without bounds of its own is someone's who watches: first token within `ttft_s`, each later one `tbt_s`
    after the one before.
    """

    budget: int = 512
    max_seqs: int = 32
    interval: int = 20
    ttft_s: float = 2.0
    tbt_s: float = 0.1
    _seats: Seats = field(init=False, repr=False, compare=False)
    _programs: Programs = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seats = Seats(self.budget, self.max_seqs, self.interval)
        self._programs = Programs(LatencySlo(self.ttft_s, self.tbt_s))

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The sequences that are due first, under the budget."""
        self._seats.fill(replica, batch, self._rank)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  a step is a step
        """Count the steps until all are ranked again."""
        self._seats.steps += 1

    def _rank(self, seqs: ListOf[Sequence]) -> Ranks:
        return {seq: (self._due_s(seq), seq.order) for seq in seqs}

    def _due_s(self, seq: Sequence) -> float:
        call = self._programs.call(seq)
        if isinstance(call.slo, LatencySlo):
            return seq.request.scheduled_s + call.slo.ttft_s + seq.emitted * call.slo.tbt_s
        return call.due_s
