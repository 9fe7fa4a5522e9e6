"""Linear: a fixed time per step plus a time per token, per decode and per cached token.

By default every step takes 10 ms: constants that are not given are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bounds import NotNegative, check

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds of a step: base + decode_seq * sequences + context_token * cached tokens that decodes read.

    Each piece of n prompt tokens after p stored ones adds prefill_token * n + prefill_token_squared *
    ((p+n)^2 - p^2).

    A prompt costs the same in one piece or in many, but for the base of each step. front_end is not part of a step:
    the simulator adds it before a request reaches its scheduler.
    """  # fmt: skip

    base_s: NotNegative = 0.01
    prefill_token_s: NotNegative = 0.0
    decode_seq_s: NotNegative = 0.0
    context_token_s: NotNegative = 0.0
    prefill_token_squared_s: NotNegative = 0.0
    front_end_s: NotNegative = 0.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def front_s(self) -> float:
        """Seconds before a request reaches its scheduler."""
        return self.front_end_s

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        time_s = self.decode_s(decode_seqs, context_tokens)
        if prefills:
            tokens = sum(n for n, _ in prefills)
            squares = sum(n * (n + 2 * p) for n, p in prefills)
            time_s += self.prefill_token_s * tokens + self.prefill_token_squared_s * squares
        return time_s

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        return self.base_s + self.decode_seq_s * decode_seqs + self.context_token_s * context_tokens

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        return self.base_s + self.decode_seq_s * decode_seqs, self.context_token_s

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        times: np.ndarray = self.base_s + self.decode_seq_s * decode_seqs + self.context_token_s * context_tokens
        return times
