"""How long an answer will be: the short rules, a class each.

What they draw is a hash of the id of the request and of a seed, so that the core has no random numbers: a request has
the same error in every run, under every policy.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from math import cos, exp, log, pi, sqrt

from backends.serving.batch import Oracle as LengthOracle
from backends.serving.batch import Sequence
from backends.serving.plugins import unit
from harness.bounds import AtLeastOne, Checked, NotNegative, Share, check


@dataclass(slots=True)
class _Finished:
    """The lengths of the last `window` answers."""

    window: int
    _recent: deque[int] = field(default_factory=deque)
    _sorted: list[int] = field(default_factory=list)

    def add(self, tokens: int) -> None:
        """An answer ended with so many tokens."""
        self._recent.append(tokens)
        insort(self._sorted, tokens)
        if len(self._recent) > self.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def beyond(self, emitted: int, share: float, none_longer: int) -> float:
        """The length that the share `share` (0..1) of those longer than `emitted` is at most.

        Where there are none it is `none_longer`, or twice what is out where that is more.
        """
        first = bisect_right(self._sorted, emitted)
        longer = len(self._sorted) - first
        if not longer:
            return max(none_longer, 2 * emitted)
        return self._sorted[first + min(int(share * longer), longer - 1)]


@dataclass(slots=True)
class Quantile:
    """Quantile: the length that the share `q` of the last `window` answers longer than what is out does not exceed.

    Knows no request from another. Until an answer is longer it is `prior_tokens`, and twice what is out beyond that.
    Source: the length upper bound of JITServe (NSDI 2026), without its features of the prompt.
    """

    q: Share = 0.9
    window: AtLeastOne = 1000
    prior_tokens: AtLeastOne = 512
    _finished: _Finished = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._finished = _Finished(self.window)

    def output_tokens(self, seq: Sequence) -> float:
        return self._finished.beyond(seq.emitted, self.q, self.prior_tokens)

    def on_finish(self, seq: Sequence) -> None:
        """Its length is one of those known from now on."""
        self._finished.add(seq.emitted)


@dataclass(slots=True)
class Past:
    """Past: one of the last `window` answers longer than what is out, drawn once for every request.

    The draw is its place among them, so that the estimate rises as the answer goes on. Until an answer is longer it is
    `prior_tokens`, and twice what is out beyond that. Source: the guesses of Past-Future (LightLLM, ASPLOS 2025).
    """

    window: AtLeastOne = 1000
    prior_tokens: AtLeastOne = 512
    seed: int = 0
    _finished: _Finished = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        self._finished = _Finished(self.window)

    def output_tokens(self, seq: Sequence) -> float:
        return self._finished.beyond(seq.emitted, unit(self.seed, seq.request.id), self.prior_tokens)

    def on_finish(self, seq: Sequence) -> None:
        """Its length is one of those known from now on."""
        self._finished.add(seq.emitted)


@dataclass(frozen=True, slots=True)
class NoisyOracle(Checked):
    """Noisy oracle: the true length times a lognormal error of median 1, the same for a request throughout.

    `log_sd` is the standard deviation of the logarithm of the error. It stands for a predictor that reads the prompt,
    but no system has it, so results with it are oracle results.
    """

    log_sd: NotNegative = 0.8
    seed: int = 0

    def output_tokens(self, seq: Sequence) -> float:
        """Tokens of the whole answer; one more than are out where these exceed the estimate."""
        u, v = unit(self.seed, 2 * seq.request.id), unit(self.seed, 2 * seq.request.id + 1)
        normal = sqrt(-2 * log(1 - u)) * cos(2 * pi * v)  # Box and Muller, 1958
        return max(seq.emitted + 1, LengthOracle.output_tokens(seq) * exp(self.log_sd * normal))

    def on_finish(self, seq: Sequence) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """Oracle: the true length. No system knows it, so results with it are oracle results."""

    def output_tokens(self, seq: Sequence) -> float:
        return LengthOracle.output_tokens(seq)

    def on_finish(self, seq: Sequence) -> None:
        """Nothing to learn."""
