"""Words that are one token each, whatever stands beside them, found by trying them out on a tokenizer.

A text of such words has as many tokens as words: exactly, by construction. Every ordered pair of them is tried, and
long random rows. For a tokenizer that splits at spaces, and for byte pair encoding over a whole text, pairs that hold
make rows that hold: the first merge across the border of two words would be made in the pair as well. For any other
kind the rows are the evidence.
"""

import random
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import chain, product
from string import ascii_lowercase

from harness.api import ExactWords

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
PARTS = (*map("".join, product("bcdfghjklmnprstvwz", "aeiou")), *ascii_lowercase)
"""Syllables and letters, for a tokenizer of so few tokens that it knows no words."""

FEWEST_WORDS, MOST_WORDS = 16, 256  # 16 words tell 16-token blocks apart by 64 bits
ROW_WORDS, ROWS = 2000, 4
AT_ONCE = 32
"""Candidates of one text; those behind a word that cannot be read from its tokens are tried again."""
LONGEST = 16
"""Most tokens of a candidate that is passed over without trying those behind it again."""
UNFIT = 4
"""A form in which the first text fails with so many first words is none of the tokenizer's."""
FORMS = (ExactWords(" ", " "), ExactWords("", " "), ExactWords("", ""))
Search = Generator[str, Sequence[int], "tuple[ExactWords, tuple[int, ...]] | None"]
"""Yields texts, takes their token ids without special ones; returns words and the ids of each, None without any."""


def search(candidates: Sequence[str]) -> Search:
    """The first form in which enough of the words hold."""
    for form in FORMS:
        usable = [word for word in candidates if form.joint or len(word) == 1]  # glued words would merge
        ids = yield from _single(usable, form)
        words = yield from _apart(ids, form)
        if len(words) < FEWEST_WORDS:
            continue
        rng, hold = random.Random(0), True  # long rows of words must be their tokens too
        for _ in range(ROWS):
            row = rng.choices(words, k=ROW_WORDS)
            hold = hold and (yield form.of(row)) == [ids[word] for word in row]
        if hold:
            return form._replace(words=tuple(words)), tuple(ids[word] for word in words)
    return None


def _single(candidates: Sequence[str], form: ExactWords) -> Generator[str, Sequence[int], dict[str, int]]:
    """Words with their token: each three times in a row, so that its tokens are those that come three times."""
    ids: dict[str, int] = {}
    first, failures = 0, 0
    while first < len(candidates) and len(ids) < MOST_WORDS and (ids or failures < UNFIT):
        tried = candidates[first : first + AT_ONCE]
        tokens = list((yield form.of(chain.from_iterable((word,) * 3 for word in tried))))
        position = read = 0
        for word in tried:
            read += 1
            period = next((n for n in range(1, LONGEST + 1) if _repeats(tokens[position : position + 3 * n], n)), None)
            if period is None:
                failures += 1
                break
            if period == 1 and tokens[position] not in ids.values() and len(ids) < MOST_WORDS:
                ids[word] = tokens[position]  # of spellings that are the same token the first
            position += 3 * period
        first += read
    return ids


def _repeats(tokens: Sequence[int], period: int) -> bool:
    return len(tokens) == 3 * period and list(tokens) == 3 * list(tokens[:period])


def _apart(ids: dict[str, int], form: ExactWords) -> Generator[str, Sequence[int], list[str]]:
    """The words that keep their token beside every other; of those that meet where a text differs, one goes."""
    words, done = list(ids), 0  # the first `done` words have been tried beside all others
    blame: Counter[str] = Counter()
    while done < len(words):
        row: list[str] = []
        for tried, word in enumerate(words[done:], done):
            if row and len(row) + 2 * (len(words) - tried) > ROW_WORDS:
                break
            row += [word, *chain.from_iterable((other, word) for other in words[tried:])]
        else:
            tried = len(words)
        tokens = yield form.of(row)
        wrong = next((i for i, word in enumerate(row) if list(tokens[i : i + 1]) != [ids[word]]), None)
        if wrong is None:
            done = tried
            continue
        met = row[wrong], *row[wrong + 1 : wrong + 2], *row[max(0, wrong - 1) : wrong]
        blame.update(set(met))
        worst = max(met, key=blame.__getitem__)  # of equals the first
        done -= words.index(worst) < done
        words.remove(worst)
    return words
