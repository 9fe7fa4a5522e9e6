"""What plug-ins see of a request."""

from math import inf
from typing import TYPE_CHECKING

from harness.api import DeadlineSlo, LatencySlo, ProgramSlo, Request, SloClass

MOST_PROGRAMS = 1 << 16
"""Programs that a policy remembers, the latest: of none is it known that its last call has come."""


class VisibleRequest:
    """What a serving system can know of a request: everything but the length of its answer. Plug-ins get no other."""

    __slots__ = ("_request",)

    def __init__(self, request: Request) -> None:
        self._request = request

    @property
    def id(self) -> int:
        return self._request.id

    @property
    def scheduled_s(self) -> float:
        return self._request.scheduled_s

    @property
    def prompt_tokens(self) -> int:
        return self._request.prompt_tokens

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        return self._request.prefix_ids

    @property
    def prefix_block_tokens(self) -> int:
        return self._request.prefix_block_tokens

    @property
    def session(self) -> int | None:
        return self._request.session

    @property
    def turn(self) -> int:
        return self._request.turn

    @property
    def tag(self) -> str | None:
        return self._request.tag

    @property
    def priority(self) -> int:
        return self._request.priority

    @property
    def program(self) -> int | None:
        """The program that it is a call of: that of its `extra`, else its session; None where it stands alone."""
        extra = self._request.extra
        return self._request.session if extra is None or extra.program is None else extra.program

    @property
    def stage(self) -> int:
        """Stage of its program: that of its `extra`, else its turn."""
        extra = self._request.extra
        return self._request.turn if extra is None or extra.program is None else extra.stage

    @property
    def model(self) -> str | None:
        """The adapter that it asks for; None for the model that is served."""
        return self._request.model

    @property
    def image_tokens(self) -> int:
        """Tokens of its prompt that are those of images."""
        return 0 if self._request.extra is None else self._request.extra.image_tokens

    @property
    def offline(self) -> bool:
        """Whether no one waits for its answer."""
        return self._request.extra is not None and self._request.extra.offline

    @property
    def slo(self) -> SloClass | None:
        """What it is due by: the class of its `extra`, else what its own bounds say; None where it has none."""
        request = self._request
        if request.extra is not None and request.extra.slo is not None:
            return request.extra.slo
        if request.slo_task_s is not None:
            return DeadlineSlo(request.slo_task_s) if self.program is None else ProgramSlo(request.slo_task_s)
        if request.slo_ttft_s is None and request.slo_tpot_s is None:
            return None
        ttft_s, tpot_s = request.slo_ttft_s, request.slo_tpot_s
        return LatencySlo(inf if ttft_s is None else ttft_s, inf if tpot_s is None else tpot_s)

    def __repr__(self) -> str:
        return f"<VisibleRequest {self.id}, {self.prompt_tokens} prompt tokens>"

    if not TYPE_CHECKING:  # for mypy there is no such attribute

        def __getattr__(self, name: str) -> object:
            if name == "output_tokens":
                raise AttributeError(
                    "the length of an answer is not known while it is served: estimate it with a length predictor; "
                    "only the predictor 'oracle' and others that go through backends.serving.batch.Oracle know it"
                )
            raise AttributeError(f"a VisibleRequest has no attribute '{name}'")


def program_of(request: VisibleRequest) -> tuple[str, int]:
    """The program that a request is a call of; one that stands alone is a program of its own."""
    program = request.program
    return ("request", request.id) if program is None else ("program", program)
