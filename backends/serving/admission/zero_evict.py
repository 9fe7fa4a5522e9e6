"""Zero-evict admission: runs all sequences ahead to a fixed length, block by block, and admits if none runs short.

Source: the documentation of xLLM (jd-opensource/xllm), zero-evict scheduler; `max_decode_token_per_sequence` 256.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving._checks import at_least
from backends.serving.admission._future import held_tokens, with_candidate
from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(frozen=True, slots=True)
class ZeroEvict:
    """No sequence may run out of blocks before all have `max_decode_tokens` tokens of output."""

    max_decode_tokens: int = 256

    def __post_init__(self) -> None:
        at_least("max_decode_tokens", self.max_decode_tokens)

    @property
    def decision_is_stable(self) -> bool:
        """False: the later a sequence begins, the less it overlaps with the others."""
        return False

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether the blocks last; memory is fullest at the ends, so only they are looked at."""
        futures = [(held_tokens(s), max(1, self.max_decode_tokens - s.emitted)) for s in with_candidate(replica, seq)]
        blocks = replica.blocks
        return all(
            sum([blocks.blocks_for(held + rest) for held, own in futures if own >= rest]) <= blocks.total
            for rest in {own for _, own in futures}
        )
