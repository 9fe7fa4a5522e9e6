"""Text with an exact number of tokens, for servers that take text.

It is made of words that are one token each beside one another (see `_words`), under the tokenizer of a file or that of
the server. Where neither is to be had, its length is corrected by what the server counts.
"""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from harness import untrusted
from harness.api import ExactWords, Request
from harness.errors import UsageError
from workloads.content._words import FEWEST_WORDS, PARTS, WORDS, search
from workloads.content.tokens import Tokens, busted

CANDIDATES = 8192  # vocabularies list frequent tokens first; those of the first words are the plainest
_WORD = re.compile(
    "(?:Ġ|▁|##)?([a-z]{1,16})"
)  # marks of a leading space (byte-level, SentencePiece), of a continuation
_PLAIN = ExactWords("", " ", WORDS)
LEAST_WORD = 0.5
"""Tokens that a word has at least."""


class Vocabulary(NamedTuple):
    """Word i is the token `ids[i]`; `opening` and `closing` are the special tokens around every text."""

    ids: tuple[int, ...]
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    sha256: str


def load(path: str, *, special: bool) -> tuple[ExactWords, Vocabulary]:
    """The words of a Hugging Face `tokenizer.json`; `special`: with the tokens that it adds around a text.

    Raises UsageError for a file that is none, and for a tokenizer without enough such words.
    """
    tokenizer, sha256 = untrusted.open_tokenizer(path, "Content text")
    by_id = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    candidates = list(dict.fromkeys(m[1] for token, _ in by_id if (m := _WORD.fullmatch(token))))[:CANDIDATES]
    searching = search(candidates)
    try:
        text = next(searching)
        while True:  # one text at a time: batches would start threads, which a later fork does not survive
            text = searching.send(tokenizer.encode(text, add_special_tokens=False).ids)
    except StopIteration as end:
        found: tuple[ExactWords, tuple[int, ...]] | None = end.value
    if found is None:
        raise UsageError(
            f"The tokenizer '{path}' has no {FEWEST_WORDS} words that stay one token each beside one another, so no "
            "text has an exact token count; leave it out, and lengths are corrected by what the server counts."
        )
    words, ids = found
    around = tokenizer.encode(words.of(words.words[:1]), add_special_tokens=special).ids
    position = around.index(ids[0])
    return words, Vocabulary(ids, tuple(around[:position]), tuple(around[position + 1 :]), sha256)


@dataclass(frozen=True, slots=True)
class Text:
    """Words that are one token each, so that a prompt has exactly `request.prompt_tokens` tokens.

    With `tokenizer`, the path of a Hugging Face `tokenizer.json` (needs `pip install 'goodput-bench[tokenizers]'`),
    encoding `text(request)` gives exactly `token_ids(request, ...)`, equal where prefix ids are equal, so that a server
    shares what a simulator and an engine share. With `special` (the default, as completion servers count) these include
    the tokens that the tokenizer adds around a text, such as a leading beginning-of-text; with special=false encode
    without them. A closing special token ends the sharing of a prompt that is all prefix one token early.

    Without it the words are tried out by `/tokenize` of the server, before the run; what a template and special tokens
    add is measured and taken off. Where the server has no `/tokenize`, a word counts for one token at first, as these
    words do for all large vocabularies, and the tokens of each word and what the server adds are learned from what it
    counts (usage); a block of a prefix keeps its words meanwhile. The simulator and the engine take ids of `tokens`.

    Which word stands where is drawn from `seed`, as in `tokens`; with `bust` no prompt begins like another. Source: the
    vocabulary of the tokenizer, whose SHA-256 is in `facts`; least squares for what is learned.
    """

    tokenizer: str | None = None
    special: bool = True
    bust: bool = False
    seed: int = 0
    words: ExactWords | None = field(init=False, repr=False, default=None)
    vocabulary: Vocabulary | None = field(init=False, repr=False, compare=False, default=None)
    counts: list[tuple[int, int]] = field(init=False, repr=False, compare=False, default_factory=list)
    learned: tuple[float, float] = field(init=False, repr=False, compare=False, default=(1.0, 0.0))

    def __post_init__(self) -> None:
        if self.tokenizer is not None:
            words, vocabulary = load(self.tokenizer, special=self.special)
            object.__setattr__(self, "words", words)
            object.__setattr__(self, "vocabulary", vocabulary)

    @property
    def facts(self) -> dict[str, object]:
        """Facts for reports."""
        if self.vocabulary is not None and self.words is not None:
            exact = f"text of {len(self.words.words)} words that are one token each"
            special = len(self.vocabulary.opening) + len(self.vocabulary.closing)
            return {"content": exact, "tokenizer_sha256": self.vocabulary.sha256, "special_tokens": special,
                    **busted(self.bust)}  # fmt: skip
        if self.words is not None:
            exact = f"text of {len(self.words.words)} words that are one token each by the server's tokenizer"
            return {"content": exact, **busted(self.bust)}
        return {
            "content": f"text of {len(WORDS)} English words, calibrated by the server's counts",
            "observed": len(self.counts),
            **dict(zip(("tokens_per_word", "overhead_tokens"), self.learned, strict=True)),
            **busted(self.bust),
        }

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:
        """The prompt, of at least one word. Raises ValueError where it is shorter than its special tokens."""
        form = self.words or _PLAIN
        if self.words is not None:
            numbers = self._chosen(request, len(form.words))
        else:
            a_word, overhead = self.learned
            count = max(1, round((request.prompt_tokens - overhead) / a_word))
            most = 2 * request.prompt_tokens + 1  # see LEAST_WORD
            numbers = Tokens(self.seed, self.bust).token_ids(request, len(WORDS), min(count, most))
        words = form.words
        chosen = [number % len(words) for number in opening[: len(numbers)]]
        return form.of([words[number] for number in (*chosen, *numbers[len(chosen) :].tolist())])

    def search(self) -> Generator[str, Sequence[int], ExactWords | None]:
        """See `LearningContent`."""
        found = (yield from search(WORDS)) or (yield from search(PARTS))
        return None if found is None else found[0]

    def use(self, words: ExactWords | None) -> None:
        """See `LearningContent`."""
        object.__setattr__(self, "words", words)

    def observe(self, text: str, prompt_tokens_server: int) -> None:
        """Learn that a text has `prompt_tokens_server` tokens by the server's count."""
        if self.words is None:
            self.counts.append((len(text.split()), prompt_tokens_server))
            object.__setattr__(self, "learned", self._fitted())

    def _fitted(self) -> tuple[float, float]:
        """Tokens of a word, and those that the server adds to every text; 1 and 0 before two lengths were counted."""
        words, tokens = np.array(self.counts, float).T
        spread = words - words.mean()
        a_word = float(spread @ tokens / (spread @ spread)) if spread.any() else 1.0
        return max(a_word, LEAST_WORD), float(tokens.mean() - a_word * words.mean()) if spread.any() else 0.0

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """(T,) int64, T = request.prompt_tokens: what the tokenizer makes of `text`; without one those of `tokens`.

        Raises ValueError for a vocabulary that is too small for these tokens.
        """
        known = self.vocabulary
        if known is None:
            return Tokens(self.seed, self.bust).token_ids(request, vocab_size)
        largest = max(*known.ids, *known.opening, *known.closing)
        if largest >= vocab_size:
            raise ValueError(
                f"The tokenizer '{self.tokenizer}' has token ids up to {largest}, the model takes {vocab_size}; "
                "give the tokenizer of the model."
            )
        numbers = self._chosen(request, len(known.ids))
        return np.concatenate((known.opening, np.array(known.ids)[numbers], known.closing)).astype(np.int64)

    def _chosen(self, request: Request, words: int) -> np.ndarray:
        """(n,) number of each word: that of its token in the stream of `tokens`, the special ones left out."""
        opening, closing = (0, 0) if (v := self.vocabulary) is None else (len(v.opening), len(v.closing))
        if request.prompt_tokens < opening + closing:
            raise ValueError(
                f"Request {request.id} has {request.prompt_tokens} prompt tokens, but the tokenizer adds "
                f"{opening + closing}; use special=false or longer prompts."
            )
        numbers = Tokens(self.seed, self.bust).token_ids(request, words)
        return numbers[opening : len(numbers) - closing]
