"""Admission as LightLLM's main branch has it: no history; a fixed guess, or the longest answer when memory is used.

Source: ModelTC/lightllm, lightllm/server/api_cli.py and lightllm/server/core/objs/req.py. With the default
`token_ratio` of 0 every answer counts as long as it may be.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.serving._checks import positive
from backends.serving.admission._future import capacity_tokens, held_tokens, peak_fits, with_candidate
from backends.serving.batch import Sequence
from backends.serving.replica import Replica

MARGIN_TOKENS = 6
"""Tokens that it adds to each guess."""
GROWTH = 1.1
"""A sequence is guessed to become so many times as long as it is."""


@dataclass(frozen=True, slots=True)
class LightllmMain:
    """Guesses `usual_new_tokens` while less than the share `token_ratio` of memory is used, else `max_new_tokens`."""

    token_ratio: float = 0.0
    usual_new_tokens: int = 1024
    max_new_tokens: int = 2048

    def __post_init__(self) -> None:
        positive(self, "usual_new_tokens", "max_new_tokens")
        if not 0 <= self.token_ratio <= 1:
            raise ValueError(f"token_ratio must be a share from 0 to 1, got {self.token_ratio}")

    @property
    def decision_is_stable(self) -> bool:
        """False: the rest of a sequence shrinks as it goes on."""
        return False

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:  # noqa: ARG002
        """Whether the peak of the guesses fits."""
        busy = sum([held_tokens(s) for s in replica.all_holders()]) >= capacity_tokens(replica) * self.token_ratio
        futures = [(held_tokens(s), self._rest(s.emitted, busy=busy)) for s in with_candidate(replica, seq)]
        return peak_fits(replica, futures)

    def _rest(self, emitted: int, *, busy: bool) -> int:
        longest = self.max_new_tokens
        if not busy:
            longest = min(longest, max(int(GROWTH * emitted), self.usual_new_tokens))
        return max(1, longest + MARGIN_TOKENS - emitted)
