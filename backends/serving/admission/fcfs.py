"""Admission in order of arrival as long as memory has room now: what every engine does without a rule."""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Nothing beyond the watermark of the memory mode; what runs short later is preempted."""

    @property
    def decision_is_stable(self) -> bool:
        """True: it never rejects."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        return True
