"""Helpers of the metrics: columns as numpy arrays, arithmetic on lists of stamps without a Python loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

BLOCK = 1 << 16
"""Stamps that are worked on at one time: half a megabyte stays in the processor's cache."""


CHUNK = 16_384
"""Rows that a metric sees at one time: with 128 tokens each, 16 MB of stamps, which the allocator can use again."""


class Lists(NamedTuple):
    """A list column: row i holds `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Ints  # (requests + 1,) int64
    values: Floats  # (events,)


def lists(table: pa.Table, name: str) -> Lists:
    """The list column `name`, without a copy where it is one chunk."""
    chunked = table[name]
    column = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
    offsets = column.offsets.to_numpy().astype(np.int64)
    if not len(offsets):
        return Lists(np.zeros(1, np.int64), column.values.to_numpy()[:0])
    return Lists(offsets - offsets[0], column.values.to_numpy()[offsets[0] : offsets[-1]])


def number(table: pa.Table, name: str) -> Floats:
    """A column as (requests,) float64, NaN for null."""
    return np.asarray(table[name].to_numpy(), np.float64)


def ascending(values: Floats, which: Mask) -> Floats:
    """The values (n,) in `which` (n,), sorted."""
    chosen = values[which]
    chosen.sort()  # np.sort would copy them again
    return chosen


def lateness(table: pa.Table) -> Floats:
    """(requests,) seconds from the scheduled time to sending, without the wait for --max-in-flight; NaN if not sent."""
    late_s, waits = number(table, "sent_s") - number(table, "scheduled_s"), table["cap_wait_s"]
    return late_s if waits.null_count == len(waits) else late_s - np.nan_to_num(number(table, "cap_wait_s"))


def streamed_tokens(table: pa.Table) -> Floats:
    """(requests,) output tokens without those that the server counted and never streamed."""
    output, unseen = number(table, "output_tokens"), table["unseen_tokens"]
    return output if unseen.null_count == len(unseen) else output - np.nan_to_num(number(table, "unseen_tokens"))


def tokens_each(table: pa.Table) -> Floats:
    """(requests,) streamed output tokens of each answer to a request, their mean where there are several."""
    streamed, answers = streamed_tokens(table), table["answers"]
    return streamed if answers.null_count == len(answers) else streamed / np.fmax(number(table, "answers"), 1)


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below, NaN where `below` is not positive."""
    ratios = np.full(len(above), np.nan)
    np.divide(above, below, out=ratios, where=below > 0)
    return ratios


def first(rows: Lists) -> Floats:
    """First item of each row, (requests,) float64, NaN for an empty row."""
    return _pick(rows, rows.offsets[:-1])


def last(rows: Lists) -> Floats:
    """Last item of each row, (requests,) float64, NaN for an empty row."""
    return _pick(rows, rows.offsets[1:] - 1)


def _pick(rows: Lists, index: Ints) -> Floats:
    picked = np.full(len(index), np.nan)
    filled = np.diff(rows.offsets) > 0
    picked[filled] = rows.values[index[filled]]
    return picked


def gap_lists(rows: Lists) -> Lists:
    """Differences of neighbours as lists that are one shorter (an empty row stays empty)."""
    filled = np.diff(rows.offsets) > 0
    inside = np.ones(len(rows.values), bool)  # (events,) has a neighbour after it, in the same row
    inside[(rows.offsets[1:] - 1)[filled]] = False
    offsets = rows.offsets.copy()
    offsets[1:] -= np.cumsum(filled)
    gaps = np.empty(offsets[-1])
    end = 0
    for start in range(0, len(rows.values) - 1, BLOCK):
        after = rows.values[start + 1 : start + 1 + BLOCK]
        steps = (after - rows.values[start : start + len(after)])[inside[start : start + len(after)]]
        gaps[end : end + len(steps)] = steps
        end += len(steps)
    return Lists(offsets, gaps)


def row_max(rows: Lists) -> Floats:
    """Largest item of each row, (requests,), NaN for an empty row."""
    maxima = np.full(len(rows.offsets) - 1, np.nan)
    filled = np.diff(rows.offsets) > 0
    if filled.any():
        maxima[filled] = np.maximum.reduceat(rows.values, rows.offsets[:-1][filled])
    return maxima


def row_quantile(rows: Lists, q: float) -> Floats:
    """Quantile `q` of each row, (requests,), NaN for an empty row; equal to numpy.quantile (linear).

    Rows are sorted together with others of about their length, padded with infinity.
    """
    lengths = np.diff(rows.offsets)
    quantiles = np.full(len(lengths), np.nan)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    while len(order):  # longest rows first, so that the first row of a block tells its width
        width = int(lengths[order[-1]])
        block, order = order[-max(1, BLOCK // width) :], order[: -max(1, BLOCK // width)]
        quantiles[block] = _block_quantile(rows, block, width, q)
    return quantiles


def _block_quantile(rows: Lists, block: Ints, width: int, q: float) -> Floats:
    lengths = rows.offsets[block + 1] - rows.offsets[block]
    index = rows.offsets[block][:, None] + np.arange(width)  # (block, width)
    padded = np.take(rows.values, index, mode="clip")
    padded[np.arange(width) >= lengths[:, None]] = np.inf
    padded.sort(axis=1)
    place = (lengths - 1) * q
    low = np.floor(place).astype(np.int64)
    row = np.arange(len(block))
    below, above = padded[row, low], padded[row, np.minimum(low + 1, lengths - 1)]
    share, step = place - low, above - below
    quantiles: Floats = np.where(share < 0.5, below + step * share, above - step * (1 - share))
    return quantiles


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The table in slices of `CHUNK` rows, without a copy."""
    for start in range(0, len(table), CHUNK):
        yield table[start : start + CHUNK]


def kept(table: pa.Table, mask: Mask) -> Iterator[pa.Table]:
    """The rows in `mask` (requests,), in pieces that copy nothing where nothing is left out."""
    for i, piece in enumerate(pieces(table)):
        piece_mask = mask[i * CHUNK : (i + 1) * CHUNK]
        yield piece if piece_mask.all() else piece.filter(pa.array(piece_mask))
