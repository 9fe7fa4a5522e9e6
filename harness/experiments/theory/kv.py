"""KV in memory and on links: sizes, slots, and what handing it to another replica takes.

Sources: Zhong et al., DistServe, OSDI 2024, section 3.3 and 6.3; P/D-Serve, arXiv 2408.08147 (transfer in one piece).

When loading stored KV beats computing it again.

Source: Mooncake, FAST 2025, equation 2.
"""

import re
from dataclasses import dataclass

from harness.errors import UsageError

_LINK = re.compile(r"(\d+(?:\.\d+)?)\s*([GMT])(bps|bit/s|Bps|B/s)")
_SCALE = {"M": 1e6, "G": 1e9, "T": 1e12}


def link_bytes_per_s(text: str) -> float:
    """Bytes per second of '25Gbps' (bits) or '600GBps' (bytes). Raises UsageError."""
    match = _LINK.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"A link is a rate such as 25Gbps (bits) or 600GBps (bytes), got '{text}'.")
    return float(match[1]) * _SCALE[match[2]] / (8 if match[3].startswith("b") else 1)


@dataclass(frozen=True, slots=True)
class Link:
    """Hand-off of prompts of `kv_bytes` at `rate_rps` over a link."""

    name: str
    bytes_per_s: float
    kv_bytes: float
    rate_rps: float

    @property
    def transfer_s(self) -> float:
        """Seconds of one hand-off that has the link for itself."""
        return self.kv_bytes / self.bytes_per_s

    @property
    def busy(self) -> float:
        """Share of the link in use; above 1 hand-offs queue without end."""
        return self.rate_rps * self.transfer_s

    def hidden(self, prefill_s: float) -> bool:
        """Whether hand-offs, layer by layer, end with the prefill of `prefill_s` seconds that makes them."""
        return self.busy < 1 and self.transfer_s <= prefill_s


def segmented_s(kv_bytes: float, segments: int, control_s: float, link: float) -> float:
    """Seconds of a transfer in `segments` pieces, each of which costs `control_s` besides its bytes."""
    return segments * control_s + kv_bytes / link


def segments(tokens: int, block_tokens: int | None, layers: int) -> int:
    """Pieces of a transfer: one per block and layer, or one per layer where KV lies in one piece (None)."""
    return layers * (1 if block_tokens is None else -(-tokens // block_tokens))


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
