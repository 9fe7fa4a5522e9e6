"""How many tokens an expert needs to be bound by arithmetic, and steps with attention and experts on different GPUs.

Sources: DeepSeek-V3 technical report, section 3.4; MegaScale-Infer, arXiv 2504.02263 (the total time of a step whose
micro-batches go to and fro and hide the transfers, and the number of micro-batches).
"""

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class ExpertMatrix:
    """One matrix of an expert, `inner` x `columns`; `element_bytes` is 1 for FP8. The defaults are DeepSeek-V3's."""

    inner: int = 7168
    columns: int = 2048
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
