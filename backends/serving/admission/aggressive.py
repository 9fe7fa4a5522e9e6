"""Admission while what is stored now stays below a watermark: full memory, and many preemptions.

Source: the rule that the Past-Future paper compares with (Gong et al., LightLLM, ASPLOS 2025); vLLM's own is of this
kind.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving.admission._future import capacity_tokens, held_tokens, with_candidate
from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Aggressive:
    """Tokens held and the new prompt may fill the share `watermark` of the memory."""

    watermark: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.watermark <= 1:
            raise ValueError(f"watermark must be a share above 0 and up to 1, got {self.watermark}")

    @property
    def decision_is_stable(self) -> bool:
        """True: held memory only grows until a sequence ends."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether the prompt fits below the watermark now."""
        held = sum([held_tokens(s) for s in with_candidate(replica, seq)])
        return held <= capacity_tokens(replica) * self.watermark
