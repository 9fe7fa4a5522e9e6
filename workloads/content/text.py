"""Text with an exact token count under a given tokenizer, for servers that take text."""

from dataclasses import dataclass, field

import numpy as np

from harness.api import Request
from workloads.content import _tokens
from workloads.content.tokens import Tokens, busted


@dataclass(frozen=True, slots=True)
class Text:
    """Words that are one token each under `tokenizer`, the path of a Hugging Face `tokenizer.json`.

    Encoding `text(request)` gives exactly `token_ids(request, ...)`: `request.prompt_tokens` tokens, equal where
    prefix ids are equal, so that a server shares what a simulator and an engine share. With `special` (the default,
    as completion servers count) these include the tokens that the tokenizer adds around a text, such as a leading
    beginning-of-text; with special=false encode without them. A closing special token ends the sharing of a prompt
    that is all prefix one token early. A chat template adds tokens that are not counted here (`calibrated` learns
    them). Which word stands where is drawn from `seed`, as in `tokens`; with `bust` no prompt begins like another.
    The words (up to 256) are tried out beside one another when the tokenizer is loaded; needs `pip install
    'goodput-bench[tokenizers]'`. Source: the vocabulary of the tokenizer, whose SHA-256 is in `facts`.
    """

    tokenizer: str
    special: bool = True
    bust: bool = False
    seed: int = 0
    pool: _tokens.TokenPool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", _tokens.load(self.tokenizer, special=self.special))

    @property
    def facts(self) -> dict[str, object]:
        return {
            "content": f"text of {len(self.pool.words)} words that are one token each",
            "tokenizer_sha256": self.pool.sha256,
            "special_tokens": len(self.pool.opening) + len(self.pool.closing),
            **busted(self.bust),
        }

    def text(self, request: Request) -> str:
        """The prompt. Raises ValueError where it is shorter than its special tokens."""
        return self.pool.form.text(np.array(self.pool.words, object)[self._chosen(request)].tolist())

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """(T,) int64, T = request.prompt_tokens: what the tokenizer makes of `text`.

        Raises ValueError for a vocabulary that is too small for these tokens.
        """
        pool = self.pool
        largest = max(*pool.ids, *pool.opening, *pool.closing)
        if largest >= vocab_size:
            raise ValueError(
                f"The tokenizer '{self.tokenizer}' has token ids up to {largest}, the model takes {vocab_size}; "
                "give the tokenizer of the model."
            )
        return np.concatenate((pool.opening, np.array(pool.ids)[self._chosen(request)], pool.closing)).astype(np.int64)

    def _chosen(self, request: Request) -> np.ndarray:
        """(words,) number of each word: that of its token in the stream of `tokens`, the special ones left out."""
        opening, closing = len(self.pool.opening), len(self.pool.closing)
        if request.prompt_tokens < opening + closing:
            raise ValueError(
                f"Request {request.id} has {request.prompt_tokens} prompt tokens, but the tokenizer adds "
                f"{opening + closing}; use special=false or longer prompts."
            )
        numbers = Tokens(self.seed, self.bust).token_ids(request, len(self.pool.words))
        return numbers[opening : len(numbers) - closing]
