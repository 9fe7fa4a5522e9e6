"""How many tokens a text has for a server that only counts: learned from its counts."""

import numpy as np

LEVEL, APART, OVERHEAD_TOKENS = 1.0, 0.5, 100.0
"""What is thought possible before anything is seen, as standard deviations: how far the mean tokens of a word lie from
the first guess, how far a word lies from that mean, and what a server adds around a text (template, special tokens)."""


class Calibration:
    """Tokens of a text = overhead + sum of the tokens of its words; both are learned, one observation at a time.

    Recursive least squares, that is Bayesian linear regression with a normal prior and a noise of one token. Source:
    Bishop, Pattern Recognition and Machine Learning (2006), section 3.3.
    """

    __slots__ = ("_spread", "_weights", "observed")

    def __init__(self, words: int) -> None:
        self._weights = np.ones(words + 1)
        self._weights[-1] = 0.0  # the overhead
        self._spread = np.full((words + 1, words + 1), LEVEL**2) + APART**2 * np.eye(words + 1)
        self._spread[-1], self._spread[:, -1] = 0.0, 0.0
        self._spread[-1, -1] = OVERHEAD_TOKENS**2
        self.observed = 0

    def __repr__(self) -> str:
        return (
            f"<Calibration {self.tokens_per_word:.3g} tokens a word + {self.overhead_tokens:.3g}, {self.observed} seen>"
        )

    @property
    def tokens_per_word(self) -> float:
        """Mean over the words."""
        return float(self._weights[:-1].mean())

    @property
    def overhead_tokens(self) -> float:
        """Tokens that the server adds to every text."""
        return float(self._weights[-1])

    def words_for(self, stream: np.ndarray, tokens: int) -> int:
        """How many words of `stream` (n,), at least 1, come closest to `tokens` tokens."""
        reached = self.overhead_tokens + np.cumsum(self._weights[stream])
        return int(np.abs(reached - tokens).argmin()) + 1

    def learn(self, stream: np.ndarray, counted: int) -> None:
        """The server counted `counted` tokens in a text of the words `stream`."""
        seen = np.bincount(stream, minlength=len(self._weights)).astype(float)
        seen[-1] = 1.0
        doubt = self._spread @ seen
        trust = 1.0 + seen @ doubt
        self._weights += doubt * ((counted - seen @ self._weights) / trust)
        self._spread -= np.outer(doubt, doubt) / trust
        self.observed += 1
