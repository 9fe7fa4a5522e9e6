"""Admission as if every answer were as long as it may be: no preemption, and much memory stays unused.

Source: the rule that the Past-Future paper compares with (Gong et al., LightLLM, ASPLOS 2025).
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving._checks import at_least
from backends.serving.admission._future import with_candidate
from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class Conservative:
    """Prompts plus `max_new_tokens` each must fit `overcommit` times the memory; above 1 it may have to preempt."""

    max_new_tokens: int = 2048
    overcommit: float = 1.0

    def __post_init__(self) -> None:
        at_least("max_new_tokens", self.max_new_tokens)
        if self.overcommit <= 0:
            raise ValueError(f"overcommit must be above 0, got {self.overcommit}")

    @property
    def decision_is_stable(self) -> bool:
        """True: what it counts does not depend on how far a sequence has come."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether all that run and this one could become as long as they may."""
        blocks = replica.blocks
        longest = sum([blocks.blocks_for(s.prompt + self.max_new_tokens) for s in with_candidate(replica, seq)])
        return longest <= blocks.total * self.overcommit
