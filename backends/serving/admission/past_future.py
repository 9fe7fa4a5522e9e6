"""Past-Future admission: guesses the rest of every answer from those that ended, and admits what the peak allows.

Source: Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees (LightLLM), ASPLOS 2025. One fresh
guess a step would be repeated until a lucky one admits the request; so the highest peak of several guesses counts, or
each sequence keeps its guess until it has outlived it.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from backends.serving._checks import positive
from backends.serving.admission._future import capacity_tokens, held_tokens, peak_fits, with_candidate
from backends.serving.batch import Sequence
from backends.serving.replica import Replica


@dataclass(slots=True)
class PastFuture:
    """The peak must fit all memory but the share `reserve`, in each of `samples` guesses.

    A guess is a length among the last `window` answers, longer than what is out already; where there is none it is
    `max_new_tokens`, the longest answer that can be requested. With `sticky` a sequence is guessed once.
    """

    samples: int = 4
    reserve: float = 0.05
    window: int = 1000
    max_new_tokens: int = 2048
    sticky: bool = False
    _recent: deque[int] = field(default_factory=deque, init=False, repr=False, compare=False)
    _sorted: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _guessed: dict[Sequence, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive(self, "samples", "window", "max_new_tokens")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve must be a share in [0, 1), got {self.reserve}")

    @property
    def decision_is_stable(self) -> bool:
        """False: it guesses anew at every step."""
        return False

    def finished(self, output_tokens: int) -> None:
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)
        if len(self._recent) > self.window:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:
        """Whether the peak fits in every guess."""
        running = list(with_candidate(replica, seq))
        share = 1 - self.reserve
        if sum([held_tokens(s) for s in running]) > capacity_tokens(replica) * share:
            return False  # whatever is guessed
        if self.sticky:
            return peak_fits(replica, self._kept(running, chance), share)
        # tokens still to come are guessed from the answers that were longer
        return all(
            peak_fits(
                replica,
                [(held_tokens(s), max(1, self._length(s.emitted, chance) - s.emitted)) for s in running],
                share,
            )
            for _ in range(self.samples)
        )

    def _length(self, emitted: int, chance: Callable[[], float]) -> int:
        first = bisect_right(self._sorted, emitted)
        longer = len(self._sorted) - first
        if not longer:
            return self.max_new_tokens
        return min(self._sorted[first + int(chance() * longer)], self.max_new_tokens)

    def _kept(self, running: list[Sequence], chance: Callable[[], float]) -> list[tuple[int, int]]:
        """The futures of all under the guess that each keeps until it has outlived it."""
        kept = self._guessed
        self._guessed = guessed = {}
        for seq in running:
            length = kept.get(seq, 0)
            guessed[seq] = length if length > seq.emitted else self._length(seq.emitted, chance)
        return [(held_tokens(s), max(1, length - s.emitted)) for s, length in guessed.items()]
