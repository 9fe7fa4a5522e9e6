"""Matrix products whose rows do not depend on how many rows there are.

BLAS picks its kernel, and with it the order of its sums, by the shape of the product; then the last bits of a
token's logits would depend on the batch. Three rules avoid that on OpenBLAS for x86 (tests/engine checks it):
at least two rows, sums over at most `_DEPTH` inputs at a time, and few rows times narrow strips of the matrix.
The strips also make products of few rows up to four times as fast, since OpenBLAS does not repack them.

Rotary position embedding (Su et al., RoFormer, 2021), and its stretched forms for long contexts.

Work arrays that are made once and used again in every step.

From logits to the next token: greedy, or drawn with a generator of the token's own.

Attention of one layer over paged KV memory.

A layer's memory is (blocks, block_size, 2, KV, d): the key and the value of a token lie together, so that the
pages of a sequence are gathered by one copy of whole pages. Softmax is the plain one (maximum first), computed
over all keys of a row at once; sums over keys run tile by tile (see `_plan`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from backends.executors._plan import TILE, Attention, DecodeGroup, Prefill, RowTile
from harness.api import Piece

if TYPE_CHECKING:
    from backends.executors._config import Config, RopeScaling


_DEPTH = 256
_SMALL = 1_000_000  # OpenBLAS: up to this many multiplications a product takes the kernel without packing
_STRIPS = (256, 128, 64)
_WORD = (1 << 64) - 1
_COLUMNS = 16  # products are at least this wide and deep, so that BLAS sums in one order whatever the batch


def multiply(rows: np.ndarray, matrix: np.ndarray, out: np.ndarray, scratch: Scratch) -> np.ndarray:
    """`rows` (R, K) times `matrix` (K, N) into `out` (R, N); R >= 2."""
    depth = len(matrix)
    _strips(rows[:, :_DEPTH], matrix[:_DEPTH], out)
    for start in range(_DEPTH, depth, _DEPTH):
        part = scratch.get("part", *out.shape)
        _strips(rows[:, start : start + _DEPTH], matrix[start : start + _DEPTH], part)
        out += part
    return out


def _strips(rows: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
    count, (depth, width) = len(rows), matrix.shape
    for strip in _STRIPS:
        if width % strip == 0 and count * depth * strip <= _SMALL:
            cut = matrix.reshape(depth, -1, strip).swapaxes(0, 1)
            np.matmul(rows, cut, out=out.reshape(count, -1, strip).swapaxes(0, 1))
            return
    np.matmul(rows, matrix, out=out)


def frequencies(config: Config) -> np.ndarray:
    """(d/2,) float64 angles per position."""
    half = np.arange(0, config.head_dim, 2) / config.head_dim
    plain: np.ndarray = config.rope_theta**-half
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    return plain / scaling.factor if scaling.kind == "linear" else _llama3(plain, scaling)


def _llama3(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Slow frequencies divided by the factor, fast ones kept, those between blended (Llama 3.1, 2024)."""
    turns = scaling.original_tokens * plain / (2 * math.pi)  # over the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    blended: np.ndarray = (1 - keep) * plain / scaling.factor + keep * plain
    return blended


class Rotary:
    """Rotations exp(i * position * frequency); the table grows with the longest position seen."""

    def __init__(self, config: Config, dtype: np.dtype) -> None:
        self._frequencies = frequencies(config)
        self._complex = np.dtype(np.complex64 if dtype == np.float32 else np.complex128)
        self._table = self._rows(0, 0)

    def at(self, positions: np.ndarray) -> np.ndarray:
        """(N, 1, d/2) complex rotations of `positions` (N,)."""
        have, need = len(self._table), int(positions.max()) + 1
        if need > have:
            self._table = np.concatenate([self._table, self._rows(have, max(need, 2 * have, 2048))])
        rotations: np.ndarray = self._table[positions, None]
        return rotations

    def _rows(self, start: int, stop: int) -> np.ndarray:
        angles = np.arange(start, stop)[:, None] * self._frequencies
        rows: np.ndarray = np.exp(1j * angles).astype(self._complex)
        return rows


class Scratch:
    """Named buffers that only grow; `get` hands out the front of one, with whatever it held before."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._buffers: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        held = sum(b.nbytes for b in self._buffers.values())
        return f"<Scratch {len(self._buffers)} buffers, {held / 2**20:.1f} MiB>"

    def get(self, name: str, *shape: int) -> np.ndarray:
        """An array of `shape` that is valid until `name` is requested again."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size:
            buffer = self._buffers[name] = np.zeros(size + size // 4, self._dtype)
        return buffer[:size].reshape(shape)


def sample(logits: np.ndarray, pieces: Sequence[Piece]) -> list[int]:
    """One token per row of `logits` (N, V), which belong to `pieces` (N,)."""
    for row, piece in enumerate(pieces):
        if piece.forbidden:
            logits[row, list(piece.forbidden)] = -np.inf
    tokens: list[int] = logits.argmax(axis=1).tolist()
    for row, piece in enumerate(pieces):
        if piece.temperature > 0:
            tokens[row] = _draw(logits[row], piece)
    return tokens


def _draw(logits: np.ndarray, piece: Piece) -> int:
    """A token of probability softmax(logits / temperature), by inversion of its distribution.

    The generator is counter-based (Philox; Salmon et al., SC 2011) and keyed by (seed, position of the new
    token): the same request gets the same random number whatever else is in the batch.
    """
    position = piece.position + len(piece.token_ids)
    key = np.array([piece.seed & _WORD, position], np.uint64)
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    with np.errstate(over="ignore"):  # nearly greedy: far less likely tokens are minus infinity
        scaled /= piece.temperature
    weights = np.exp(scaled)
    if piece.top_p < 1:
        _keep_nucleus(weights, piece.top_p)
    total = np.cumsum(weights)
    point = np.random.Generator(np.random.Philox(key=key)).random() * total[-1]
    return min(int(np.searchsorted(total, point, side="right")), len(total) - 1)


def _keep_nucleus(weights: np.ndarray, top_p: float) -> None:
    """Set to 0 all but the likeliest tokens that together reach a share of `top_p`; ties in order of ids.

    Source: Holtzman et al., The Curious Case of Neural Text Degeneration, ICLR 2020.
    """
    order = np.argsort(-weights, kind="stable")
    reached = np.cumsum(weights[order])
    nucleus = int(np.searchsorted(reached, top_p * reached[-1])) + 1
    weights[order[nucleus:]] = 0


class PagedAttention:
    """Reads queries, gathers keys and values, writes the mix of values."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, scratch: Scratch) -> None:
        self._kv, self._group, self._dim = kv_heads, heads // kv_heads, head_dim
        self._scratch = scratch

    def attend(self, queries: np.ndarray, memory: np.ndarray, plan: Attention, out: np.ndarray) -> None:
        """Scaled `queries` (R, H, d) over `memory` (blocks, block_size, 2, KV, d) into `out` (R, H d)."""
        groups, prefills = plan
        for group in groups:
            self._decode(queries[group.start : group.stop], memory, group, out[group.start : group.stop])
        for prefill in prefills:
            self._prefill(queries, memory, prefill, out)

    def _gather(self, memory: np.ndarray, pages: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values (B, KV, tokens, d) of `pages` (B, P)."""
        held = self._scratch.get("gathered", *pages.shape, *memory.shape[1:])
        np.take(memory, pages, axis=0, out=held, mode="clip")  # the default mode would copy once more
        flat = held.reshape(len(pages), -1, 2, self._kv, self._dim)[:, :tokens]
        return flat[:, :, 0].swapaxes(1, 2), flat[:, :, 1].swapaxes(1, 2)

    def _decode(self, queries: np.ndarray, memory: np.ndarray, group: DecodeGroup, out: np.ndarray) -> None:
        """One query per sequence. Keys times queries, not the reverse: then BLAS need not repack the keys."""
        batch, tokens = group.mask.shape
        keys, values = self._gather(memory, group.pages, tokens)
        kv, g, d = self._kv, self._group, self._dim
        wide = -(-g // _COLUMNS) * _COLUMNS
        columns = self._scratch.get("columns", batch, kv, d, wide)
        columns[..., :g] = queries.reshape(batch, kv, g, d).swapaxes(2, 3)
        columns[..., g:] = 0
        products = np.matmul(keys, columns, out=self._scratch.get("products", batch, kv, tokens, wide))
        rows = g + g % 2
        scores = self._scratch.get("scores", batch, kv, rows, tokens)
        np.copyto(scores, products[..., :rows].swapaxes(2, 3))
        scores[..., group.mask_from :] += group.mask[:, None, None, group.mask_from :]
        mixed = self._mix(scores, values)
        np.copyto(out.reshape(batch, kv, g, d), mixed[:, :, :g])

    def _prefill(self, queries: np.ndarray, memory: np.ndarray, prefill: Prefill, out: np.ndarray) -> None:
        tokens = max(tile.stop_key for tile in prefill.tiles)
        keys, values = self._gather(memory, prefill.pages, tokens)
        for tile in prefill.tiles:
            seen = slice(tile.first_key, tile.stop_key)
            self._row_tile(queries, keys[0, :, seen], values[0, :, seen], tile, out)

    def _row_tile(
        self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, tile: RowTile, out: np.ndarray
    ) -> None:
        """Some rows of one sequence; all query heads of a KV head are rows of one product."""
        kv, g, d = self._kv, self._group, self._dim
        count, tokens = tile.stop - tile.start, keys.shape[1]
        used = g * count
        rows = max(used + used % 2, _COLUMNS)
        stacked = self._scratch.get("columns", kv, rows, d)
        by_head = queries[tile.start : tile.stop].reshape(count, kv, g, d).transpose(1, 2, 0, 3)
        np.copyto(stacked[:, :used].reshape(kv, g, count, d), by_head)
        stacked[:, used:] = 0
        scores = np.matmul(stacked, keys.swapaxes(1, 2), out=self._scratch.get("scores", kv, rows, tokens))
        masked = scores[:, :used].reshape(kv, g, count, tokens)[..., tile.mask_from :]
        masked += tile.mask
        mixed = self._mix(scores, values)[:, :used].reshape(kv, g, count, d)
        np.copyto(out[tile.start : tile.stop].reshape(count, kv, g, d), mixed.transpose(2, 0, 1, 3))

    def _mix(self, scores: np.ndarray, values: np.ndarray) -> np.ndarray:
        """softmax(`scores` (..., M, T)) times `values` (..., T, d), (..., M, d); overwrites `scores`."""
        *lead, rows, tokens = scores.shape
        tiles = tokens // TILE
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        cut = scores.reshape(*lead, rows, tiles, TILE)
        total = np.add.accumulate(cut.sum(axis=-1), axis=-1)[..., -1:]  # one after the other, never pairwise
        parts = self._scratch.get("parts", *lead, tiles, rows, self._dim)
        np.matmul(cut.swapaxes(-2, -3), values.reshape(*lead, tiles, TILE, self._dim), out=parts)
        mixed: np.ndarray = parts.sum(axis=-3)
        mixed /= total
        return mixed
