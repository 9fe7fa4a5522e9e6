"""Autellix: the program, not the call, is what waits; programs that have had little service go first.

Source: Luo et al., Autellix: An Efficient Serving Engine for LLM Agents as General Programs, 2025.
"""

from collections import Counter
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from backends.serving.batch import Batch, Sequence
from backends.serving.replica import Replica
from backends.serving.visible import MOST_PROGRAMS, program_of
from backends.systems._ranked import Ranks, Seats
from harness.bounds import AtLeastOne, check


@dataclass(slots=True)
class AutellixPolicy:
    """Autellix: the calls of the program that has been served least run first (program-level least attained service).

    Programs move down a level with every `quantum` tokens that their calls have produced together; within a level the
    first to arrive goes first. It needs no lengths. Chunked prefill as in Sarathi-Serve.

    At most `max_seqs` sequences run in a step of `budget` tokens; all are ranked every `interval` steps.
    """

    quantum: AtLeastOne = 400
    budget: int = 512
    max_seqs: int = 32
    interval: int = 20
    _seats: Seats = field(init=False, repr=False, compare=False)
    _ended: dict[tuple[str, int], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._seats = Seats(self.budget, self.max_seqs, self.interval)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """The calls of the least served programs, under the budget."""
        self._seats.fill(replica, batch, self._rank)

    def on_step_end(self, batch: Batch, seconds: float) -> None:  # noqa: ARG002  a step is a step
        """Count the steps until all are ranked again."""
        self._seats.steps += 1

    def on_finish(self, seq: Sequence) -> None:
        """Later calls of its program follow what it has produced."""
        program = program_of(seq.request)
        if seq.request.program is not None:
            self._ended[program] = self._ended.pop(program, 0) + seq.emitted
            if len(self._ended) > MOST_PROGRAMS:
                del self._ended[next(iter(self._ended))]

    def _rank(self, seqs: ListOf[Sequence]) -> Ranks:
        served: Counter[tuple[str, int]] = Counter()
        for seq in seqs:
            served[program_of(seq.request)] += seq.emitted
        return {
            seq: ((self._ended.get(program, 0) + served[program]) // self.quantum, seq.order)
            for seq in seqs
            for program in [program_of(seq.request)]
        }
