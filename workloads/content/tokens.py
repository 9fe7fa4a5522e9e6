"""Random token ids: an exact count, equal blocks for equal prefix ids, the same in every process."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.api import Request

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step of SplitMix64
_WORD = (1 << 64) - 1
_PREFIX, _OWN = 1, 2

BUST_TOKENS = 32
"""Leading tokens of a request's own with `bust`: two of the usual blocks of 16."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids uniform over the vocabulary, drawn from `seed`; lengths are in tokens.

    Token j of block b of a prefix depends on (seed, b, j) and nothing else; a token of the request's own on
    (seed, request id, position). So neither order nor process matters, and no generator is built per request.
    With `bust` the first 32 tokens of every prompt are its own, so that no prefix cache finds anything: lengths stay,
    and `prefix_ids` stay in the tables, but nothing is shared (stated in `facts`).
    Source: the counter-based generator SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """

    seed: int = 0
    bust: bool = False

    @property
    def facts(self) -> dict[str, object]:
        return {"content": "random token ids", **busted(self.bust)}

    def token_ids(self, request: Request, vocab_size: int, tokens: int | None = None) -> np.ndarray:
        """(T,) int64 in [0, vocab_size), T = request.prompt_tokens or `tokens`."""
        count = request.prompt_tokens if tokens is None else tokens
        if not 1 <= vocab_size <= 1 << 32:
            raise ValueError(f"vocab_size must be between 1 and 2**32, got {vocab_size}.")
        block = request.prefix_block_tokens
        shared = min(count, block * len(request.prefix_ids))
        counters = np.empty(count, dtype=np.uint64)
        if shared:
            keys = _keys(_key(self.seed, _PREFIX), request.prefix_ids)
            within = np.arange(block, dtype=np.uint64) * np.uint64(_GOLDEN)
            counters[:shared] = np.add.outer(keys, within).ravel()[:shared]
        own_key = np.uint64(_key(self.seed, _OWN, request.id))
        counters[shared:] = own_key + np.arange(shared, count, dtype=np.uint64) * np.uint64(_GOLDEN)
        if self.bust:
            head = min(BUST_TOKENS, count)
            counters[:head] = own_key + np.arange(head, dtype=np.uint64) * np.uint64(_GOLDEN)
        upper = mix(counters) >> np.uint64(32)  # their upper 32 bits, scaled to [0, vocab_size)
        return np.asarray((upper * np.uint64(vocab_size)) >> np.uint64(32)).astype(np.int64)


def busted(bust: bool) -> dict[str, object]:
    """The facts of a content with `bust`."""
    note = f"the first {BUST_TOKENS} tokens of every prompt are its own: prefix_ids are named, but nothing is shared"
    return {"bust": note} if bust else {}


def _key(*parts: int, start: int = 0) -> int:
    """One 64-bit key of several whole numbers of any size or sign, behind those that gave the key `start`."""
    key = start
    for part in parts:
        while True:
            key = _mix_int((key + _GOLDEN) ^ (part & _WORD))
            part >>= 64
            if part in (0, -1):
                break
    return key


def _keys(before: int, ids: Sequence[int]) -> np.ndarray:
    """(n,) the keys of what is before and one id each, as `_key` makes them; at once, for prompts have thousands."""
    try:
        words = np.array(ids, np.int64).astype(np.uint64)
    except OverflowError:  # beyond what a schedule holds
        return np.array([_key(i, start=before) for i in ids], dtype=np.uint64)
    return mix(np.uint64((before + _GOLDEN) & _WORD) ^ words)


def _mix_int(z: int) -> int:
    z &= _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def mix(z: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 on (T,) counters, wrapping at 2**64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
