"""The transformer of `llama` in PyTorch, on a GPU or on this processor; PyTorch must be installed for it.

Same weights, same pages, same plan of a step; attention gathers the pages of a sequence. Numerics. PyTorch chooses its
kernels, and with them the order of their sums, by the shape of a product, so that the last bits of a token's logits
depend on its batch, and a greedy choice may flip where two tokens are that close. With `dtype=float64` it does where
they are within 1e-12 of one another, in practice never; half precision flips often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from backends.executors import _weights as weights
from backends.executors._config import BYTES, Transformer
from backends.executors._layers import Rotary, sample
from backends.executors._plan import Attention, Memory, Plan
from backends.executors._weights import Layer
from harness.api import Piece
from harness.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows `start`..`stop` that attend together: (B, P) pages, of which keys `first_key`.. are seen under `mask`.

    Decodes have a row each of their own pages; the rows of a piece of prefill share one row of pages.
    """

    start: int
    stop: int
    pages: Tensor
    first_key: int
    mask: Tensor  # (B, 1, 1, T) of decodes, (rows, T) of a prefill; 0 or -inf
    decodes: bool


@dataclass(slots=True)
class Torch(Transformer):
    """Llama, Qwen2 or Mistral: `model` is a Hugging Face folder; without it, seeded weights of the shape below.

    `device=auto` takes the GPU if PyTorch sees one. `threads` bounds the threads of PyTorch on the processor; None
    takes half of the cores, so that the load generator is not starved.
    """

    dtype: Literal["float32", "float64", "float16", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    _torch: Any = field(init=False, repr=False)
    _embed: Any = field(init=False, repr=False)  # tensors: a spec reads these types where PyTorch may be missing
    _layers: tuple[Layer, ...] = field(init=False, repr=False)  # of tensors
    _head: Any = field(init=False, repr=False)
    _rotary: Rotary = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._configure()
        self._torch = torch = _imported()
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UsageError("torch: device=cuda, and PyTorch sees no GPU here; take device=cpu.")
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_num_threads(self._threads())
        fused = weights.fuse(weights.of_model(self.model, self.config, self.seed), self.config, self._exact)
        self._parameters = fused.parameters
        self._embed, self._head = self._tensor(fused.embed), self._tensor(fused.head)
        self._layers = tuple(
            Layer._make(None if array is None else self._tensor(array) for array in layer) for layer in fused.layers
        )
        self._rotary = Rotary(self.config, self._exact)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV memory: `num_blocks` pages of `block_size` tokens. Raises UsageError where it does not fit."""
        self._remember(num_blocks, block_size)
        c, torch = self.config, self._torch
        shape = (num_blocks, block_size, 2, c.kv_heads, c.head_dim)
        if self.device == "cuda":  # few large products: nothing has to fit the cache of a core
            self._memory = Memory(num_blocks, block_size, c.heads, 1 << 24, tile_rows=512, group_tiles=1024)
        try:
            self._pages = tuple(torch.zeros(shape, dtype=self._kind, device=self.device) for _ in range(c.layers))
        except torch.OutOfMemoryError:
            raise UsageError(f"torch: the GPU has no room for {num_blocks:,} blocks of KV; lower kv_blocks.") from None

    def _sampled(self, step: Plan, pieces: Sequence[Piece]) -> list[int]:
        if any(piece.temperature > 0 or piece.forbidden for piece in pieces):
            return sample(self._logits(step), pieces)
        with self._torch.inference_mode():  # greedy: the logits stay on the device
            tokens: list[int] = self._run(step).argmax(dim=1).tolist()
        return tokens

    def copy_out(self, blocks: Sequence[int]) -> Sequence[object]:
        """What these pages hold in every layer, one tensor a page: (layers, block size, 2, KV heads, head_dim)."""
        return list(self._torch.stack([layer[list(blocks)] for layer in self._pages], dim=1).cpu())

    def describe(self) -> dict[str, object]:
        facts = Transformer.describe(self) | {"device": self.device, "torch": self._torch.__version__}
        if self.device == "cuda":
            facts["hardware"] = self._torch.cuda.get_device_name()
        return facts

    @property
    def _kind(self) -> Any:
        return getattr(self._torch, self.dtype)

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor: Tensor = self._torch.from_numpy(np.ascontiguousarray(array)).to(self.device, self._kind)
        return tensor

    def _index(self, array: np.ndarray) -> Tensor:
        tensor: Tensor = self._torch.from_numpy(np.asarray(array, np.int64)).to(self.device)
        return tensor

    def _logits(self, step: Plan) -> np.ndarray:
        kind = self._torch.float64 if self.dtype == "float64" else self._torch.float32
        with self._torch.inference_mode():
            logits: np.ndarray = self._run(step).to("cpu", kind).numpy()
        return logits

    def _groups(self, attention: Attention) -> list[_Group]:
        """What attends together, on the device; the same in every layer of one window."""
        decodes, prefills = attention
        groups = [
            _Group(g.start, g.stop, self._index(g.pages), 0, self._tensor(g.mask)[:, None, None], decodes=True)
            for g in decodes
        ]
        for prefill in prefills:
            pages = self._index(prefill.pages)
            for tile in prefill.tiles:
                mask = np.pad(tile.mask, ((0, 0), (tile.mask_from, 0)))  # (rows, keys)
                groups.append(_Group(tile.start, tile.stop, pages, tile.first_key, self._tensor(mask), decodes=False))
        return groups

    def _run(self, step: Plan) -> Tensor:
        """The logits (sampled pieces in row order, vocab)."""
        torch = self._torch
        rows = self._embed[self._index(step.token_ids[: step.rows])]  # (R, C)
        rotations = torch.from_numpy(self._rotary.at(step.positions[: step.rows])).to(self.device)  # (R, 1, d/2)
        slots = self._index(step.slots)
        groups = {window: self._groups(attention) for window, attention in step.attention.items()}
        for index, layer in enumerate(self._layers):
            mixed = self._attend(rows, layer, self._pages[index], slots, rotations, groups[self.config.window(index)])
            rows = rows + mixed @ layer.out
            gate, up = (self._normed(rows) @ layer.gate_up).chunk(2, dim=1)
            rows = rows + (torch.nn.functional.silu(gate) * up) @ layer.down  # SwiGLU (Shazeer, 2020)
        last = self._index(step.last_rows[: len(step.sampled)])
        logits: Tensor = self._normed(rows[last]) @ self._head
        return logits

    def _attend(
        self, rows: Tensor, layer: Layer, pages: Tensor, slots: Tensor, rotations: Tensor, groups: Sequence[_Group]
    ) -> Tensor:
        """The attention of one layer (R, H d), after storing keys and values of the step."""
        torch, c = self._torch, self.config
        qkv = self._normed(rows) @ layer.qkv
        if layer.qkv_bias is not None:
            qkv = qkv + layer.qkv_bias
        heads = qkv.view(len(rows), -1, c.head_dim)
        turning = heads[:, : c.heads + c.kv_heads].to(rotations.real.dtype)  # rotary pairs as complex numbers
        pairs = torch.view_as_complex(turning.reshape(len(rows), -1, c.head_dim // 2, 2))
        turned = torch.view_as_real(pairs * rotations).flatten(2).to(rows.dtype)
        queries, keys = turned[:, : c.heads], turned[:, c.heads :]
        pages.view(-1, 2, c.kv_heads, c.head_dim)[slots] = torch.stack([keys, heads[:, c.heads + c.kv_heads :]], dim=1)
        mixed = torch.empty_like(queries)
        for group in groups:
            mixed[group.start : group.stop] = self._group(queries[group.start : group.stop], pages, group)
        return mixed.flatten(1)

    def _group(self, queries: Tensor, pages: Tensor, group: _Group) -> Tensor:
        """Attention of the rows of one group, (rows, H, d); queries are scaled already."""
        c, attention = self.config, self._torch.nn.functional.scaled_dot_product_attention
        count, together = len(queries), c.heads // c.kv_heads
        keys = slice(group.first_key, group.first_key + group.mask.shape[-1])
        held = pages.index_select(0, group.pages.flatten())  # pages[group.pages] takes twice as long
        held = held.view(len(group.pages), -1, 2, c.kv_heads, c.head_dim)[:, keys]  # (B, T, 2, KV, d)
        key, value = held[:, :, 0].transpose(1, 2), held[:, :, 1].transpose(1, 2)  # (B, KV, T, d)
        by_head = queries.view(count, c.kv_heads, together, c.head_dim)
        if group.decodes:  # the query heads of a KV head are rows of one product
            mixed: Tensor = attention(by_head, key, value, attn_mask=group.mask, scale=1.0)
            return mixed.reshape(count, c.heads, c.head_dim)
        stacked = by_head.permute(1, 2, 0, 3).reshape(1, c.kv_heads, together * count, c.head_dim)
        mixed = attention(stacked, key, value, attn_mask=group.mask.repeat(together, 1), scale=1.0)
        unstacked = mixed.view(c.kv_heads, together, count, c.head_dim).permute(2, 0, 1, 3)
        return unstacked.reshape(count, c.heads, c.head_dim)

    def _normed(self, rows: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich, 2019) without its gain, which is folded into the next matrix."""
        exact = rows.to(self._torch.float32) if BYTES[self.dtype] == 2 else rows
        scale = (exact.square().mean(dim=1, keepdim=True) + self.config.norm_eps).rsqrt()
        normed: Tensor = (exact * scale).to(rows.dtype)
        return normed


def _imported() -> Any:
    """PyTorch. Raises UsageError where it is missing."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "The executor 'torch' needs PyTorch, which is not installed here: 'pip install torch', or take the "
            "executor 'llama', which needs NumPy alone."
        ) from None
    return torch
