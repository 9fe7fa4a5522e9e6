"""How many output tokens an answer has, and how many each of its token events holds. Chunks are not tokens.

The rules, best first: usage on every chunk (exact for each event); usage once (exact in the sum); a tokenizer after
the run, the server's or one that the user names; the number of token events. A count is used only where the answer
can have so many tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

from backends.client import message
from backends.client.framing import Stream
from harness.api import CountedBy

LARGEST = (1 << 63) - 1  # a whole number of the tables
CHARACTER_BYTES = 4
"""A character has at most so many bytes, and no token of a text less than one."""
HIDDEN_TOKENS = 16
"""Tokens of an answer without text or event of their own: marks of its format, of a tool call, of its end."""


class Counted(NamedTuple):
    """Event `which[i]` of the stream is a token event of `token_n[i]` tokens, by the rule `by`.

    `refused_tokens` is the server's count where the answer cannot have so many.
    """

    which: list[int]
    token_n: list[int]
    by: CountedBy
    refused_tokens: int | None = None


def count(stream: Stream, requested_tokens: int | None = None) -> Counted:
    """The token events of a stream and their tokens; the sum is that of the server, where it is plausible."""
    found = _by_server(stream)
    usage = stream.usage.get("completion_tokens")
    claimed_tokens = max(0 if found.by == "events" else sum(found.token_n), usage if type(usage) is int else 0)
    if requested_tokens is None:
        reasoning = message.inside(stream.usage.get("completion_tokens_details")).get("reasoning_tokens")
        most_tokens = (message.whole(reasoning) or 0) + most(sum(map(len, stream.text)), stream.events)
    else:  # special tokens leave no text; a server may count the one that ends an answer, and be off by 1 %
        most_tokens = requested_tokens + 1 + requested_tokens // 100
    if claimed_tokens <= most_tokens:
        return found
    which = [i for i, text in enumerate(stream.text) if text]
    return Counted(which, [1] * len(which), "events", min(claimed_tokens, LARGEST))


def most(characters: int, events: int = 0) -> int:
    """More tokens than this cannot have been in a text of so many characters and its events."""
    return CHARACTER_BYTES * characters + events + HIDDEN_TOKENS


def _by_server(stream: Stream) -> Counted:
    """By the server's own count where it is reported, else one token an event."""
    total = message.whole(stream.usage.get("completion_tokens"))
    if is_continuous(stream):
        return _continuous(stream, total)
    which = [i for i, text in enumerate(stream.text) if text]
    if not total:  # a server that counts 0 tokens of some text has not counted
        return Counted(which, [1] * len(which), "events" if which or total is None else "usage")
    return Counted(which, share(total, [len(stream.text[i]) for i in which]), "usage")


def is_continuous(stream: Stream) -> bool:
    """Whether usage came with every token as it was made, rather than at the end or as zeros."""
    counted = [n for n, text in zip(stream.counted, stream.text, strict=True) if text]
    if not counted:  # tokens that decode to nothing: growing usage alone tells them
        return any(n and i != stream.finish_at for i, n in enumerate(stream.counted))
    known = [n for n in stream.counted if n is not None]
    return bool(
        None not in counted
        and counted[0]
        and stream.finish_at != 0
        and all(a <= b for a, b in zip(known, known[1:], strict=False))
    )


def _continuous(stream: Stream, total: int | None) -> Counted:
    which, token_n, before = [], [], 0
    for i, (text, n) in enumerate(zip(stream.text, stream.counted, strict=True)):
        grown = (n or before) - before
        if text or grown:
            which.append(i)
            token_n.append(grown)
            before += grown
    if total is not None and total > before and token_n:
        token_n[-1] += total - before  # what the last usage tells beyond the events came with or after the last
    return Counted(which, token_n, "continuous usage")


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares of `total` in proportion to `weights`, by largest remainder; their sum is `total`.

    One each where there are as many as `total`. Equal weights where all are 0. Ties go to the earlier.
    """
    if len(weights) == total or not weights:
        return [1] * len(weights)
    if not (whole := sum(weights)):
        weights, whole = [1] * len(weights), len(weights)
    shares = [total * weight // whole for weight in weights]
    rest = sorted(range(len(weights)), key=lambda i: -(total * weights[i] % whole))
    for i in rest[: total - sum(shares)]:
        shares[i] += 1
    return shares
