"""When loading stored KV beats computing it again.

Source: Mooncake, FAST 2025, equation 2.
"""

from dataclasses import dataclass

ATTENTION, LINEAR = 4, 22
"""FLOP of a prompt of n tokens and width d are layers * (4 n^2 d + 22 n d^2) (Mooncake; gated feed-forward)."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """A model of `layers` layers of width `hidden` with `grouped` queries to a KV head, `element_bytes` an element."""

    layers: int = 80
    hidden: int = 8192
    grouped: float = 8
    element_bytes: int = 2

    def flops(self, tokens: int) -> float:
        """FLOP of prefilling `tokens` tokens."""
        return self.layers * (ATTENTION * tokens**2 * self.hidden + LINEAR * tokens * self.hidden**2)

    def kv_bytes(self, tokens: int) -> float:
        """Bytes of KV of `tokens` tokens."""
        return self.layers * tokens * 2 * self.hidden * self.element_bytes / self.grouped

    def threshold_bytes_per_s(self, tokens: int, flops: float) -> float:
        """The link from which on loading `tokens` tokens is faster than computing them at `flops` FLOP/s."""
        return self.kv_bytes(tokens) / (self.flops(tokens) / flops)

    def times_s(self, tokens: int, flops: float, link_bytes_per_s: float) -> tuple[float, float]:
        """(load, recompute) in seconds."""
        return self.kv_bytes(tokens) / link_bytes_per_s, self.flops(tokens) / flops
