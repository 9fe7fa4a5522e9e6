"""Decodes whose time is a straight line in the cached tokens that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class DecodeLine:
    """The times of decodes alone, of a latency model that has their line for every number of sequences."""

    # abc and linear write the two methods themselves: what is compiled cannot inherit from what is not
    __slots__ = ()

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        raise NotImplementedError

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        base_s, slope_s = self.decode_line(decode_seqs)
        return base_s + slope_s * context_tokens

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        base_s, slope_s = self.decode_line(decode_seqs)
        times: np.ndarray = base_s + slope_s * context_tokens
        return times
