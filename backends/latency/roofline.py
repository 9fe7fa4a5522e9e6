"""Roofline: each matrix product takes the longer of its arithmetic and its memory traffic.

Adds attention (prefill by arithmetic, decode by reading its KV), all-reduces between tensor-parallel GPUs,
the experts that the tokens of a step meet, and a fixed cost of the host per layer and per sequence. Shapes and peaks
come from `models.toml` and `hardware.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.catalog import Hardware, Model, check_parallel, hardware, model

if TYPE_CHECKING:
    import numpy as np

LAYER_OVERHEAD_S = 97.6e-6


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a step of `model` on `tp` x `pp` GPUs; weights, KV and operands take `dtype_bytes` an element.

    weight_bits (of the matrices of the layers) and kv_bits are those of what is read where it is quantised, with the
    scales of its groups (4 bits in groups of 128 are 4.125); the arithmetic stays that of `dtype_bytes`, and the
    simulator counts its memory with them. Experts: a step reads those that its tokens meet on the average, each
    choosing without preference, divided by `tp` in equal shares. Latent attention runs in its absorbed form in decode.

    Shares are of the dense peak, the memory bandwidth and the link (one direction). memory_share 0.892,
    flops_share 0.582 and layer_overhead_s 97.6 us come from a fit of a whole-model roofline to four public runs of
    vLLM with Llama-3.1-70B on H100 (microsoft/apex_plus, `vllm/results`): 7.81 ms a step over its 80 layers. It holds
    launches, host work and the latency of all-reduces, which come once a layer. overhead_s is that of a whole step of
    a stage, and takes its place where it is given. link_share 0.6 lies in what 64 MiB all-reduces reach on DGX A100 and
    H100 (0.52 to 0.81, microsoft/vidur `data/profiling/network`). seq_s, the host's work per running
    sequence, is 0 by default: the same fit gives 0.351 ms, DistServe's constants 0.04 to 0.06 ms.
    link_latency_s is a fixed time of each of the two all-reduces of a layer, 0 by default as the overhead holds it.
    paged_prefill is how many times as long attention of prompts takes on paged KV as on contiguous KV: up to 1.45 with
    FlashInfer's kernels and 3.92 with FlashAttention's (Prabhu et al., vAttention, ASPLOS 2025, abstract).
    With `pp` stages the time is that of one stage: a batch leaves after pp of them.
    """

    model: str = "llama2-7b"
    hardware: str = "a100-80g"
    tp: int = 1
    pp: int = 1
    dtype_bytes: int = 2
    memory_share: float = 0.892
    flops_share: float = 0.582
    link_share: float = 0.6
    layer_overhead_s: float = LAYER_OVERHEAD_S
    overhead_s: float | None = None
    seq_s: float = 0.0
    link_latency_s: float = 0.0
    weight_bits: float | None = None
    kv_bits: float | None = None
    paged_prefill: float = 1.0
    _shape: Model = field(init=False, repr=False, compare=False)
    _gpu: Hardware = field(init=False, repr=False, compare=False)
    _flop_s: float = field(init=False, repr=False, compare=False)
    _byte_s: float = field(init=False, repr=False, compare=False)
    _pair_s: float = field(init=False, repr=False, compare=False)  # one token attends to one token: arithmetic
    _stored_s: float = field(init=False, repr=False, compare=False)  # KV of one token is read
    _context_s: float = field(init=False, repr=False, compare=False)
    _weight_bytes: float = field(init=False, repr=False, compare=False)
    _host_s: float = field(init=False, repr=False, compare=False)
    _heads: dict[int, float] = field(init=False, repr=False, compare=False)
    _layers: dict[int, float] = field(init=False, repr=False, compare=False)
    _decodes: dict[int, tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("memory_share", "flops_share", "link_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        for name in ("layer_overhead_s", "overhead_s", "seq_s", "link_latency_s"):
            if (getattr(self, name) or 0.0) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.paged_prefill < 1:
            raise ValueError("paged_prefill must be at least 1, the time on contiguous KV")
        if self.overhead_s is not None and self.layer_overhead_s != LAYER_OVERHEAD_S:
            raise ValueError("overhead_s is that of all layers; give it or layer_overhead_s, not both")
        for name in ("weight_bits", "kv_bits"):
            if (bits := getattr(self, name)) is not None and not 0 < bits <= 8 * self.dtype_bytes:
                raise ValueError(f"{name} must be above 0 and at most {8 * self.dtype_bytes}, the bits of dtype_bytes")
        shape, gpu = model(self.model), hardware(self.hardware)
        check_parallel(shape, self.tp, self.pp)
        put = object.__setattr__
        put(self, "_shape", shape)
        put(self, "_gpu", gpu)
        put(self, "_flop_s", 1 / (gpu.peak_flops(self.dtype_bytes) * self.flops_share))
        put(self, "_byte_s", 1 / (gpu.bandwidth_bytes_per_s * self.memory_share))
        put(self, "_pair_s", self._pair_flops * self._flop_s)
        put(self, "_stored_s", self._kv_bytes * self._byte_s)
        put(self, "_context_s", max(self._decode_flops * self._flop_s, self._stored_s))
        put(self, "_weight_bytes", (self.stored_bits[0] or 16) / 8)
        host_s = self.layer_overhead_s * self._stage_layers if self.overhead_s is None else self.overhead_s
        put(self, "_host_s", host_s)
        put(self, "_heads", {})
        put(self, "_layers", {})
        put(self, "_decodes", {})

    @property
    def _stage_layers(self) -> int:
        return self._shape.layers // self.pp

    @property
    def stored_bits(self) -> tuple[float | None, float | None]:
        """Bits of an element of the weights of the layers and of the KV, for counting memory; None: the model's own."""
        plain = None if self.dtype_bytes == 2 else 8 * self.dtype_bytes
        return self.weight_bits or plain, self.kv_bits or plain

    @property
    def _kv_bytes(self) -> float:
        """Bytes of KV of one cached token on one GPU, over the layers of a stage."""
        return self._shape.kv_elements_per_gpu(self.tp) * (self.stored_bits[1] or 16) / 8 * self._stage_layers

    @property
    def _pair_flops(self) -> int:
        """FLOPs of one prompt token attending to one token on one GPU, over the layers of a stage."""
        m = self._shape
        widths = 2 * m.head_dim if m.latent is None else m.latent.nope + m.latent.rope + m.latent.value
        return 2 * (m.heads // self.tp) * widths * self._stage_layers

    @property
    def _decode_flops(self) -> int:
        """The same of a decode, which with latent attention works on what is kept."""
        m = self._shape
        if m.latent is None:
            return self._pair_flops
        return 2 * (m.heads // self.tp) * (m.latent.kept + m.latent.rank) * self._stage_layers

    def gemm_s(self, rows: int, inner: int, columns: int) -> float:
        """Seconds of (rows x inner) times (inner x columns): the longer of arithmetic and traffic."""
        return self._product_s(rows, inner, columns, 1, self.dtype_bytes)

    def _product_s(self, rows: float, inner: int, columns: int, matrices: float, weight_bytes: float) -> float:
        """Seconds of `rows` rows over `matrices` equal matrices, the longer of arithmetic and traffic."""
        moved = (rows * inner + rows * columns) * self.dtype_bytes + matrices * inner * columns * weight_bytes
        return max(2 * rows * inner * columns * self._flop_s, moved * self._byte_s)

    def _linear_s(self, rows: int, inner: int, columns: int) -> float:
        """A product with weights of a layer, which may be quantised."""
        return self._product_s(rows, inner, columns, 1, self._weight_bytes)

    def allreduce_s(self, tokens: int) -> float:
        """Seconds of one ring all-reduce of the activations of `tokens` tokens, two bytes an element."""
        sent_bytes = 2 * (self.tp - 1) / self.tp * tokens * self._shape.hidden * 2
        fixed_s = self.link_latency_s if self.tp > 1 else 0.0
        return fixed_s + sent_bytes / (self._gpu.link_bytes_per_s * self.link_share)

    def layers_s(self, tokens: int) -> float:
        """Seconds of the layers of a stage but for attention: projections, feed-forward, all-reduces."""
        known = self._layers.get(tokens)
        if known is None:
            known = self._layers[tokens] = self._all_layers_s(tokens)
        return known

    def _all_layers_s(self, tokens: int) -> float:
        m, layers = self._shape, self._stage_layers
        beside_s = self._projections_s(tokens)
        routed = min(m.routed_layers, layers)
        dense_s = (layers - routed) * (beside_s + self._ffn_s(tokens, m.ffn) + 2 * self.allreduce_s(tokens))
        if not routed:
            return dense_s
        return dense_s + routed * (beside_s + self._experts_s(tokens) + 2 * self.allreduce_s(tokens))

    def _projections_s(self, tokens: int) -> float:
        """Queries, keys, values and output of one layer."""
        m, tp = self._shape, self.tp
        q = m.heads // tp * m.head_dim
        if m.latent is None:
            kv = 2 * -(-m.kv_heads // tp) * m.head_dim
            return self._linear_s(tokens, m.hidden, q + kv) + self._linear_s(tokens, q, m.hidden)
        low, heads = m.latent, m.heads // tp
        time_s = self._linear_s(tokens, m.hidden, low.query_rank + low.kept)
        time_s += self._linear_s(tokens, low.query_rank or m.hidden, heads * (low.nope + low.rope))
        time_s += self._linear_s(tokens, low.rank, heads * (low.nope + low.value))
        return time_s + self._linear_s(tokens, heads * low.value, m.hidden)

    def _ffn_s(self, tokens: int, width: int) -> float:
        """A feed-forward of `width` that all tokens pass."""
        m, ffn = self._shape, -(-width // self.tp)
        up_s = self._linear_s(tokens, m.hidden, 2 * ffn if m.gated else ffn)
        return up_s + self._linear_s(tokens, ffn, m.hidden)

    def _experts_s(self, tokens: int) -> float:
        """The gate, the experts that `tokens` tokens meet and those that are shared."""
        m, experts = self._shape, self._shape.experts
        assert experts is not None
        rows, hit, ffn = tokens * experts.per_token, experts.hit(tokens), -(-experts.ffn // self.tp)
        time_s = self._linear_s(tokens, m.hidden, experts.routed)
        time_s += self._product_s(rows, m.hidden, 2 * ffn, hit, self._weight_bytes)
        time_s += self._product_s(rows, ffn, m.hidden, hit, self._weight_bytes)
        return time_s + (self._ffn_s(tokens, experts.shared_width) if experts.shared else 0.0)

    def attention_s(self, tokens: int, stored: int) -> float:
        """Seconds of attention of one piece of prompt: `tokens` new ones, causal, after `stored` ones."""
        pairs = tokens * stored + tokens * (tokens + 1) // 2
        return self.paged_prefill * max(pairs * self._pair_s, (tokens + stored) * self._stored_s)

    def _dense_s(self, tokens: int, sampled: int, decode_seqs: int) -> float:
        """Everything but the reading of context: host, layers, the head for the `sampled` last tokens."""
        head_s = self._heads.get(sampled)
        if head_s is None:
            head_s = self.gemm_s(sampled, self._shape.hidden, -(-self._shape.vocab // self.tp))
            self._heads[sampled] = head_s
        return self._host_s + self.seq_s * decode_seqs + self.layers_s(tokens) + head_s

    def decode_line(self, decode_seqs: int) -> tuple[float, float]:
        """(base, slope): seconds without context, and per cached token."""
        known = self._decodes.get(decode_seqs)
        if known is None:
            dense_s = self._dense_s(decode_seqs, decode_seqs, decode_seqs)
            known = self._decodes[decode_seqs] = (dense_s + self._context_s * decode_seqs, self._context_s)
        return known

    def step_s(self, prefills: Sequence[tuple[int, int]], decode_seqs: int, context_tokens: int) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, attention_s = decode_seqs, 0.0
        for new, stored in prefills:
            tokens += new
            attention_s += self.attention_s(new, stored)
        time_s = self._dense_s(tokens, decode_seqs + len(prefills), decode_seqs)
        return time_s + self._context_s * (decode_seqs + context_tokens) + attention_s

    def decode_s(self, decode_seqs: int, context_tokens: int) -> float:
        """Seconds of a step of decodes alone."""
        base_s, slope_s = self.decode_line(decode_seqs)
        return base_s + slope_s * context_tokens

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        base_s, slope_s = self.decode_line(decode_seqs)
        times: np.ndarray = base_s + slope_s * context_tokens
        return times
