"""Text with an exact token count under a given tokenizer, for servers that take text.

A text made of words that the tokenizer turns into one token each, whatever stands beside them, has as many tokens as
words: exactly, by construction. The words are found in the vocabulary and tried out when the tokenizer is loaded: every
ordered pair of them, and long random rows. For a tokenizer that splits at spaces, and for byte pair encoding over a
whole text, pairs that hold make rows that hold: the first merge across the border of two words would be made in the
pair as well. For any other kind the rows are the evidence.
"""

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.api import Request
from harness.errors import UsageError
from workloads.content.tokens import Tokens, busted

MOST_WORDS, FEWEST_WORDS = 256, 16  # 16 words tell 16-token blocks apart by 64 bits
CANDIDATES = 8192  # vocabularies list frequent tokens first; those of the first words are the plainest
ROWS, ROW_WORDS = 8, 2000
_WORD = re.compile(
    "(?:Ġ|▁|##)?([a-z]{1,16})"
)  # marks of a leading space (byte-level, SentencePiece), of a continuation
Encode = Callable[[str], list[int]]


class Form(NamedTuple):
    """How words are put together: what stands before the first, and between two."""

    lead: str
    joint: str

    def text(self, words: Iterable[str]) -> str:
        joined = self.joint.join(words)
        return self.lead + joined if joined else ""


class TokenPool(NamedTuple):
    """`words[i]` is the token `ids[i]`; `opening` and `closing` are the special tokens around every text."""

    form: Form
    words: tuple[str, ...]
    ids: tuple[int, ...]
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    sha256: str


def load(path: str, *, special: bool) -> TokenPool:
    """The words of a Hugging Face `tokenizer.json`; `special`: with the tokens that it adds around a text.

    Raises UsageError for a file that is none, and for a tokenizer without enough such words.
    """
    tokenizer, sha256 = open_tokenizer(path, "Content text")
    form, words, ids = _found(path, tokenizer.get_vocab(with_added_tokens=False), _encoder(tokenizer, special=False))
    around = _encoder(tokenizer, special=special)(form.text(words[:1]))
    position = around.index(ids[0])
    return TokenPool(form, words, ids, tuple(around[:position]), tuple(around[position + 1 :]), sha256)


def _encoder(tokenizer: object, *, special: bool) -> Encode:
    """One text at a time: batches would start threads, which a later fork does not survive."""
    encode = tokenizer.encode  # type: ignore[attr-defined]  # the library ships no types for it
    return lambda text: list(encode(text, add_special_tokens=special).ids)


def _found(path: str, vocabulary: dict[str, int], encode: Encode) -> tuple[Form, tuple[str, ...], tuple[int, ...]]:
    """The first form in which enough words hold."""
    by_id = sorted(vocabulary.items(), key=lambda item: item[1])
    candidates = list(dict.fromkeys(m[1] for token, _ in by_id if (m := _WORD.fullmatch(token))))[:CANDIDATES]
    for form in (Form(" ", " "), Form("", " "), Form("", "")):
        usable = [
            word for word in candidates if form.joint or len(word) == 1
        ]  # glued words would merge; letters may not
        pool = _apart(_single(usable, form, encode), form, encode)
        if len(pool) < FEWEST_WORDS:
            continue
        words, rng = list(pool), random.Random(0)  # long rows of words must be their tokens too
        rows = [rng.choices(words, k=ROW_WORDS) for _ in range(ROWS)]
        if all(encode(form.text(row)) == [pool[word] for word in row] for row in rows):
            return form, tuple(pool), tuple(pool.values())
    raise UsageError(
        f"The tokenizer '{path}' has no {FEWEST_WORDS} words that stay one token each beside one another, so no text "
        "has an exact token count; use --content calibrated, which corrects its lengths by what the server counts."
    )


def _single(candidates: Sequence[str], form: Form, encode: Encode) -> dict[str, int]:
    """Words (with their token) that are one and the same token at the start of a text and after themselves."""
    pool: dict[str, int] = {}
    used_ids: set[int] = set()
    for word in candidates:
        ids = encode(form.text([word] * 3))
        if len(ids) == 3 and len(set(ids)) == 1 and ids[0] not in used_ids:  # two spellings may be one token
            pool[word] = ids[0]
            used_ids.add(ids[0])
            if len(pool) == MOST_WORDS:
                break
    return pool


def _apart(pool: dict[str, int], form: Form, encode: Encode) -> dict[str, int]:
    """The words that keep their token beside every other; of two that do not, the one with more quarrels goes."""
    while quarrels := _quarrels(pool, form, encode):
        while quarrels:
            worst = Counter(word for pair in quarrels for word in set(pair)).most_common(1)[0][0]
            quarrels = [pair for pair in quarrels if worst not in pair]
            pool = {word: token for word, token in pool.items() if word != worst}
    return pool


def _quarrels(pool: dict[str, int], form: Form, encode: Encode) -> list[tuple[str, str]]:
    """Pairs of words that, in one order or the other, are not their two tokens."""

    def holds(row: list[str]) -> bool:
        return encode(form.text(row)) == [pool[word] for word in row]

    pairs = []
    for word in pool:
        if not holds([part for other in pool for part in (word, other)] + [word]):
            pairs += [(word, other) for other in pool if not holds([word, other, word])] or [(word, word)]
    return pairs


def open_tokenizer(path: str, wanted_by: str) -> tuple[Any, str]:
    """The tokenizer, which neither cuts nor pads, and the SHA-256 of its file.

    Raises UsageError without the library (`wanted_by` begins the sentence), and for a file that is none.
    """
    try:
        from tokenizers import Tokenizer  # an optional extra
    except ImportError:
        raise UsageError(
            f"{wanted_by} needs the library tokenizers; install it with pip install 'goodput-bench[tokenizers]'."
        ) from None
    try:
        stored = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"No tokenizer '{path}': {why}; give the path of a tokenizer.json.") from None
    try:
        tokenizer = Tokenizer.from_buffer(stored)
    except Exception as error:  # noqa: BLE001  # the library raises Exception itself
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(f"'{path}' is not a tokenizer.json of Hugging Face tokenizers: {first}.") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, hashlib.sha256(stored).hexdigest()


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
    pool: TokenPool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", load(self.tokenizer, special=self.special))

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
