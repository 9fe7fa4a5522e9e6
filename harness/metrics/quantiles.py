"""The one percentile function: raw values, linear interpolation (numpy.percentile, as vLLM and SGLang).

The one rank correlation: whether long prompts have long answers, whatever the shape of either.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.data.lists import BLOCK, Floats, Ints

DIGITS = (42, 26, 12, 0)
"""Bits below each of the four digits by which values that are not held are counted; the first has 22 bits."""
HALF = 1 << (63 - DIGITS[0])
"""Leading bits of the values below 0."""
HELD = 1 << 22
"""Values from which on those around a quantile are counted by a further digit instead of being held: 32 MB."""


def quantile(values: Floats, q: float) -> float:
    """Quantile `q` (0..1) of the values that are not NaN; NaN when there are none."""
    return float(quantiles(values[~np.isnan(values)], [q])[0])


def quantiles(values: Floats, qs: Sequence[float]) -> list[float]:
    """Several quantiles of values without NaN, which it sorts in place; NaN of no values."""
    if not len(values):
        return [float("nan")] * len(qs)
    values.sort()  # with the wide registers of a CPU twice as fast as the selection of numpy.quantile
    places = [(len(values) - 1) * q for q in qs]
    ends = [(float(values[math.floor(place)]), float(values[math.ceil(place)])) for place in places]
    return [_between(*pair, place - math.floor(place)) for pair, place in zip(ends, places, strict=True)]


@dataclass(frozen=True, slots=True)
class Selected:
    """What is known of values that were not held: how many, their mean, standard deviation and largest, and quantiles.

    The quantiles are those of `quantiles`, bit for bit; mean and deviation differ from numpy's by rounding.
    """

    n: int
    mean: float
    std: float
    largest: float
    quantiles: list[float]


class Counted:
    """Values without NaN that came block by block: their number, mean and largest, and counts by their leading bits."""

    def __init__(self) -> None:
        self.n, self.mean, self.squares, self.largest = 0, 0.0, 0.0, -math.inf
        self.counts = np.zeros(2 * HALF, np.int64)

    def add(self, block: Floats) -> None:
        """Count the next values."""
        if not len(block):
            return
        for start in range(0, len(block), BLOCK):
            leading = _ordered(block[start : start + BLOCK]) >> DIGITS[0]
            least = int(leading.min())  # those of a block are near each other, and few of all that there may be
            leading -= least
            counted = np.bincount(leading)
            self.counts[HALF + least : HALF + least + len(counted)] += counted
        mean, total = float(block.mean()), self.n + len(block)
        between = (mean - self.mean) ** 2 * self.n * len(block) / total
        self.squares += float(np.square(block - mean).sum()) + between
        self.mean += (mean - self.mean) * len(block) / total
        self.n, self.largest = total, max(self.largest, float(block.max()))


def selected(blocks: Callable[[], Iterable[Floats]], qs: Sequence[float], counted: Counted | None = None) -> Selected:
    """Of values without NaN that are read block by block, two to four times, because they do not fit into memory.

    A radix selection: values are counted by the leading bits of their order-preserving integers (those of `counted` are
    already), and where too many share those of a rank that is needed, by the bits below.
    """
    if counted is None:
        counted = Counted()
        for block in blocks():
            counted.add(block)
    n = counted.n
    if not n:
        return Selected(0, math.nan, math.nan, math.nan, [math.nan] * len(qs))
    places = [(n - 1) * q for q in qs]
    ranks = sorted({rank for place in places for rank in (math.floor(place), math.ceil(place))})
    order = _at_ranks(blocks, ranks, np.cumsum(counted.counts), HALF)
    at_qs = [_between(order[math.floor(place)], order[math.ceil(place)], place - math.floor(place)) for place in places]
    return Selected(n, counted.mean, math.sqrt(counted.squares / n), counted.largest, at_qs)


def _at_ranks(blocks: Callable[[], Iterable[Floats]], ranks: Sequence[int], upto: Ints, half: int) -> dict[int, float]:
    """The value of each rank (from 0); `upto` (bins,) counts values up to each bin of the first digit."""
    bins = np.searchsorted(upto, ranks, side="right")
    begins = {int(b) - half: int(upto[b - 1]) if b else 0 for b in bins}  # by leading bits: values before them
    sizes = {int(b) - half: int(upto[b]) - (int(upto[b - 1]) if b else 0) for b in bins}
    above = DIGITS[0]
    for below in DIGITS[1:]:
        if sum(sizes.values()) <= HELD:
            break
        counts = {bits: np.zeros(1 << (above - below), np.int64) for bits in begins}
        for keys, leading in _keys(blocks, above):
            for bits, counted in counts.items():
                inside = keys[leading == bits]
                counted += np.bincount((inside >> below) - (bits << (above - below)), minlength=len(counted))
        narrower: dict[int, int] = {}
        sizes = {}
        for bits, counted in counts.items():
            ends = begins[bits] + np.cumsum(counted)
            for rank in ranks:
                if begins[bits] <= rank < ends[-1]:
                    slot = int(np.searchsorted(ends, rank, side="right"))
                    key = (bits << (above - below)) + slot
                    narrower[key], sizes[key] = int(ends[slot] - counted[slot]), int(counted[slot])
        begins, above = narrower, below
    held: dict[int, list[Ints]] = {bits: [] for bits in begins}
    if above:
        for keys, leading in _keys(blocks, above):
            for bits, parts in held.items():
                parts.append(keys[leading == bits])
    by_rank: dict[int, float] = {}
    for bits, parts in held.items():
        inside = np.sort(np.concatenate(parts)) if above else np.full(sizes[bits], bits)
        for rank in ranks:
            if begins[bits] <= rank < begins[bits] + len(inside):
                by_rank[rank] = _value(int(inside[rank - begins[bits]]))
    return by_rank


def _keys(blocks: Callable[[], Iterable[Floats]], above: int) -> Iterable[tuple[Ints, Ints]]:
    """The integers of the values of each block, and their bits from `above` on."""
    for block in blocks():
        keys = _ordered(block)
        yield keys, keys >> above


def _ordered(values: Floats) -> Ints:
    """Integers in the order of the values: those of negative ones with all bits but the sign turned round."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))


def _value(key: int) -> float:
    """The value of an integer of `_ordered`, which is its own inverse."""
    return float(np.int64(key if key >= 0 else key ^ 0x7FFF_FFFF_FFFF_FFFF).view(np.float64))


def _between(low: float, high: float, share: float) -> float:
    """Linear interpolation with numpy's rounding."""
    step = high - low
    return low + step * share if share < 0.5 else high - step * (1 - share)


def with_failures(values: Floats, failed: int, q: float) -> float:
    """Quantile `q` of `values` and of `failed` infinite ones: a request that failed took for ever."""
    defined = values[~np.isnan(values)]
    place = (len(defined) + failed - 1) * q
    if len(defined) + failed == 0:
        return float("nan")
    if place > len(defined) - 1 + 1e-9:  # 1e-9: (n - 1) * q may miss a whole number by rounding
        return float("inf")
    return quantile(defined, min(1.0, place / (len(defined) - 1)) if len(defined) > 1 else 0.0)


def spearman(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman's rank correlation of two series (N,), ties at their mean rank; NaN where one of them is constant."""
    centred = []
    for values in (one, other):
        _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # (N,) from 1
        centred.append(ranks - ranks.mean())
    a, b = centred
    total = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / total if total > 0 else math.nan
