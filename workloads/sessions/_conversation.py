"""What all conversations share: each prompt is the history so far and something new."""

from collections.abc import Callable

import numpy as np

from workloads.mixed import Streams, Tasks, starts_of

BLOCK_TOKENS = 64
"""Tokens of a named block: small enough to share nearly all of a history, large enough to keep a schedule small."""


def law(known: tuple[float, ...], quantiles: tuple[float, ...], ranks: np.ndarray) -> np.ndarray:
    """Values at ranks in [0, 1), log-linear between the quantiles at the `known` ranks; of 0 as of a hundredth."""
    return np.asarray(np.exp(np.interp(ranks, known, np.log(np.maximum(quantiles, 0.01)))))


def conversations(
    sizes: np.ndarray,
    streams: Streams,
    think_s: Callable[[int], np.ndarray],
    truncate_at_tokens: int | None,
    block_tokens: int,
) -> Tasks:
    """Conversations of `sizes` (tasks,) turns; `think_s(n)` draws n times from an answer to the next turn.

    A prompt is the history (earlier new parts and answers) and the new part. One that would be longer
    than `truncate_at_tokens` drops the oldest turns, each with its answer, until it fits; a new part that is too
    long alone is sent alone. What was dropped stays dropped. A prompt starts with the same named blocks as the one
    before it in its conversation, unless something was dropped in between.
    """
    first = starts_of(sizes)
    begin = np.repeat(first, sizes)  # (M,) first row of the conversation of each row
    rows = np.arange(len(begin))
    new, answer = streams.pairs(len(rows))
    before = np.cumsum(new + answer) - (new + answer)  # (M,) tokens before each row, over all conversations
    oldest = _oldest_kept(before, new, begin, truncate_at_tokens)
    prompt = before - before[oldest] + new
    delay_s = np.zeros(len(rows))
    delay_s[rows > begin] = think_s(int((rows > begin).sum()))
    blocks = np.where(np.repeat(sizes > 1, sizes), -(-prompt // block_tokens), 0)  # one alone shares nothing
    return Tasks(
        sizes,
        rows - begin,
        prompt,
        answer,
        delay_s,
        rows - 1,
        (rows > begin).astype(np.int64),
        blocks,
        _first_block(oldest, blocks, begin, first),
    )


def _oldest_kept(before: np.ndarray, new: np.ndarray, begin: np.ndarray, limit: int | None) -> np.ndarray:
    """(M,) row of the oldest turn that the prompt of each row still holds."""
    if limit is None:
        return begin
    fits = np.searchsorted(before, before + new - limit)  # the first row after which all together fit
    return np.asarray(np.maximum.accumulate(np.clip(fits, begin, np.arange(len(before)))))


def _first_block(oldest: np.ndarray, blocks: np.ndarray, begin: np.ndarray, first: np.ndarray) -> np.ndarray:
    """(M,) number of the first block: prompts that start at the same turn share it, others have blocks of their own."""
    last = np.ones(len(oldest), bool)  # of the prompts that start at its oldest turn
    last[:-1] = (oldest[1:] != oldest[:-1]) | (begin[1:] != begin[:-1])
    used = np.cumsum(np.where(last, blocks, 0))
    before = np.concatenate(([0], used[:-1]))
    return np.asarray(before - before[begin]) if len(first) else before[:0]
