"""One step, laid out for the forward pass: which rows, which pages, which keys each row may see.

All tokens of a batch become rows of one matrix (selective batching; Yu et al., Orca, OSDI 2022). Pieces of
one token come first, the longest sequence first, so that neighbours have similar contexts and share one
batched attention; then come the longer pieces, each with its own attention.

Keys are cut into tiles of `TILE` at fixed positions. All sums over keys run tile by tile, so that masked keys
behind the context add exact zeros and do not move a sum: a row's result does not depend on its neighbours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from harness.api import Piece

TILE = 128
_OVERHEAD_TILES = 4  # padding that costs as much as starting another group; tests/perf/engine_throughput.py
_ROWS = 2  # rows come in multiples: BLAS treats a single row, or an odd last one, with another order of sums

Attention: TypeAlias = "tuple[tuple[DecodeGroup, ...], tuple[Prefill, ...]]"


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows `start`..`stop` of one token each; row b sees the keys of `pages[b]` where `mask[b]` is 0."""

    start: int
    stop: int
    pages: np.ndarray  # (B, P) block ids
    mask: np.ndarray  # (B, T) 0 or -inf
    mask_from: int  # columns before it are 0


@dataclass(frozen=True, slots=True)
class RowTile:
    """Rows of a piece of prefill, and the keys they see (columns of the gathered pages)."""

    start: int
    stop: int
    first_key: int
    stop_key: int
    mask_from: int  # columns from `first_key` on that all rows see in full
    mask: np.ndarray  # (rows, stop_key - first_key - mask_from) 0 or -inf


@dataclass(frozen=True, slots=True)
class Prefill:
    """A piece of several tokens: its pages, and its rows tile by tile."""

    pages: np.ndarray  # (1, P)
    tiles: tuple[RowTile, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A step. `rows` counts real rows; `token_ids` and `positions` may be longer (padding without effect)."""

    rows: int
    token_ids: np.ndarray  # (R,)
    positions: np.ndarray  # (R,)
    slots: np.ndarray  # (rows,) where in the KV memory each row's key and value go
    sampled: tuple[int, ...]  # indices of pieces that want a token
    last_rows: np.ndarray  # row of the last token of each sampled piece, padded
    attention: dict[int | None, Attention]  # by sliding window


@dataclass(frozen=True, slots=True)
class Memory:
    """The size of the KV memory, and how large one product may become.

    That is the scores of one tile of rows, its rows, and the tiles of one group of decodes; by default as many as stay
    in the cache of a core.
    """

    num_blocks: int
    block_size: int
    heads: int
    score_elements: int = 1 << 18
    tile_rows: int = 64
    group_tiles: int = 32

    @property
    def align(self) -> int:
        """Gathering starts at multiples of this: whole tiles and whole pages."""
        return math.lcm(TILE, self.block_size)


@dataclass(slots=True)
class _Span:
    """A piece in the making: its blocks as an array, its first row."""

    index: int
    piece: Piece
    blocks: np.ndarray
    length: int
    end: int  # tokens of the sequence after this step
    row: int = 0


def plan(pieces: Sequence[Piece], memory: Memory, windows: Sequence[int | None], dtype: np.dtype) -> Plan:
    """Lay out one step. Raises ValueError for a piece that does not fit its pages."""
    spans = [_span(i, piece, memory) for i, piece in enumerate(pieces)]
    decodes = sorted((s for s in spans if s.length == 1), key=lambda s: -s.end)
    prefills = [s for s in spans if s.length > 1]
    ordered = decodes + prefills
    row = 0
    for span in ordered:
        span.row, row = row, row + span.length
    sampled = [s for s in ordered if s.piece.sample]
    last = [s.row + s.length - 1 for s in sampled]
    ids, positions = _tokens(ordered, row)
    return Plan(
        rows=row,
        token_ids=ids,
        positions=positions,
        slots=_slots(ordered, positions[:row], memory),
        sampled=tuple(s.index for s in sampled),
        last_rows=np.array(last + [0] * (_padded(len(last)) - len(last)), np.intp),
        attention={w: _attention(decodes, prefills, w, memory, dtype) for w in dict.fromkeys(windows)},
    )


def _padded(rows: int) -> int:
    return -(-rows // _ROWS) * _ROWS


def _span(index: int, piece: Piece, memory: Memory) -> _Span:
    length = len(piece.token_ids)
    span = _Span(index, piece, np.asarray(piece.blocks, np.intp), length, piece.position + length)
    if not span.length or span.end > len(span.blocks) * memory.block_size:
        raise ValueError(
            f"request {piece.request_id}: {span.length} tokens at position {piece.position} do not fit "
            f"{len(span.blocks)} pages of {memory.block_size} tokens"
        )
    if not 0 <= min(piece.blocks) <= max(piece.blocks) < memory.num_blocks:
        raise ValueError(f"request {piece.request_id}: a page is not in [0, {memory.num_blocks})")
    return span


def _tokens(ordered: Sequence[_Span], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and positions of all rows, padded with token 0 at position 0 to a multiple of `_ROWS`."""
    ids, positions = np.zeros((2, _padded(rows)), np.intp)
    ids[:rows] = [token for span in ordered for token in span.piece.token_ids]
    positions[:rows] = [place for span in ordered for place in range(span.piece.position, span.end)]
    return ids, positions


def _slots(ordered: Sequence[_Span], positions: np.ndarray, memory: Memory) -> np.ndarray:
    page, offset = np.divmod(positions, memory.block_size)
    for span in ordered:
        page[span.row : span.row + span.length] = span.blocks[page[span.row : span.row + span.length]]
    slots: np.ndarray = page * memory.block_size + offset
    return slots


def _attention(
    decodes: Sequence[_Span], prefills: Sequence[_Span], window: int | None, memory: Memory, dtype: np.dtype
) -> Attention:
    groups = tuple(_group(group, window, memory, dtype) for group in _grouped(decodes, window, memory))
    return groups, tuple(_prefill(span, window, memory, dtype) for span in prefills)


def _first(position: int, window: int | None, memory: Memory) -> int:
    """The position at which gathering starts for a query at `position`."""
    seen = 0 if window is None else max(0, position - window + 1)
    return seen // memory.align * memory.align


def _tiles(tokens: int) -> int:
    return -(-tokens // TILE)


def _grouped(decodes: Sequence[_Span], window: int | None, memory: Memory) -> Iterator[list[_Span]]:
    """Cut the decodes, longest first, where padding to the longest would cost more than a call."""
    group: list[_Span] = []
    longest = waste = 0
    for span in decodes:
        tiles = _tiles(span.end - _first(span.end - 1, window, memory))
        if group and (
            waste + abs(longest - tiles) > _OVERHEAD_TILES
            or (len(group) + 1) * max(longest, tiles) > memory.group_tiles
        ):
            yield group
            group, longest, waste = [], 0, 0
        waste += abs(longest - tiles) if group else 0
        longest = max(longest, tiles)
        group.append(span)
    if group:
        yield group


def _group(group: Sequence[_Span], window: int | None, memory: Memory, dtype: np.dtype) -> DecodeGroup:
    firsts = [_first(s.end - 1, window, memory) for s in group]
    ends = [s.end - first for s, first in zip(group, firsts, strict=True)]  # in gathered keys
    width = _tiles(max(ends)) * TILE
    mask = np.zeros((len(group), width), dtype)
    for row, end in zip(mask, ends, strict=True):
        row[end:] = -np.inf
        if window is not None:
            row[: max(0, end - window)] = -np.inf
    return DecodeGroup(
        start=group[0].row,
        stop=group[-1].row + 1,
        pages=_pages(group, firsts, width, memory),
        mask=mask,
        mask_from=0 if window is not None else min(ends),
    )


def _pages(spans: Sequence[_Span], firsts: Sequence[int], width: int, memory: Memory) -> np.ndarray:
    """(B, P) blocks with `width` positions from `firsts` on; behind the end of a span, its last block again."""
    pages = np.empty((len(spans), -(-width // memory.block_size)), np.intp)
    for row, span, first in zip(pages, spans, firsts, strict=True):
        held = span.blocks[first // memory.block_size :][: len(row)]
        row[: len(held)] = held
        row[len(held) :] = held[-1]
    return pages


def _prefill(span: _Span, window: int | None, memory: Memory, dtype: np.dtype) -> Prefill:
    begin = _first(span.piece.position, window, memory)
    width = _tiles(span.end - begin) * TILE
    tiles = []
    position = span.piece.position
    while position < span.end:
        first = _first(position, window, memory)
        keys = _tiles(position + 1 - first) * TILE
        rows = min(max(16, memory.score_elements // (memory.heads * keys)), memory.tile_rows, span.end - position)
        tiles.append(_row_tile(span, position, rows, first - begin, window, dtype, begin))
        position += rows
    return Prefill(_pages([span], [begin], width, memory), tuple(tiles))


def _row_tile(
    span: _Span,
    position: int,
    rows: int,
    first_key: int,
    window: int | None,
    dtype: np.dtype,
    begin: int,
) -> RowTile:
    first = begin + first_key
    stop = first + _tiles(position + rows - first) * TILE
    mask_from = position - first if window is None else 0
    query = np.arange(position, position + rows)[:, None]
    key = np.arange(first + mask_from, stop)
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    row = span.row + position - span.piece.position
    mask = np.zeros(hidden.shape, dtype)
    mask[hidden] = -np.inf
    return RowTile(row, row + rows, first_key, stop - begin, mask_from, mask)
