"""Admission with known answer lengths: as full as memory can be without a preemption.

Source: the bound that the Past-Future paper compares with (Gong et al., LightLLM, ASPLOS 2025). No real system can do
this, so results with it are oracle results.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving.admission._future import held_tokens, peak_fits, with_candidate
from backends.serving.batch import Oracle as LengthOracle
from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Oracle:
    """The peak of memory, with true lengths, must fit."""

    @property
    def decision_is_stable(self) -> bool:
        """False: the later a sequence begins, the less it overlaps with the others."""
        return False

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether no sequence will be preempted."""
        futures = [(held_tokens(s), LengthOracle.output_tokens(s) - s.emitted) for s in with_candidate(replica, seq)]
        return peak_fits(replica, futures)
