"""The programs whose calls a scheduler serves."""

from backends.serving.batch import Sequence

MOST_PROGRAMS = 1 << 16
"""Programs that are remembered, the latest: of none is it known that its last call has come."""


def program_of(seq: Sequence) -> tuple[str, int]:
    """The program that a sequence is a call of; a request that stands alone is one of its own."""
    request = seq.request
    program = request.program
    return ("request", request.id) if program is None else ("program", program)
