"""A real transformer of the Llama family in NumPy, over paged KV memory; seeded or a Hugging Face folder.

Numerics. In float32 the logits of the seeded model agree with float64 to 5e-6. A token's logits are equal to the last
bit however its batch is composed, chunked or preempted, because products are cut so that BLAS sums in one order
(`_layers`, `_plan`): measured with the kernels of OpenBLAS for AVX-512, AVX and, in float64, AVX2, for head dimensions
that are multiples of 16. In float32 its AVX2 kernels (Haswell, Zen) sum in an order that depends on the row; logits
then differ by up to 5e-6, and a greedy choice may flip where two are that close. None of 21,033 tokens of the seeded
model did; the density of gaps (3.8 per unit) and the mean difference (5e-7) give one flip in a million tokens. Where
none may happen on such machines, use `dtype=float64`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from mmap import mmap
from typing import Literal

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # it ships no types

from backends.executors import _weights as weights
from backends.executors._config import Transformer
from backends.executors._layers import PagedAttention, Rotary, Scratch, multiply
from backends.executors._plan import Plan
from backends.executors._weights import Layer, Weights, fuse


@dataclass(slots=True)
class Llama(Transformer):
    """Llama, Qwen2 or Mistral: `model` is a Hugging Face folder; without it, seeded weights of the shape below.

    `threads` bounds the threads of matrix products; None takes half of the cores, since BLAS waits by spinning and
    would starve the load generator.
    """

    dtype: Literal["float32", "float64"] = "float32"
    _weights: Weights = field(init=False, repr=False)
    _rotary: Rotary = field(init=False, repr=False)
    _scratch: Scratch = field(init=False, repr=False)
    _attention: PagedAttention = field(init=False, repr=False)
    _blas: ThreadpoolController = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._configure()
        c = self.config
        self._weights = fuse(weights.of_model(self.model, c, self.seed), c, self._exact)
        self._parameters = self._weights.parameters
        self._rotary = Rotary(c, self._exact)
        self._scratch = Scratch(self._exact)
        self._attention = PagedAttention(c.heads, c.kv_heads, c.head_dim, self._scratch)
        self._blas = ThreadpoolController()

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self._remember(num_blocks, block_size)
        self._pages = tuple(np.zeros(self._page_shape, self.dtype) for _ in range(self.config.layers))

    def kv_bytes(self, num_blocks: int, block_size: int) -> int:
        """Bytes of `num_blocks` pages in all layers."""
        return num_blocks * block_size * self.kv_bytes_per_token

    def allocate_in(self, memory: mmap, num_blocks: int, block_size: int) -> None:
        """As `allocate`, in memory that other processes can read."""
        self._remember(num_blocks, block_size)
        self._pages = tuple(self._layers_in(memory))

    def copy_from(self, memory: mmap, source_blocks: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy these pages of another executor's `memory` into pages here."""
        for pages, source_pages in zip(self._pages, self._layers_in(memory), strict=True):
            for block, source in zip(blocks, source_blocks, strict=True):
                pages[block] = source_pages[source]

    def copy_out_of(self, memory: mmap, source_blocks: Sequence[int]) -> Sequence[np.ndarray]:
        """What `copy_out` of the other executor gives."""
        return list(self._layers_in(memory)[:, list(source_blocks)].swapaxes(0, 1))

    def copy_out(self, blocks: Sequence[int]) -> Sequence[np.ndarray]:
        """What these pages hold in every layer, one array a page: (layers, block size, 2, KV heads, head_dim)."""
        return list(np.stack([layer[list(blocks)] for layer in self._pages], axis=1))

    @property
    def _page_shape(self) -> tuple[int, ...]:
        """(pages, block size, 2, KV heads, head_dim) of a layer."""
        assert self._memory is not None
        c = self.config
        return self._memory.num_blocks, self._memory.block_size, 2, c.kv_heads, c.head_dim

    def _layers_in(self, memory: mmap) -> np.ndarray:
        """(layers, *page shape) in the memory of an executor with as many pages."""
        return np.frombuffer(memory, self.dtype).reshape(self.config.layers, *self._page_shape)

    def _logits(self, step: Plan) -> np.ndarray:
        """The logits (sampled pieces in row order, vocab)."""
        quiet = np.errstate(over="ignore", under="ignore")  # exp of a large gate is infinite, and its inverse 0
        with self._blas.limit(limits=self._threads(), user_api="blas"), quiet:
            rows = self._weights.embed[step.token_ids]  # (R, C)
            rotations = self._rotary.at(step.positions)
            for index, layer in enumerate(self._weights.layers):
                self._attend(rows, layer, index, step, rotations)
                self._feed_forward(rows, layer)
            if not len(step.sampled):  # nothing but chunks of prompts that go on
                return np.empty((0, self.vocab_size), self.dtype)
            last = self._normed(rows[step.last_rows])
            logits = multiply(
                last, self._weights.head, np.empty((len(last), self.vocab_size), self.dtype), self._scratch
            )
            return logits[: len(step.sampled)]

    def _attend(self, rows: np.ndarray, layer: Layer, index: int, step: Plan, rotations: np.ndarray) -> None:
        """Add the attention of one layer to `rows` (R, C), after storing keys and values of the step."""
        c, count = self.config, len(rows)
        q = c.heads * c.head_dim
        width = q + 2 * c.kv_heads * c.head_dim
        qkv = multiply(self._normed(rows), layer.qkv, self._scratch.get("qkv", count, width), self._scratch)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        heads = qkv.reshape(count, -1, c.head_dim)
        rotated = heads[:, : c.heads + c.kv_heads].view(rotations.dtype)  # rotary pairs as complex numbers
        rotated *= rotations
        pages = self._pages[index]
        pages.reshape(-1, width - q)[step.slots] = qkv[: step.rows, q:]
        mixed = self._scratch.get("mixed", count, q)
        mixed[step.rows :] = 0
        self._attention.attend(heads[:, : c.heads], pages, step.attention[c.window(index)], mixed)
        rows += multiply(mixed, layer.out, self._scratch.get("wide", count, c.hidden), self._scratch)

    def _feed_forward(self, rows: np.ndarray, layer: Layer) -> None:
        """Add SwiGLU (Shazeer, 2020) to `rows` (R, C)."""
        count, inner = len(rows), self.config.intermediate
        gate_up = multiply(
            self._normed(rows), layer.gate_up, self._scratch.get("gates", count, 2 * inner), self._scratch
        )
        gate, up = gate_up[:, :inner], gate_up[:, inner:]
        opened = self._scratch.get("opened", count, inner)
        np.negative(gate, out=opened)
        np.exp(opened, out=opened)
        opened += 1
        np.divide(gate, opened, out=opened)
        opened *= up
        rows += multiply(opened, layer.down, self._scratch.get("wide", count, self.config.hidden), self._scratch)

    def _normed(self, rows: np.ndarray) -> np.ndarray:
        """RMSNorm (Zhang and Sennrich, 2019) without its gain, which is folded into the next matrix."""
        scale = np.vecdot(rows, rows)
        scale /= rows.shape[1]
        scale += self.config.norm_eps
        np.sqrt(scale, out=scale)
        np.reciprocal(scale, out=scale)
        normed: np.ndarray = np.multiply(rows, scale[:, None], out=self._scratch.get("normed", *rows.shape))
        return normed
