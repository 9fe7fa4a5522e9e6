"""Text for a server whose tokenizer is not known: its length is corrected by what the server counts."""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from harness.api import Request
from harness.bounds import Positive, check
from workloads.content.tokens import Tokens, busted

_WORDS = """
able about above across action again against age ago air all almost along always among and animal another answer any
area around ask back base become before began begin behind being below best better between big bird black blue boat
body book both bring brought build called came car care carry cause center change check children city class clear
close cold color come common complete course cut dark day decide deep different direction does dog done door down
draw during each early earth easy eat end enough even ever every example face fact family far farm fast father feel
feet few field find fire first fish five fly follow food foot form found four free friend from front full game gave
get girl give gold good great green ground group grow half hand hard have head hear
"""
WORDS = tuple(_WORDS.split())
_PLACES = {word: i for i, word in enumerate(WORDS)}


LEVEL, APART, OVERHEAD_TOKENS = 1.0, 0.5, 100.0
"""What is thought possible before anything is seen, as standard deviations: how far the mean tokens of a word lie from
the first guess, how far a word lies from that mean, and what a server adds around a text (template, special tokens)."""

RECENT = 100  # observations that the stated error is taken over


class Calibration:
    """Tokens of a text = overhead + sum of the tokens of its words; both are learned, one observation at a time.

    Recursive least squares, that is Bayesian linear regression with a normal prior and a noise of one token. Source:
    Bishop, Pattern Recognition and Machine Learning (2006), section 3.3.
    """

    __slots__ = ("_spread", "_weights", "errors", "observed")

    def __init__(self, words: int, tokens_per_word: float) -> None:
        self._weights = np.full(words + 1, tokens_per_word)  # the last one is the overhead
        self._weights[-1] = 0.0
        self._spread = np.full((words + 1, words + 1), LEVEL**2) + APART**2 * np.eye(words + 1)
        self._spread[-1], self._spread[:, -1] = 0.0, 0.0
        self._spread[-1, -1] = OVERHEAD_TOKENS**2
        self.observed = 0
        self.errors: deque[float] = deque(maxlen=RECENT)  # (counted - planned) / planned

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

    def learn(self, stream: np.ndarray, planned: int, counted: int) -> None:
        """A text of the words `stream` was to have `planned` tokens; the server counted `counted`."""
        seen = np.bincount(stream, minlength=len(self._weights)).astype(float)
        seen[-1] = 1.0
        doubt = self._spread @ seen
        trust = 1.0 + seen @ doubt
        self._weights += doubt * ((counted - seen @ self._weights) / trust)
        self._spread -= np.outer(doubt, doubt) / trust
        self.observed += 1
        self.errors.append((counted - planned) / planned)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Common English words, as many as come closest to `prompt_tokens` tokens of the server.

    At first a word counts for `tokens_per_word` tokens; `observe` gets what the server counted (its usage field)
    and learns the tokens of each word and what the server adds to every text. `facts` states the error: mean and
    mean absolute difference of counted and planned tokens, relative to the planned ones, over the last 100 answers.

    A block of a prefix has a fixed number of words, block tokens / `tokens_per_word`, so that sharing does not move
    while lengths are learned; give the tokens_per_word that a first run found to have blocks of the right size. Words
    are drawn from `seed` as in `tokens`; with `bust` no prompt begins like another.

    It takes effect with a backend that sends text and reports the prompt tokens of the server. The simulator and the
    engine take `token_ids`, which are those of `tokens`. Source: least squares, see `Calibration`.
    """

    tokens_per_word: Positive = 1.0
    bust: bool = False
    seed: int = 0
    calibration: Calibration = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "calibration", Calibration(len(WORDS), self.tokens_per_word))

    @property
    def facts(self) -> dict[str, object]:
        """Facts for reports; errors are None before the first answer."""
        fitted, errors = self.calibration, self.calibration.errors
        return {
            "content": f"text of {len(WORDS)} English words, calibrated by the server's counts",
            "observed": fitted.observed,
            "tokens_per_word": fitted.tokens_per_word,
            "overhead_tokens": fitted.overhead_tokens,
            "error_mean": sum(errors) / len(errors) if errors else None,
            "error_mean_absolute": sum(map(abs, errors)) / len(errors) if errors else None,
            **busted(self.bust),
        }

    def text(self, request: Request) -> str:
        """The prompt, with as many words as are thought to be `request.prompt_tokens` tokens; at least one."""
        stream = self._stream(request, 2 * request.prompt_tokens + 1)  # a word has at least half a token
        count = self.calibration.words_for(stream, request.prompt_tokens)
        return " ".join([WORDS[i] for i in stream[:count].tolist()])

    def observe(self, text: str, prompt_tokens: int, prompt_tokens_server: int) -> None:
        """Learn that a text for `prompt_tokens` tokens has `prompt_tokens_server` by the server's count."""
        words = np.array([_PLACES[word] for word in text.split()])
        self.calibration.learn(words, prompt_tokens, prompt_tokens_server)

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """(T,) int64 in [0, vocab_size), T = request.prompt_tokens, for backends that take ids."""
        return Tokens(self.seed, self.bust).token_ids(request, vocab_size)

    def _stream(self, request: Request, count: int) -> np.ndarray:
        """(count,) numbers of words."""
        block = max(1, round(request.prefix_block_tokens / self.tokens_per_word))
        planned = replace(request, prompt_tokens=count, prefix_block_tokens=block)
        return Tokens(self.seed, self.bust).token_ids(planned, len(WORDS))
