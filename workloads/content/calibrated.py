"""Text for a server whose tokenizer is not known: its length is corrected by what the server counts."""

from dataclasses import dataclass, field, replace

import numpy as np

from harness.api import Request
from workloads._checks import positive
from workloads.content._calibration import Calibration
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
    engine take `token_ids`, which are those of `tokens`. Source: least squares, see `_calibration.py`.
    """

    tokens_per_word: float = 1.0
    bust: bool = False
    seed: int = 0
    calibration: Calibration = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        positive(tokens_per_word=self.tokens_per_word)
        object.__setattr__(self, "calibration", Calibration(len(WORDS), self.tokens_per_word))

    @property
    def facts(self) -> dict[str, object]:
        """Facts for reports; errors are None before the first answer."""
        found, errors = self.calibration, self.calibration.errors
        return {
            "content": f"text of {len(WORDS)} English words, calibrated by the server's counts",
            "observed": found.observed,
            "tokens_per_word": found.tokens_per_word,
            "overhead_tokens": found.overhead_tokens,
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
