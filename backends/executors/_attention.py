"""Attention of one layer over paged KV memory.

A layer's memory is (blocks, block_size, 2, KV, d): the key and the value of a token lie together, so that the
pages of a sequence are gathered by one copy of whole pages. Softmax is the plain one (maximum first), computed
over all keys of a row at once; sums over keys run tile by tile (see `_plan`).
"""

import numpy as np

from backends.executors._plan import TILE, Attention, DecodeGroup, Prefill, RowTile
from backends.executors._scratch import Scratch

_COLUMNS = 16  # products are at least this wide and deep, so that BLAS sums in one order whatever the batch


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
