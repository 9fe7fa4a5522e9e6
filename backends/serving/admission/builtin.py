"""Which waiting sequences memory lets in: the short rules, a class each."""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving.admission._future import capacity_tokens, held_tokens, peak_fits, with_candidate
from backends.serving.batch import Oracle as LengthOracle
from backends.serving.batch import Sequence
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked, Positive, PositiveShare


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Admission in order of arrival as long as memory has room now: what every engine does without a rule.

    Nothing beyond the watermark of the memory mode; what runs short later is preempted.
    """

    @property
    def decision_is_stable(self) -> bool:
        """True: it never rejects."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True, slots=True)
class Oracle:
    """Admission with known answer lengths: as full as memory can be without a preemption.

    The peak of memory, with true lengths, must fit. No real system can do this, so results with it are oracle results.
    Source: the bound that the Past-Future paper compares with (Gong et al., LightLLM, ASPLOS 2025).
    """

    @property
    def decision_is_stable(self) -> bool:
        """False: the later a sequence begins, the less it overlaps with the others."""
        return False

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether no sequence will be preempted."""
        futures = [(held_tokens(s), LengthOracle.output_tokens(s) - s.emitted) for s in with_candidate(replica, seq)]
        return peak_fits(replica, futures)


@dataclass(frozen=True, slots=True)
class Aggressive(Checked):
    """Admission while what is stored now stays below a watermark: full memory, and many preemptions.

    Tokens held and the new prompt may fill the share `watermark` of the memory. Source: the rule that the Past-Future
    paper compares with (Gong et al., LightLLM, ASPLOS 2025); vLLM's own is of this kind.
    """

    watermark: PositiveShare = 0.99

    @property
    def decision_is_stable(self) -> bool:
        """True: held memory only grows until a sequence ends."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether the prompt fits below the watermark now."""
        held = sum([held_tokens(s) for s in with_candidate(replica, seq)])
        return held <= capacity_tokens(replica) * self.watermark


@dataclass(frozen=True, slots=True)
class Conservative(Checked):
    """Admission as if every answer were as long as it may be: no preemption, and much memory stays unused.

    Source: the rule that the Past-Future paper compares with (Gong et al., LightLLM, ASPLOS 2025).

    Prompts plus `max_new_tokens` each must fit `overcommit` times the memory; above 1 it may have to preempt.
    """

    max_new_tokens: AtLeastOne = 2048
    overcommit: Positive = 1.0

    @property
    def decision_is_stable(self) -> bool:
        """True: what it counts does not depend on how far a sequence has come."""
        return True

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether all that run and this one could become as long as they may."""
        blocks = replica.blocks
        longest = sum([blocks.blocks_for(s.prompt + self.max_new_tokens) for s in with_candidate(replica, seq)])
        return longest <= blocks.total * self.overcommit
