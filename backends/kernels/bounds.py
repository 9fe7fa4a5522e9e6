"""The shortest time that the peaks of a GPU permit for each kind of kernel: its arithmetic, memory traffic or link."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.catalog import Format, Hardware, Latent

Array = npt.NDArray[np.float64]
ACTIVATION_BYTES = 2
"""Of an element that passes from kernel to kernel."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer on one GPU: `queries` heads over `stored` ones of `dim` elements, or over a `latent`.

    They see the last `window` tokens; 0: all of them.
    """

    queries: int
    stored: int
    dim: int
    window: int = 0
    latent: Latent | None = None

    @property
    def kept(self) -> int:
        """Elements stored per token."""
        return 2 * self.stored * self.dim if self.latent is None else self.latent.kept

    @property
    def pair(self) -> int:
        """Multiply-adds of a prompt token that attends to one token."""
        if self.latent is None:
            return 2 * self.queries * self.dim
        return self.queries * (self.latent.nope + self.latent.rope + self.latent.value)

    @property
    def decode_pair(self) -> int:
        """The same of a decode, which works on the latent itself."""
        return self.pair if self.latent is None else self.queries * (self.latent.kept + self.latent.rank)


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Gated experts of one layer: `routed` of width `ffn`, `chosen` per token, on `ep` parts of `tp` GPUs each.

    Those of a token lie on `nodes` nodes at most; 0: on any. The fullest part has `skew` times the mean of the tokens.
    """

    hidden: int
    ffn: int
    routed: int
    chosen: int
    tp: int = 1
    ep: int = 1
    nodes: int = 0
    skew: float = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds of kernels on `gpu` at its peaks; arrays are broadcast."""

    gpu: Hardware

    def product_s(self, rows: Array, columns: int | Array, inner: int | Array, fmt: Format) -> Array:
        """(rows x inner) times (inner x columns) of weights."""
        moved = rows * inner * fmt.activation_bits / 8 + inner * columns * fmt.bits / 8
        moved = moved + rows * columns * ACTIVATION_BYTES
        return np.maximum(2 * rows * inner * columns / self.gpu.peak_or_wider(fmt.compute), self.moved_s(moved))

    def prefill_s(self, seqs: Array, new: Array, stored: Array, heads: Heads, kv_bits: float) -> Array:
        """Causal attention of `new` tokens after `stored` ones in each of `seqs` sequences."""
        pairs = new * stored + new * (new + 1) / 2
        if heads.window:
            pairs = np.minimum(pairs, new * heads.window)
        moved = (new + stored) * heads.kept * kv_bits / 8 + new * heads.pair * ACTIVATION_BYTES
        return np.maximum(2 * seqs * pairs * heads.pair / self.gpu.bf16_flops, self.moved_s(seqs * moved))

    def decode_s(self, seqs: Array, context: Array, heads: Heads, kv_bits: float) -> Array:
        """Attention of one new token to `context` ones in each of `seqs` sequences."""
        pairs = seqs * ((np.minimum(context, heads.window) if heads.window else context) + 1)
        arithmetic = 2 * pairs * heads.decode_pair / self.gpu.bf16_flops
        return np.maximum(arithmetic, self.moved_s(pairs * heads.kept * kv_bits / 8))

    def experts_s(self, tokens: Array, layer: ExpertLayer, fmt: Format) -> Array:
        """The experts of one layer on one GPU, each token choosing without preference."""
        matrix = 3 * layer.hidden * layer.ffn / layer.tp
        rows = tokens * layer.chosen / layer.ep * layer.skew
        hit = layer.routed / layer.ep * (1 - (1 - layer.chosen / layer.routed) ** tokens)
        moved = hit * matrix * fmt.bits / 8 + rows * layer.hidden * (fmt.activation_bits / 8 + ACTIVATION_BYTES)
        return np.maximum(2 * rows * matrix / self.gpu.peak_or_wider(fmt.compute), self.moved_s(moved))

    def all_reduce_s(self, elements: Array, gpus: int) -> Array:
        """A ring all-reduce of so many elements over GPUs: a scatter and a gather."""
        return 2 * self.gather_s(elements, gpus)

    def gather_s(self, elements: Array, gpus: int) -> Array:
        """An all-gather, or a reduce-scatter, of so many elements in all, within a node and then between nodes."""
        sent = elements * ACTIVATION_BYTES
        inside = min(gpus, self.gpu.link_gpus or gpus)
        inside_s = (inside - 1) / inside * sent / self.gpu.group_bytes_per_s(inside)
        if inside == gpus or self.gpu.network_bytes_per_s is None:
            return np.asarray((gpus - 1) / gpus * sent / self.gpu.group_bytes_per_s(gpus))
        between_s = (1 - inside / gpus) * sent / inside / self.gpu.network_bytes_per_s  # each GPU a part of it
        return np.asarray(inside_s + between_s)

    def exchange_s(self, tokens: Array, layer: ExpertLayer) -> Array:
        """Sending the `tokens` tokens of each GPU to the GPUs of their experts, and back: over the link of a node, or
        over the network, once to each of the other nodes that a token's experts lie on."""
        gpus = layer.ep * layer.tp
        inside, sent = min(gpus, self.gpu.link_gpus or gpus), 2 * tokens * layer.hidden * ACTIVATION_BYTES
        met = (gpus - 1) * (1 - (1 - 1 / gpus) ** layer.chosen)
        link_s = met * sent / self.gpu.group_bytes_per_s(inside)
        if inside == gpus or self.gpu.network_bytes_per_s is None:
            return np.asarray(link_s)
        nodes = gpus / inside
        visited = min(nodes * (1 - (1 - 1 / nodes) ** layer.chosen), layer.nodes or nodes) * (1 - 1 / nodes)
        return np.asarray(np.maximum(link_s * inside / gpus, visited * sent / self.gpu.network_bytes_per_s))

    def moved_s(self, moved_bytes: Array) -> Array:
        """So many bytes between memory and processor."""
        return np.asarray(moved_bytes / self.gpu.bandwidth_bytes_per_s)
