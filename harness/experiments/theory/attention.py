"""Decode attention of unequal lengths over the work slots of a GPU: whole heads of requests, or chunks of equal size.

Source: FlashInfer, `include/flashinfer/attention/scheduler.cuh` (the smallest chunk whose number fits the grid). A
chunk takes as long as it has KV pages; the merge of chunks costs nothing here.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from math import ceil
from typing import Literal

LEAST_CHUNK_TOKENS = 128
LengthShape = Literal["constant", "uniform", "zipf"]


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
            if sum(ceil(one / middle) for one in self.pages) * self.heads > self.slots:
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
        return [min(size, one - begin) for one in self.pages for begin in range(0, one, size)]

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
        for one in (one for one in items for _ in range(self.heads)):
            heapreplace(free, free[0] + one)
        return max(free)


def share_needed(reduction: float, speed_up: float) -> float | None:
    """The share of attention in a step with which that speed-up of it saves `reduction` of the step; None: no share.

    reduction = share (1 - 1 / speed_up).
    """
    if speed_up <= 1 or (share := reduction / (1 - 1 / speed_up)) > 1:
        return None
    return share
