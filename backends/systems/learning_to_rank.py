"""Learning to rank: the shortest answers first, in an order that is learned from prompts.

Source: Fu et al., Efficient LLM Scheduling by Learning to Rank, NeurIPS 2024, whose predictor ranks prompts by the
lengths of their answers.
"""

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from backends.serving.batch import Batch, Sequence
from backends.serving.plugins import Predictor
from backends.serving.replica import Replica
from backends.systems._ranked import Ranks, Seats
from harness.registry import make


@dataclass(slots=True)
class LtrPolicy:
    """Learning to rank: the answers that are predicted to be shortest run first; the baseline LTR of JITServe.

    The predictors here see no prompts: `noisy-oracle`, the true length with an error, stands for the learned one; the
    default knows the lengths of other answers only. What keeps long answers from starving there is left out. Chunked
    prefill as in Sarathi-Serve.

    At most `max_seqs` sequences run in a step of `budget` tokens; all are ranked every `interval` steps.
    """

    predictor: str = "past"
    budget: int = 512
    max_seqs: int = 32
    interval: int = 20
    _seats: Seats = field(init=False, repr=False, compare=False)
    _lengths: Predictor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._seats = Seats(self.budget, self.max_seqs, self.interval)
        self._lengths = make("predictors", self.predictor)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The shortest answers, under the budget."""
        self._seats.fill(replica, batch, self._rank)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  a step is a step
        """Count the steps until all are ranked again."""
        self._seats.steps += 1

    def on_finish(self, seq: Sequence) -> None:
        self._lengths.on_finish(seq)

    def _rank(self, seqs: ListOf[Sequence]) -> Ranks:
        return {seq: (self._lengths.output_tokens(seq), seq.order) for seq in seqs}
