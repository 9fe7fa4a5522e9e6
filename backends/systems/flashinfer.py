"""FlashInfer: attention over KV of unequal lengths in chunks that keep all thread blocks of a GPU busy.

Source: Ye et al., FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving, MLSys 2025;
include/flashinfer/attention/scheduler.cuh. It claims an ITL that is 29 % to 69 % lower than that of compiler backends.
`bench theory attention` has the makespan with and without its plan.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil
from typing import Literal

from harness.api import Row

LEAST_CHUNK_TOKENS = 128
REDUCTIONS = (0.29, 0.69)
"""Published reductions of ITL against backends of compilers (FlashInfer, MLSys 2025, abstract)."""
LengthShape = Literal["constant", "uniform", "zipf"]


def attention(
    lengths: LengthShape = "zipf", requests: int = 16, length_tokens: int = 1024,
    longest_tokens: int = 4224, heads: int = 8, slots: int = 264, page_tokens: int = 16, seed: int = 0,
) -> list[Row]:  # fmt: skip
    """Compute the makespan of decode attention of unequal lengths: whole requests, or chunks of equal size.

    In KV pages, over `slots` thread blocks at once (two on each of 132 SMs of an H100). Unbalanced: one work item per
    request and KV head. Balanced: chunks as FlashInfer plans them, the smallest of 128 tokens and more such that all
    run at once; merging them is free. Lengths are length_tokens, uniform from half of it, or longest_tokens over the
    rank (zipf). The last columns are the share of attention in a step with which that gain explains the published
    reductions of ITL by 29 % and 69 %; none ('-'): balance alone cannot.

    Source: FlashInfer, MLSys 2025, abstract, and include/flashinfer/attention/scheduler.cuh.
    """
    tokens = lengths_of(lengths, requests, length_tokens, longest_tokens, seed)
    plan = Decodes(tuple(-(-length // page_tokens) for length in tokens), heads, slots, page_tokens)
    shares: Row = {f"cut_{cut:.0%}_share": share_needed(cut, plan.speed_up) for cut in REDUCTIONS}
    row: Row = {
        "longest": max(plan.pages), "chunk": plan.chunk_pages, "unbalanced": plan.unbalanced_pages,
        "balanced": plan.balanced_pages, "ideal": plan.ideal_pages, "gain_ratio": plan.speed_up,
        "over_ideal_ratio": plan.balanced_pages / plan.ideal_pages,
    }  # fmt: skip
    return [row | shares]


def lengths_of(shape: LengthShape, requests: int, length: int, longest: int, seed: int) -> list[int]:
    """Tokens of each request: `length`; uniform from half of it to all, by `seed`; or of rank k, `longest` / k."""
    if shape == "constant":
        return [length] * requests
    if shape == "uniform":
        rng = random.Random(seed)
        return [rng.randint(max(1, length // 2), length) for _ in range(requests)]
    return [ceil(longest / rank) for rank in range(1, requests + 1)]


@dataclass(frozen=True, slots=True)
class Decodes:
    """The KV pages of each request, `heads` KV heads of each, and as many work slots as thread blocks run at once."""

    pages: tuple[int, ...]
    heads: int
    slots: int
    page_tokens: int = 16

    @property
    def ideal_pages(self) -> float:
        """Pages a slot reads if all slots read as much."""
        return sum(self.pages) * self.heads / self.slots

    @property
    def chunk_pages(self) -> int | None:
        """The smallest chunk with which all chunks fit the slots; None where whole requests fill them already."""
        if len(self.pages) * self.heads >= self.slots:
            return None
        low, high = max(1, LEAST_CHUNK_TOKENS // self.page_tokens), max(self.pages)
        while low < high:
            middle = (low + high) // 2
            if sum(ceil(pages / middle) for pages in self.pages) * self.heads > self.slots:
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def chunks(self) -> list[int]:
        """Pages of each chunk of one head, in the order of their requests."""
        size = self.chunk_pages
        if size is None:
            return list(self.pages)
        return [min(size, pages - begin) for pages in self.pages for begin in range(0, pages, size)]

    @property
    def unbalanced_pages(self) -> int:
        """The makespan of one work item per request and head."""
        return self._makespan(self.pages)

    @property
    def balanced_pages(self) -> int:
        """The makespan of the chunks."""
        return self._makespan(self.chunks)

    @property
    def speed_up(self) -> float:
        """How many times as long attention takes without balance."""
        return self.unbalanced_pages / self.balanced_pages

    def _makespan(self, items: Sequence[int]) -> int:
        """Of all heads, each item to the slot that is free first, as a GPU starts its thread blocks."""
        free = [0] * self.slots
        for pages in (pages for pages in items for _ in range(self.heads)):
            heapreplace(free, free[0] + pages)
        return max(free)


def share_needed(reduction: float, speed_up: float) -> float | None:
    """The share of attention in a step with which that speed-up of it saves `reduction` of the step; None: no share.

    reduction = share (1 - 1 / speed_up).
    """
    if speed_up <= 1 or (share := reduction / (1 - 1 / speed_up)) > 1:
        return None
    return share
