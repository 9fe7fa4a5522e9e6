"""Experts: how many tokens each needs to be bound by arithmetic, and what sending the tokens there costs.

Sources: DeepSeek-V3 technical report, section 3.4; "LLMs Serving Techniques I" (S. Feng), the slide of its roofline;
"Insights into DeepSeek-V3" for the traffic.
"""

from dataclasses import dataclass
from math import ceil, floor, inf


@dataclass(frozen=True, slots=True)
class Experts:
    """One matrix of an expert (`inner` x `columns`), `routed` of them of which a token visits `chosen`.

    `element_bytes` is 1 for FP8. The defaults are DeepSeek-V3's.
    """

    inner: int = 7168
    columns: int = 2048
    routed: int = 256
    chosen: int = 8
    element_bytes: float = 1.0

    def intensity(self, rows: float) -> float:
        """FLOP per byte of `rows` tokens times the matrix: 2MNK / (MK + NK + MN) elements."""
        k, n = self.columns, self.inner
        if rows == inf:
            return 2 * n * k / (k + n) / self.element_bytes
        return 2 * rows * n * k / (rows * k + n * k + rows * n) / self.element_bytes

    def rows_for(self, ridge: float) -> int | None:
        """The fewest tokens of an expert with at least `ridge` FLOP per byte; None where no number has."""
        if self.intensity(inf) <= ridge:
            return None
        k, n, r = self.columns, self.inner, ridge * self.element_bytes
        rows = ceil(r * n * k / (2 * n * k - r * (n + k)))
        return rows - 1 if rows > 1 and self.intensity(rows - 1) >= ridge else rows

    def tokens_for(self, rows: int) -> float:
        """Tokens in flight such that every expert gets `rows` of them."""
        return rows * self.routed / self.chosen


@dataclass(frozen=True, slots=True)
class Plan:
    """How wide experts must be spread: `rows` tokens an expert need `tokens` in flight, `width` GPUs at a local batch.

    `least` is the fewest tokens before rounding; `width` is not rounded.
    """

    mode: str
    least: int
    rows: int
    tokens: float
    width: float


def slide(experts: Experts, ridge: float, local: int, step: int = 10) -> Plan:
    """As the slide reckons: 2M FLOP per byte, so M = ridge / 2, then rounded up to a round number (`step`)."""
    least = floor(ridge / 2 * experts.element_bytes)
    rows = ceil(least / step) * step
    tokens = experts.tokens_for(rows)
    return Plan("slide", least, rows, tokens, tokens / local)


def exact(experts: Experts, ridge: float, local: int) -> Plan | None:
    """By the whole formula; None where even endless batches stay bound by memory."""
    rows = experts.rows_for(ridge)
    if rows is None:
        return None
    tokens = experts.tokens_for(rows)
    return Plan("exact", rows, rows, tokens, tokens / local)


@dataclass(frozen=True, slots=True)
class Traffic:
    """All-to-all of one layer: `tokens` of a GPU go to `targets` experts each over a link, and come back.

    Dispatch takes `sent_bytes` an element and combine `returned_bytes`. The defaults are those of "Insights into
    DeepSeek-V3": 32 tokens, 8 routed experts and the shared one, 7,000 elements, 50 GB/s.
    """

    tokens: int = 32
    targets: int = 9
    elements: int = 7000
    sent_bytes: float = 1.0
    returned_bytes: float = 2.0
    link_bytes_per_s: float = 50e9
    layers: int = 61

    @property
    def exchange_s(self) -> float:
        """Seconds of one dispatch and combine."""
        moved = (self.sent_bytes + self.returned_bytes) * self.tokens * self.targets * self.elements
        return moved / self.link_bytes_per_s

    @property
    def layer_s(self) -> float:
        """Seconds of a layer with two micro-batches that take turns: two exchanges."""
        return 2 * self.exchange_s

    @property
    def token_s(self) -> float:
        """Seconds of a token through all layers, if nothing but the link counted."""
        return self.layers * self.layer_s
