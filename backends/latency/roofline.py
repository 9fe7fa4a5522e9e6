"""Roofline: each matrix product takes the longer of its arithmetic and its memory traffic.

Adds attention (prefill by arithmetic, decode by reading its KV), all-reduces between tensor-parallel GPUs,
and a fixed cost of the host per step. Shapes and peaks come from `models.toml` and `hardware.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends._catalog import Hardware, Model, check_parallel, hardware, model

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a step of `model` on `tp` x `pp` GPUs; weights and KV take `dtype_bytes` an element.

    Shares are of the dense peak, the memory bandwidth and the link (one direction). memory_share 0.892,
    flops_share 0.582 and overhead_s 7.81 ms come from a fit of a whole-model roofline to four public runs of
    vLLM with Llama-3.1-70B on H100 (microsoft/apex_plus, `vllm/results`); the overhead holds launches, host
    work and the latency of all-reduces. link_share 0.6 lies in what 64 MiB all-reduces reach on DGX A100 and
    H100 (0.52 to 0.81, microsoft/vidur `data/profiling/network`). seq_s, the host's work per running
    sequence, is 0 by default: the same fit gives 0.351 ms, DistServe's constants 0.04 to 0.06 ms.
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
    overhead_s: float = 7.81e-3
    seq_s: float = 0.0
    _shape: Model = field(init=False, repr=False, compare=False)
    _gpu: Hardware = field(init=False, repr=False, compare=False)
    _flop_s: float = field(init=False, repr=False, compare=False)
    _byte_s: float = field(init=False, repr=False, compare=False)
    _pair_s: float = field(init=False, repr=False, compare=False)  # one token attends to one token: arithmetic
    _stored_s: float = field(init=False, repr=False, compare=False)  # KV of one token is read
    _context_s: float = field(init=False, repr=False, compare=False)
    _heads: dict[int, float] = field(init=False, repr=False, compare=False)
    _layers: dict[int, float] = field(init=False, repr=False, compare=False)
    _decodes: dict[int, tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("memory_share", "flops_share", "link_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        if self.overhead_s < 0 or self.seq_s < 0:
            raise ValueError("overhead_s and seq_s must not be negative")
        shape, gpu = model(self.model), hardware(self.hardware)
        check_parallel(shape, self.tp, self.pp)
        put = object.__setattr__
        put(self, "_shape", shape)
        put(self, "_gpu", gpu)
        put(self, "_flop_s", 1 / (gpu.peak_flops(self.dtype_bytes) * self.flops_share))
        put(self, "_byte_s", 1 / (gpu.bandwidth_bytes_per_s * self.memory_share))
        put(self, "_pair_s", self._kv_flops * self._flop_s)
        put(self, "_stored_s", self._kv_bytes * self._byte_s)
        put(self, "_context_s", max(self._pair_s, self._stored_s))
        put(self, "_heads", {})
        put(self, "_layers", {})
        put(self, "_decodes", {})

    @property
    def _stage_layers(self) -> int:
        return self._shape.layers // self.pp

    @property
    def _kv_bytes(self) -> int:
        """Bytes of KV of one cached token on one GPU, over the layers of a stage."""
        heads = -(-self._shape.kv_heads // self.tp)
        return 2 * heads * self._shape.head_dim * self.dtype_bytes * self._stage_layers

    @property
    def _kv_flops(self) -> int:
        """FLOPs of one token attending to one cached token on one GPU, over the layers of a stage."""
        return 4 * (self._shape.heads // self.tp) * self._shape.head_dim * self._stage_layers

    def gemm_s(self, rows: int, inner: int, columns: int) -> float:
        """Seconds of (rows x inner) times (inner x columns): the longer of arithmetic and traffic."""
        elements = rows * inner + inner * columns + rows * columns
        return max(2 * rows * inner * columns * self._flop_s, elements * self.dtype_bytes * self._byte_s)

    def allreduce_s(self, tokens: int) -> float:
        """Seconds of one ring all-reduce of the activations of `tokens` tokens, two bytes an element."""
        sent_bytes = 2 * (self.tp - 1) / self.tp * tokens * self._shape.hidden * 2
        return sent_bytes / (self._gpu.link_bytes_per_s * self.link_share)

    def layers_s(self, tokens: int) -> float:
        """Seconds of the layers of a stage but for attention: projections, feed-forward, all-reduces."""
        known = self._layers.get(tokens)
        if known is None:
            known = self._layers[tokens] = self._stage_layers * self._layer_s(tokens)
        return known

    def _layer_s(self, tokens: int) -> float:
        m, tp = self._shape, self.tp
        ffn = -(-m.ffn // tp)
        q, kv = m.heads // tp * m.head_dim, 2 * -(-m.kv_heads // tp) * m.head_dim
        time_s = self.gemm_s(tokens, m.hidden, q + kv) + self.gemm_s(tokens, q, m.hidden)
        time_s += self.gemm_s(tokens, m.hidden, 2 * ffn if m.gated else ffn) + self.gemm_s(tokens, ffn, m.hidden)
        return time_s + 2 * self.allreduce_s(tokens)

    def attention_s(self, tokens: int, stored: int) -> float:
        """Seconds of attention of one piece of prompt: `tokens` new ones, causal, after `stored` ones."""
        pairs = tokens * stored + tokens * (tokens + 1) // 2
        return max(pairs * self._pair_s, (tokens + stored) * self._stored_s)

    def _dense_s(self, tokens: int, sampled: int, decode_seqs: int) -> float:
        """Everything but the reading of context: host, layers, the head for the `sampled` last tokens."""
        head_s = self._heads.get(sampled)
        if head_s is None:
            head_s = self.gemm_s(sampled, self._shape.hidden, -(-self._shape.vocab // self.tp))
            self._heads[sampled] = head_s
        return self.overhead_s + self.seq_s * decode_seqs + self.layers_s(tokens) + head_s

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
