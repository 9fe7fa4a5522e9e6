"""The kernels of one step of a model on a group of GPUs, and their times over grids of what a step may hold."""

from dataclasses import dataclass

import numpy as np

from backends.kernels.bounds import ACTIVATION_BYTES, Array, ExpertLayer, Heads
from backends.kernels.tables import MeasuredKernels
from harness.catalog import Experts, Formats, Model, Shape, format_named
from harness.errors import UsageError

TOKENS = np.unique(np.concatenate([
    np.arange(1, 17), np.arange(24, 129, 8), np.arange(160, 513, 32), np.arange(640, 2049, 128),
    1024 * np.arange(3, 9), 4096 * np.arange(3, 9), [65536, 131072],
])).astype(float)  # fmt: skip
SEQS = np.array([2.0**i for i in range(13)])
DECODES = np.array([1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096], float)
CONTEXT = 128 * np.array([0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 8192], float)
CHUNK = np.array(
    [1, 16, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768, 65536, 131072], float
)
STORED = np.array([0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 1048576], float)
"""What depends on the tokens of a step alone."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Seconds of the parts of a step on one stage of `shape`, whose `dp` groups share its sequences evenly."""

    model: Model
    shape: Shape
    formats: Formats
    kernels: MeasuredKernels
    skew: float = 1.0

    def linear_s(self, tokens: Array) -> Array:
        """Projections of attention, and plain feed-forwards."""
        m, k, fmt = self.model, self.kernels, format_named(self.formats.attention)
        rows, heads = np.maximum(tokens / self.shape.dp, 1), m.heads // self.shape.tp
        if m.latent is None:
            queries, stored = heads * m.head_dim, -(-m.kv_heads // self.shape.tp) * m.head_dim
            layer_s = k.product_s(rows, (2 if m.output_gate else 1) * queries + 2 * stored, m.hidden, fmt)
            layer_s = layer_s + k.product_s(rows, m.hidden, queries, fmt)
        else:
            low = m.latent
            layer_s = k.product_s(rows, low.query_rank + low.kept, m.hidden, fmt)
            layer_s = layer_s + k.product_s(rows, heads * (low.nope + low.rope), low.query_rank or m.hidden, fmt)
            layer_s = layer_s + k.product_s(rows, heads * (low.nope + low.value), low.rank, fmt)
            layer_s = layer_s + k.product_s(rows, m.hidden, heads * low.value, fmt)
        return self._share * (m.layers * layer_s + m.dense_layers * self._feed_forward(tokens, m.ffn))

    def experts_s(self, tokens: Array) -> Array:
        """Gates, routed experts and shared ones; 0 in a dense model."""
        m, e, k = self.model, self.model.experts, self.kernels
        if e is None:
            return np.zeros_like(tokens)
        one = k.experts_s(tokens, self._expert_layer(e), format_named(self.formats.experts))
        one = one + k.product_s(tokens, e.routed, m.hidden, format_named("bf16")) + 2 * k.moved_s(4 * tokens * e.routed)
        if e.shared:
            one = one + self._feed_forward(tokens, e.shared_width)
        return self._share * m.routed_layers * one

    def communication_s(self, tokens: Array) -> Array:
        """Two all-reduces a layer. Between groups with sequences of their own instead of the second one a gather and a
        scatter, or, in layers with experts, tokens go to their experts and back, if that is faster."""
        k, m, shape = self.kernels, self.model, self.shape
        elements = tokens * m.hidden
        reduce_s = k.all_reduce_s(elements / shape.dp, shape.tp)
        if shape.dp == 1:
            return self._share * m.layers * 2 * reduce_s
        gather_scatter_s = 2 * k.gather_s(elements, shape.stage_gpus)
        layers_s = m.layers * (reduce_s + gather_scatter_s)
        if m.experts is not None and shape.ep == shape.stage_gpus:
            gpu_tokens = np.maximum(tokens / shape.stage_gpus, 1)
            try:
                sent = np.minimum(gather_scatter_s, k.exchange_s(gpu_tokens, self._expert_layer(m.experts)))
            except UsageError:  # none were measured
                return self._share * layers_s
            layers_s = layers_s + m.routed_layers * (sent - gather_scatter_s)
        return self._share * layers_s

    def other_s(self, tokens: Array) -> Array:
        """Two norms with their residuals and a rotary embedding a layer."""
        group_tokens, m = tokens / self.shape.dp, self.model
        norm_s = self.kernels.moved_s(3 * group_tokens * m.hidden * ACTIVATION_BYTES)
        rotary_s = self.kernels.moved_s(2 * group_tokens * (m.heads // self.shape.tp) * m.head_dim * ACTIVATION_BYTES)
        return self._share * m.layers * (2 * norm_s + rotary_s) + self.launches * (self.kernels.gpu.kernel_gap_s or 0.0)

    def head_s(self, seqs: Array) -> Array:
        """The head and sampling for so many sequences."""
        columns = -(-self.model.vocab // self.shape.tp)
        matrix_s = self.kernels.product_s(seqs, columns, self.model.hidden, format_named(self.formats.head))
        return matrix_s + self.kernels.moved_s(4 * seqs * self.model.vocab)

    def decode_s(self, seqs: Array, context: Array) -> Array:
        """Attention of `seqs` decodes with `context` tokens each."""
        group_seqs, kv = np.maximum(seqs / self.shape.dp, 1), format_named(self.formats.kv)
        total = np.zeros(np.broadcast_shapes(seqs.shape, context.shape))
        for heads, layers in self._attention():
            total = total + layers * self.kernels.decode_s(group_seqs, np.maximum(context, 1), heads, kv)
        return self._share * (total + self._linear_attention_s(group_seqs))

    def prefill_s(self, new: Array, stored: Array) -> Array:
        """Attention of one piece of prompt, `new` tokens after `stored` ones."""
        total = np.zeros(np.broadcast_shapes(new.shape, stored.shape))
        for heads, layers in self._attention():
            total = total + layers * self.kernels.prefill_s(new, stored, heads, format_named(self.formats.kv))
        return self._share * (total + self._linear_attention_s(np.maximum(new / 64, 1)))  # a state per 64 tokens

    def grids(self) -> dict[str, Array]:
        """The tables of the latency model `operators`, and the parts of `dense_s`."""
        parts = {
            "linear_s": self.linear_s(TOKENS), "experts_s": self.experts_s(TOKENS),
            "communication_s": self.communication_s(TOKENS), "other_s": self.other_s(TOKENS),
        }  # fmt: skip
        return {
            "tokens": TOKENS, "dense_s": sum(parts.values(), np.zeros(len(TOKENS))),
            "seqs": SEQS, "head_s": self.head_s(SEQS),
            "decode_seqs": DECODES, "decode_context": CONTEXT, "decode_s": self.decode_s(DECODES[:, None], CONTEXT),
            "chunk": CHUNK, "stored": STORED, "prefill_s": self.prefill_s(CHUNK[:, None], STORED),
        } | parts  # fmt: skip

    @property
    def launches(self) -> float:
        """Kernels of one step, counted in the layers of vLLM's and SGLang's models."""
        m, sent = self.model, 2 * (self.shape.stage_gpus > 1)
        quantised = format_named(self.formats.attention).compute != "bf16"
        attention = (6 if m.latent is None else 11) + (2 if m.latent is None else 4) * quantised
        routed = 10 + (4 if m.experts is not None and m.experts.shared else 0)
        fed = m.dense_layers * (4 + 2 * quantised) + (0 if m.experts is None else m.routed_layers * routed)
        return self._share * (m.layers * (attention + sent) + fed)

    @property
    def _share(self) -> float:
        """Of the layers, those of one stage."""
        return 1 / self.shape.pp

    def _expert_layer(self, e: Experts) -> ExpertLayer:
        tp, nodes = self.shape.stage_gpus // self.shape.ep, e.group_limit if e.groups > 1 else 0
        return ExpertLayer(self.model.hidden, e.ffn, e.routed, e.per_token, tp, self.shape.ep, nodes, self.skew)

    def _feed_forward(self, tokens: Array, width: int) -> Array:
        m, k, fmt = self.model, self.kernels, format_named(self.formats.linear)
        ffn = max(1, width // self.shape.tp)
        rows = np.maximum(tokens / self.shape.dp, 1)
        up_s = k.product_s(rows, 2 * ffn if m.gated else ffn, m.hidden, fmt)
        return up_s + k.product_s(rows, m.hidden, ffn, fmt) + k.moved_s(3 * rows * ffn * ACTIVATION_BYTES)

    def _attention(self) -> list[tuple[Heads, int]]:
        """Kinds of attention and the number of their layers."""
        m, tp = self.model, self.shape.tp
        chosen = 0 if m.latent is None else m.latent.index_topk or 0
        full = Heads(m.heads // tp, -(-m.kv_heads // tp), m.head_dim, chosen, m.latent)
        if m.window is None:
            return [(full, m.full_layers)]
        windowed = Heads(full.queries, full.stored, full.dim, m.window.tokens)
        return [(full, m.full_layers), (windowed, m.window.layers)]

    def _linear_attention_s(self, states: Array) -> Array | float:
        """Reading and writing so many states of linear attention."""
        linear = self.model.linear
        if linear is None:
            return 0.0
        size = linear.state_elements * linear.state_bits / 8 / self.shape.tp
        return linear.layers * self.kernels.moved_s(2 * states * size)
