"""Experts: how many tokens each needs to be bound by arithmetic, and what sending the tokens there costs.

Sources: DeepSeek-V3 technical report, section 3.4; "LLMs Serving Techniques I" (S. Feng), the slide of its roofline;
"Insights into DeepSeek-V3" for the traffic.

Attention and experts on different GPUs: micro-batches go to and fro, and hide the transfers.

Source: MegaScale-Infer, arXiv 2504.02263 (the total time of a step, and the number of micro-batches).
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
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


@dataclass(frozen=True, slots=True)
class PingPong:
    """A step of `layers` layers: `attention_s` and `experts_s` of a micro-batch, `transfer_s` each way."""

    attention_s: float
    experts_s: float
    transfer_s: float
    layers: int

    @property
    def slower_s(self) -> float:
        """Seconds of the slower side."""
        return max(self.attention_s, self.experts_s)

    @property
    def least(self) -> float:
        """Micro-batches from which on transfers are hidden: 2 (1 + transfer / slower side)."""
        return 2 * (1 + self.transfer_s / self.slower_s)

    def formula_s(self, micro_batches: int) -> float:
        """Seconds of a step by the formula: one pass, and the slower side for all others."""
        once_s = self.attention_s + self.experts_s + 2 * self.transfer_s
        return once_s + self.slower_s * (micro_batches * self.layers - 1)

    def simulated_s(self, micro_batches: int) -> float:
        """Seconds of a step, event by event: each side serves micro-batches as they come."""
        waiting = [(0.0, number, 0) for number in range(micro_batches)]  # (arrival, micro-batch, visits so far)
        heapify(waiting)
        free_s, end_s = [0.0, 0.0], 0.0  # attention, experts
        service_s = (self.attention_s, self.experts_s)
        while waiting:
            at_s, number, visits = heappop(waiting)
            side = visits % 2
            free_s[side] = max(at_s, free_s[side]) + service_s[side]
            end_s = free_s[side] + self.transfer_s
            if visits + 1 < 2 * self.layers:
                heappush(waiting, (end_s, number, visits + 1))
        return end_s

    def busy_share(self, micro_batches: int) -> float:
        """Share of the step in which the slower side works: the throughput, of what is possible at most."""
        return micro_batches * self.layers * self.slower_s / self.simulated_s(micro_batches)
