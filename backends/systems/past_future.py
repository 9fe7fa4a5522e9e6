"""Past-Future of LightLLM: memory nearly as full as if lengths of answers were known, with few sequences evicted.

Source: Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees (LightLLM), ASPLOS 2025. It claims 2 to
3 times the goodput of other admission under heavy load. Its baselines are admission=conservative and aggressive, its
bound is admission=oracle.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from backends.serving.batch import Oracle, Sequence
from backends.serving.replica import Replica
from harness.bounds import AtLeastOne, Checked, PartialShare, Positive, PositiveShare, Share

MARGIN_TOKENS = 6
"""Tokens that it adds to each guess."""
GROWTH = 1.1
"""A sequence is guessed to become so many times as long as it is."""


@dataclass(slots=True)
class PastFutureAdmission(Checked):
    """Past-Future admission: guesses the rest of every answer from those that ended, and admits what the peak allows.

    One fresh guess a step would be repeated until a lucky one admits the request; so the highest peak of several
    guesses counts.

    The peak must fit all memory but the share `reserve`, in each of `samples` guesses.

    A guess is a length among the last `window` answers, longer than what is out already; where there is none it is
    `max_new_tokens`, the longest answer that can be requested.
    """

    samples: AtLeastOne = 4
    reserve: PartialShare = 0.05
    window: AtLeastOne = 1000
    max_new_tokens: AtLeastOne = 2048
    _recent: deque[int] = field(default_factory=deque, init=False, repr=False, compare=False)
    _sorted: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

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


@dataclass(frozen=True, slots=True)
class LightllmMainAdmission(Checked):
    """Admission as LightLLM's main branch has it: no history; a fixed guess, or the longest answer when memory is used.

    Source: ModelTC/lightllm, lightllm/server/api_cli.py and lightllm/server/core/objs/req.py. With the default
    `token_ratio` of 0 every answer counts as long as it may be.

    Guesses `usual_new_tokens` while less than the share `token_ratio` of memory is used, else `max_new_tokens`.
    """

    token_ratio: Share = 0.0
    usual_new_tokens: AtLeastOne = 1024
    max_new_tokens: AtLeastOne = 2048

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


@dataclass(frozen=True, slots=True)
class OracleAdmission:
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
        futures = [(held_tokens(s), Oracle.output_tokens(s) - s.emitted) for s in with_candidate(replica, seq)]
        return peak_fits(replica, futures)


@dataclass(frozen=True, slots=True)
class AggressiveAdmission(Checked):
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
class ConservativeAdmission(Checked):
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


def with_candidate(replica: Replica, candidate: Sequence) -> Iterator[Sequence]:
    """The candidate, and all that hold memory already."""
    yield candidate
    yield from replica.all_holders()


def held_tokens(seq: Sequence) -> int:
    """Tokens of prompt and output so far: what is stored, or will be once the prompt has run."""
    return seq.prompt + seq.emitted


def peak_tokens(futures: Iterable[tuple[int, int]], rounding: int = 0) -> int:
    """Most tokens stored at any time by sequences of (tokens held, tokens still to come) that all go on together.

    Memory is fullest just before a sequence ends; `rounding` is what the last block of each may waste. Source: the
    documentation of LightLLM (ModelTC/lightllm), Past-Future scheduler.
    """
    held = peak = 0
    for count, (tokens, rest) in enumerate(sorted(futures, key=_rest, reverse=True), 1):
        held += tokens
        peak = max(peak, held + count * (rest + rounding))
    return peak


def _rest(future: tuple[int, int]) -> int:
    return future[1]


def capacity_tokens(replica: Replica) -> int:
    """Tokens that fit the KV memory."""
    return replica.blocks.total * replica.blocks.size


def peak_fits(replica: Replica, futures: Iterable[tuple[int, int]], share: float = 1.0) -> bool:
    """Whether the peak stays within `share` of the memory."""
    return peak_tokens(futures, replica.blocks.size - 1) <= capacity_tokens(replica) * share
