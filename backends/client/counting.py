"""How many output tokens an answer has, how many each of its token events holds, and how many were never streamed.

The rules, best first: usage on every chunk (exact for each event); usage once (exact in the sum); a tokenizer after
the run, the server's or one that the user names; the number of token events. A count is used only where the answer
can have so many tokens. Chunks are not tokens, and not all tokens come in chunks: see `_unseen`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from backends.client import shapes
from backends.client.framing import Stream
from backends.client.shapes import DATA
from harness import untrusted
from harness.api import CountedBy
from harness.errors import BackendError

if TYPE_CHECKING:
    from backends.client.control import ControlClient


LARGEST = (1 << 63) - 1  # a whole number of the tables
CHARACTER_BYTES = 4
"""A character has at most so many bytes, and no token of a text less than one."""
HIDDEN_TOKENS = 16
"""Tokens of an answer without text or event of their own: marks of its format, of a tool call, of its end."""

_WORD = re.compile(r"[^\w\s]*[^\W\u0e00-\U0010ffff]+|[^\w\s]+|[\u0e00-\U0010ffff]")
"""What a tokenizer never joins with what follows: a word with the marks before it, marks, a character of a script that
is written without spaces. Source: the splitting of text before byte-pair encoding in GPT-2 and its successors."""
WORD_TOKENS, TOKEN_CHARACTERS = 2.5, 2
"""Most tokens that a text has for each such word, and fewest characters for each token, of a natural language or a
program: English has 1.3 and 4.5, Finnish 2.3 and 3."""
ONE_TOKEN_SHARE = 0.95
"""Share of the events that hold no more than one word, from which on an event is one token: with several tokens in an
event, more than one in ten holds parts of two words (half of the pairs of tokens in German, 4 of 5 in English)."""
FEW_EVENTS = 4
"""Of fewer events nothing is concluded from such a share."""
HELD_BACK = 1.2
"""Tokens an event has on average up to which a server that streams single tokens merely held some back, until the
characters were whole: 1.1 of a byte-level vocabulary (llama.cpp, vLLM)."""
END_MARKS = 2
"""Tokens that a server may count at the end of an answer."""
AT_ONCE = 8  # questions to the server under way
Counter: TypeAlias = "tuple[CountedBy, Callable[[str], Awaitable[int | None]]]"
"""A rule, and the number of tokens of a text without special tokens; None if unknown."""
MOST_CHARACTERS = 1 << 28  # texts kept; answers beyond them stay counted by events


class Counted(NamedTuple):
    """Event `which[i]` of the stream is a token event of `token_n[i]` tokens, by the rule `by`.

    `refused_tokens` is the server's count where the answer cannot have so many. `unseen` tokens beside those of the
    events were counted by the server and never streamed.
    """

    which: list[int]
    token_n: list[int]
    by: CountedBy
    refused_tokens: int | None = None
    unseen: int = 0


def count(stream: Stream, requested_tokens: int | None = None) -> Counted:
    """The token events of a stream and their tokens; with those unseen, the sum is that of the server if plausible."""
    counted, usage = _by_server(stream), stream.usage
    counted_tokens = 0 if counted.by == "events" else sum(counted.token_n) + counted.unseen - usage.beside
    if requested_tokens is None:
        most_tokens = (usage.reasoning or 0) + most(sum(map(len, stream.text)), stream.events)
    else:  # special tokens leave no text; a server may count the one that ends an answer, and be off by 1 %
        most_tokens = requested_tokens + 1 + requested_tokens // 100
    if max(counted_tokens, usage.claimed) <= most_tokens:
        return counted
    which = [i for i, text in enumerate(stream.text) if text]
    return Counted(which, [1] * len(which), "events", min(max(counted_tokens, usage.claimed), LARGEST))


def rounds(stream: Stream, counted: Counted) -> Counted:
    """The same with one event for a token of each choice: those between two of one choice are one, as of its step."""
    which: list[int] = []
    token_n: list[int] = []
    present: set[int] = set()
    for i, tokens in zip(counted.which, counted.token_n, strict=True):
        if not which or (stream.choices[i] in present and stream.end[i] > stream.end[which[-1]]):
            present.clear()
            which.append(i)
            token_n.append(0)
        present.add(stream.choices[i])
        token_n[-1] += tokens
    return counted._replace(which=which, token_n=token_n)


def most(characters: int, events: int = 0) -> int:
    """More tokens than this cannot have been in a text of so many characters and its events."""
    return CHARACTER_BYTES * characters + events + HIDDEN_TOKENS


def _by_server(stream: Stream) -> Counted:
    """By the server's own count where it is reported, else one token an event."""
    which = [i for i, text in enumerate(stream.text) if text]
    total = (stream.usage.completion or 0) + stream.usage.beside
    if is_continuous(stream):
        return _continuous(stream, total)
    if token_n := _of_each(stream):
        token_n[-1] += max(0, total - sum(token_n))
        return Counted(which, token_n, "continuous usage")
    if not total:  # a server that counts 0 tokens of some text has not counted
        return Counted(which, [1] * len(which), "events" if which or stream.usage.completion is None else "usage")
    unseen = _unseen(stream, which, total)
    streamed = share(total - unseen, [len(stream.text[i]) for i in which])
    return Counted(which, streamed, "usage", unseen=unseen)


def is_continuous(stream: Stream) -> bool:
    """Whether usage came with every token as it was made, rather than at the end or as zeros."""
    counted = [n for n, text in zip(stream.counted, stream.text, strict=True) if text]
    if not counted:  # tokens that decode to nothing: growing usage alone tells them
        return any(n and i != stream.finish_at for i, n in enumerate(stream.counted))
    reported = [n for n in stream.counted if n is not None]
    return bool(
        None not in counted
        and counted[0]
        and stream.finish_at != 0
        and all(a <= b for a, b in zip(reported, reported[1:], strict=False))
        and not _of_each(stream)
    )


def _of_each(stream: Stream) -> list[int]:
    """The counts of token events where each is that of its own event alone; empty where they are no such counts.

    A count of all tokens so far grows, and is not far below the number of events or of words.
    """
    texts = [text for text in stream.text if text]
    counts = [n for n, text in zip(stream.counted, stream.text, strict=True) if text and n]
    grows = all(a < b for a, b in zip(counts, counts[1:], strict=False))
    if len(counts) < max(FEW_EVENTS, len(texts)) or grows:
        return []
    return counts if 2 * max(counts) < max(len(texts), sum(map(_words, texts))) else []


def _continuous(stream: Stream, total: int) -> Counted:
    which, token_n, before = [], [], 0
    for i, (text, n) in enumerate(zip(stream.text, stream.counted, strict=True)):
        grown = (n or before) - before
        if text or grown:
            which.append(i)
            token_n.append(grown)
            before += grown
    if total > before and token_n:
        token_n[-1] += total - before  # what the last usage tells beyond the events came with or after the last
    unseen = unseen_left = _hidden(stream, which, sum(token_n)) if token_n else 0
    if token_n and not unseen and token_n[0] > _room([stream.text[which[0]]]) + HIDDEN_TOKENS:
        unseen = unseen_left = token_n[0] - max(1, _words(stream.text[which[0]]))
    for i, n in enumerate(token_n):  # tokens that were made unseen came before the event that counts them
        cut = min(unseen_left, max(0, n - 1))
        token_n[i], unseen_left = n - cut, unseen_left - cut
    return Counted(which, token_n, "continuous usage", unseen=unseen - unseen_left)


def _unseen(stream: Stream, which: Sequence[int], total: int) -> int:
    """How many of the tokens that the server counts it never streamed.

    Where usage names them (reasoning, audio, predictions that were refused) they are those of which nothing came, or
    less than they could be, as of a summary. Else the text decides. Events of one word each are single tokens,
    and what is counted beyond them is unseen; events of several words are several tokens each, as long as the text has
    room for the count.
    """
    if not which:
        return total
    unseen = _hidden(stream, which, total)
    texts = [stream.text[i] for i in which]
    visible, events = total - unseen - stream.silent, len(which)
    if visible <= HELD_BACK * events + END_MARKS or any(DATA in text for text in texts):
        return unseen
    words = [_words(text) for text in texts]
    single = events >= FEW_EVENTS and sum(n <= 1 for n in words) >= ONE_TOKEN_SHARE * events
    if single or visible > _room(texts) + HIDDEN_TOKENS:
        return unseen + visible - (events if single else max(events, sum(words)))
    return unseen


def _hidden(stream: Stream, which: Sequence[int], total: int) -> int:
    """The tokens that usage names and of which no text came; never more than the text leaves."""
    usage = stream.usage
    reported = usage.reasoning or usage.beside
    if stream.thinking:
        streamed = max(len(stream.thinking), sum(map(_words, stream.thinking)))
        reported = reported - streamed if reported > _room(stream.thinking) else 0
    if usage.wordless and not any(DATA in stream.text[i] for i in which):
        reported += usage.wordless
    if not reported:
        return 0
    return max(0, min(reported, total - max(len(which), sum(_words(stream.text[i]) for i in which))))


def _words(text: str) -> int:
    return len(_WORD.findall(text))


def _room(texts: Sequence[str]) -> float:
    """Most tokens that texts of a natural language or a program have."""
    return max(WORD_TOKENS * sum(map(_words, texts)), sum(map(len, texts)) / TOKEN_CHARACTERS)


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares of `total` in proportion to `weights`, by largest remainder; their sum is `total`.

    One each where there are as many as `total`. Equal weights where all are 0. Ties go to the earlier.
    """
    if len(weights) == total or not weights:
        return [1] * len(weights)
    if not (weight_sum := sum(weights)):
        weights, weight_sum = [1] * len(weights), len(weights)
    shares = [total * weight // weight_sum for weight in weights]
    rest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % weight_sum))
    for i in rest[: total - sum(shares)]:
        shares[i] += 1
    return shares


async def tokenizer(control: ControlClient, model: str) -> Callable[[str, str], Awaitable[object]] | None:
    """Return what asks `/tokenize` of the server in the form that it answers to (None: it has none).

    It takes a text and its purpose; its answer is None where the server refuses.
    """

    async def tokens(text: str, purpose: str, form: str, **fields: object) -> object:
        status, answer = await control.fetch(url, purpose, {form: text, **fields})
        return answer if status == 200 else None

    url = control.beside("/tokenize")
    for ask in (
        partial(tokens, form="prompt", model=model, add_special_tokens=False),
        partial(tokens, form="content", add_special=False),
    ):
        if tokenized(await ask("one two", "tokenizer")):
            return ask
    return None


async def by_server(control: ControlClient, model: str) -> list[Counter]:
    """Return the counter that asks `/tokenize` of the server; none without one."""
    if (ask := await tokenizer(control, model)) is None:
        return []

    async def tokens(text: str) -> int | None:
        return tokenized(await ask(text, "tokens of an answer"))

    return [("server tokenizer", tokens)]


def local(path: str) -> Counter:
    """Return the counter by the tokenizer of a file, or of a folder. Raises UsageError where there is none."""
    file = Path(path, "tokenizer.json") if Path(path).is_dir() else Path(path)
    library, _ = untrusted.open_tokenizer(str(file), "Counting by a tokenizer")

    async def tokens(text: str) -> int:
        return len(library.encode(text, add_special_tokens=False).ids)

    return "tokenizer", tokens


@dataclass(slots=True)
class Recount:
    """The texts of answers that were counted by events, one per token event."""

    texts: dict[int, list[str]] = field(default_factory=dict)
    characters: int = 0

    def keep(self, request_id: int, texts: Sequence[str]) -> None:
        """Keep the texts of an answer, while there is room."""
        size = sum(map(len, texts))
        if texts and self.characters + size <= MOST_CHARACTERS:
            self.characters += size
            self.texts[request_id] = list(texts)

    async def count(self, counters: Sequence[Counter]) -> Mapping[int, tuple[CountedBy, Sequence[int]]]:
        """By request id: the rule, and the tokens of each event. The first counter that knows a text counts it.

        A counter that fails is not used again: each answer would wait for the timeout of a server that is gone.
        """
        gate, alive = asyncio.Semaphore(AT_ONCE), list(counters)

        async def one(request_id: int, texts: list[str]) -> tuple[int, tuple[CountedBy, Sequence[int]]] | None:
            async with gate:
                counted = await _first(alive, "".join(texts))
            if counted is None:
                return None
            by, tokens = counted
            return request_id, (by, share(tokens, [len(text) for text in texts]))

        recounts = await asyncio.gather(*(one(request_id, texts) for request_id, texts in self.texts.items()))
        return dict(item for item in recounts if item is not None)


async def _first(counters: list[Counter], text: str) -> tuple[CountedBy, int] | None:
    for counter in list(counters):
        try:
            by, count_tokens = counter
            tokens = await count_tokens(text)
        except BackendError:  # the server is gone, or does not answer: another counter may know
            if counter in counters:
                counters.remove(counter)
            continue
        if tokens and tokens <= most(len(text)):
            return by, tokens
    return None


def token_ids(answer: object) -> list[int] | None:
    """The ids in an answer of `/tokenize`; None where it has none."""
    tokens = answer.get("tokens") if isinstance(answer, dict) else answer
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        return None
    return tokens


def tokenized(found: object) -> int | None:
    """The number of tokens in an answer of `/tokenize`."""
    if isinstance(found, list):
        return len(found)
    if not isinstance(found, dict):
        return None
    tokens = found.get("tokens")
    count = shapes.whole(found.get("count"))
    return count if count is not None else len(tokens) if isinstance(tokens, list) else None
