"""What a scheduler knows of the programs whose calls it serves: when they began, and by when they are due."""

from dataclasses import dataclass, field
from math import inf

from backends.serving.batch import Sequence
from harness.api import DeadlineSlo, LatencySlo, ProgramSlo, SloClass

KEPT = 1 << 16
"""Programs that are remembered, the latest: of none is it known that its last call has come."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as part of its program (a request that stands alone is a program of one call).

    `since_s` is when its clock began, `due_s` when its last token is due, inf for one whose tokens are due one by one.
    """

    slo: SloClass
    program: tuple[str, int]
    since_s: float
    due_s: float


@dataclass(slots=True)
class Programs:
    """The programs seen so far. A request without bounds has those of `default`."""

    default: LatencySlo
    _begun_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def call(self, seq: Sequence) -> Call:
        """The place of a sequence in its program, which begins with the first call that is seen."""
        request = seq.request
        slo = request.slo or self.default
        program = program_of(seq)
        begun_s = self._begun_s.get(program)
        if begun_s is None:
            begun_s = self._begun_s[program] = seq.request.scheduled_s
            if len(self._begun_s) > KEPT:
                del self._begun_s[next(iter(self._begun_s))]
        match slo:
            case ProgramSlo():
                return Call(slo, program, begun_s, begun_s + slo.program_s)
            case DeadlineSlo():
                return Call(slo, program, seq.request.scheduled_s, seq.request.scheduled_s + slo.e2e_s)
            case LatencySlo():
                return Call(slo, program, seq.request.scheduled_s, inf)


def program_of(seq: Sequence) -> tuple[str, int]:
    """The program that a sequence is a call of; a request that stands alone is one of its own."""
    request = seq.request
    program = request.program
    return ("request", request.id) if program is None else ("program", program)
