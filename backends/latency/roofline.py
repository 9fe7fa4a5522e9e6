"""Roofline: each matrix product takes the longer of its arithmetic and its memory traffic.

Adds attention (prefill by arithmetic, decode by reading its KV), all-reduces between tensor-parallel GPUs,
the experts that the tokens of a step meet, and a fixed cost of the host per layer and per sequence. Shapes and peaks
come from `models.toml` and `hardware.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from backends.latency._shared import largest, total
from harness.api import StepLoads, StepParts
from harness.bounds import NotNegative, PositiveShare, check
from harness.catalog import Hardware, Model, Shape, bits_of_kv, format_named, hardware, model

LAYER_OVERHEAD_S = 97.6e-6
STATE_TOKENS = 64
"""Tokens of a prompt for which linear attention reads and writes its state once (the chunks of its kernels)."""


class _Stored(NamedTuple):
    """How the matrices of a part are kept and multiplied: seconds of an operation, bytes of an element of each kind."""

    flop_s: float
    in_bytes: float
    weight_bytes: float
    out_bytes: float


class _Attention(NamedTuple):
    """Attention of one kind of the layers of a stage: seconds of a pair, in prompts and decodes, and of a token read.

    With a `window` a token attends to so many tokens at most, itself among them.
    """

    pair_s: float
    decode_s: float
    stored_s: float
    window: int = 0

    def piece_s(self, tokens: float, stored: float) -> float:
        """`tokens` new ones, causal, after `stored` ones."""
        pairs, read = tokens * stored + tokens * (tokens + 1) // 2, tokens + stored
        if self.window and read > self.window:
            below = min(tokens, max(0, self.window - stored))  # tokens that see all before them
            pairs = below * stored + below * (below + 1) // 2 + (tokens - below) * self.window
            read = min(read, tokens + self.window)
        return max(pairs * self.pair_s, read * self.stored_s)


class _Layers(NamedTuple):
    """Seconds of the layers of a stage but for attention, and those of their parts."""

    total_s: float
    linear_s: float
    experts_s: float
    communication_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a step of `model` on `tp` x `dp` x `pp` GPUs, its weights and KV in the formats of the model.

    A product runs at the peak of its format, or of the next wider one that the GPU has. With dtype_bytes weights, KV
    and operands take so many bytes an element instead. weight_bits (of the matrices of the layers) and kv_bits are
    those of what is read where it is quantised, with the scales of its groups (4 bits in groups of 128 are 4.125); the
    arithmetic stays that of `dtype_bytes`, by default 2, and the simulator counts its memory with them. Experts: a step
    reads those that its tokens meet on the average, each choosing without preference, on `ep` parts of the GPUs of a
    stage, which divide their matrices. Latent attention runs in its absorbed form in decode. Layers with a window read
    the window, and decodes are taken as equally long for that; sparse attention reads the tokens that it chooses.

    `dp` groups of `tp` GPUs share the sequences of a step evenly, but a piece of a prompt is never divided: the step
    takes as long as its fullest group. Experts get the tokens of all groups and send them back, over the link of a node
    and, of more GPUs than it joins, over the network of the GPU; a token goes to no part of which it chooses no expert,
    and crosses once to a node, to `group_limit` nodes at most where the model limits them. The fullest part has `skew`
    times the mean tokens of a part.

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
    dp: int = 1
    ep: int = 1
    dtype_bytes: int | None = None
    memory_share: PositiveShare = 0.892
    flops_share: PositiveShare = 0.582
    link_share: PositiveShare = 0.6
    layer_overhead_s: NotNegative = LAYER_OVERHEAD_S
    overhead_s: NotNegative | None = None
    seq_s: NotNegative = 0.0
    link_latency_s: NotNegative = 0.0
    weight_bits: float | None = None
    kv_bits: float | None = None
    paged_prefill: Annotated[float, Meta(ge=1, description="the time on contiguous KV")] = 1.0
    skew: Annotated[float, Meta(ge=1, description="the tokens of the fullest part over the mean")] = 1.0
    _model: Model = field(init=False, repr=False, compare=False)
    _shape: Shape = field(init=False, repr=False, compare=False)
    _gpu: Hardware = field(init=False, repr=False, compare=False)
    _flop_s: float = field(init=False, repr=False, compare=False)
    _byte_s: float = field(init=False, repr=False, compare=False)
    _parts: dict[str, _Stored] = field(init=False, repr=False, compare=False)
    _attention: tuple[_Attention, ...] = field(init=False, repr=False, compare=False)
    _bounded: bool = field(init=False, repr=False, compare=False)  # a window, a choice of tokens or a state
    _pair_s: float = field(init=False, repr=False, compare=False)  # of the only kind where it is not
    _stored_s: float = field(init=False, repr=False, compare=False)
    _context_s: float = field(init=False, repr=False, compare=False)  # of a token of context in layers without a window
    _state_s: float = field(init=False, repr=False, compare=False)
    _host_s: float = field(init=False, repr=False, compare=False)
    _heads: dict[int, float] = field(init=False, repr=False, compare=False)
    _layers: dict[float, dict[float, _Layers]] = field(init=False, repr=False, compare=False)
    _decodes: dict[int, tuple[float, float]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.overhead_s is not None and self.layer_overhead_s != LAYER_OVERHEAD_S:
            raise ValueError("overhead_s is that of all layers; give it or layer_overhead_s, not both")
        for name in ("weight_bits", "kv_bits"):
            if (bits := getattr(self, name)) is not None and not 0 < bits <= 8 * self._plain_bytes:
                raise ValueError(f"{name} must be above 0 and at most {8 * self._plain_bytes}, the bits of dtype_bytes")
        m, gpu, shape = model(self.model), hardware(self.hardware), Shape(self.tp, self.pp, self.dp, self.ep)
        shape.check(m)
        put = object.__setattr__
        put(self, "_model", m)
        put(self, "_shape", shape)
        put(self, "_gpu", gpu)
        put(self, "_flop_s", 1 / (gpu.peak_flops(self._plain_bytes) * self.flops_share))
        put(self, "_byte_s", 1 / (gpu.bandwidth_bytes_per_s * self.memory_share))
        put(
            self,
            "_parts",
            {part: self._stored_as(part) for part in ("linear", "attention", "experts", "gate", "head")},
        )
        attention = tuple(self._kinds_of_attention())
        put(self, "_attention", attention)
        put(self, "_bounded", m.linear is not None or any(kind.window for kind in attention))
        put(self, "_pair_s", attention[0].pair_s)
        put(self, "_stored_s", attention[0].stored_s)
        put(self, "_context_s", sum(max(kind.decode_s, kind.stored_s) for kind in attention if not kind.window))
        state_bits = 0 if m.linear is None else m.linear.layers * m.linear.state_elements * m.linear.state_bits
        put(self, "_state_s", 2 * state_bits / 8 / self.tp / self.pp * self._byte_s)
        host_s = self.layer_overhead_s * self._stage_layers if self.overhead_s is None else self.overhead_s
        put(self, "_host_s", host_s)
        put(self, "_heads", {})
        put(self, "_layers", {})
        put(self, "_decodes", {})

    @property
    def _plain_bytes(self) -> int:
        """Bytes of an element of what is not quantised."""
        return 2 if self.dtype_bytes is None else self.dtype_bytes

    @property
    def _stage_layers(self) -> int:
        return self._model.layers // self.pp

    @property
    def stored_bits(self) -> tuple[float | None, float | None]:
        """Bits of an element of the weights of the layers and of the KV, for counting memory; None: the model's own."""
        plain = None if self.dtype_bytes is None else 8 * self.dtype_bytes
        return self.weight_bits or plain, self.kv_bits or plain

    def _stored_as(self, part: str) -> _Stored:
        plain, formats = self._plain_bytes, self._model.formats
        layers_bits = self.weight_bits if part != "head" else None
        if layers_bits is not None or self.dtype_bytes is not None or part == "gate":
            return _Stored(self._flop_s, plain, plain if layers_bits is None else layers_bits / 8, plain)
        names = {
            "linear": formats.linear, "attention": formats.attention, "experts": formats.experts, "head": formats.head
        }  # fmt: skip
        fmt = format_named(names[part])
        flop_s = 1 / (self._gpu.peak_or_wider(fmt.compute) * self.flops_share)
        return _Stored(flop_s, fmt.activation_bits / 8, fmt.bits / 8, plain)

    def _kinds_of_attention(self) -> Iterator[_Attention]:
        """Of one GPU, over the layers of a stage."""
        m, low = self._model, self._model.latent
        full = self._stage_layers if m.full_layers == m.layers else m.full_layers / self.pp
        heads, element_s = m.heads // self.tp, bits_of_kv(m, self.stored_bits[1]) / 8
        widths = 2 * m.head_dim if low is None else low.nope + low.rope + low.value
        decode_widths = widths if low is None else low.kept + low.rank  # a decode works on what is kept
        if low is not None and low.index_topk is not None:
            index = 2 * low.index_heads * low.index_dim * full * self._flop_s
            yield _Attention(index, index, low.index_dim * element_s * full * self._byte_s)
        elements = m.kv_elements_per_gpu(self.tp) if low is None else low.kept
        for layers, window in (
            (full, 0 if low is None else low.index_topk or 0),
            (0, 0) if m.window is None else (m.window.layers / self.pp, m.window.tokens),
        ):
            if layers:
                pair_s, decode_s = (2 * heads * wide * layers * self._flop_s for wide in (widths, decode_widths))
                yield _Attention(pair_s, decode_s, elements * element_s * layers * self._byte_s, window)

    def _product_s(self, rows: float, inner: int, columns: int, matrices: float, of: _Stored) -> float:
        """Seconds of `rows` rows over `matrices` equal matrices, the longer of arithmetic and traffic."""
        moved = (
            rows * inner * of.in_bytes + rows * columns * of.out_bytes + matrices * inner * columns * of.weight_bytes
        )
        return max(2 * rows * inner * columns * of.flop_s, moved * self._byte_s)

    def allreduce_s(self, tokens: float) -> float:
        """Seconds of one ring all-reduce of the activations of `tokens` tokens, two bytes an element."""
        sent_bytes = 2 * (self.tp - 1) / self.tp * tokens * self._model.hidden * 2
        fixed_s = self.link_latency_s if self.tp > 1 else 0.0
        return fixed_s + sent_bytes / (self._gpu.link_bytes_per_s * self.link_share)

    def exchange_s(self, tokens: float) -> float:
        """Seconds in which the GPUs of a stage send the `tokens` tokens of all groups to their experts, or back."""
        m, gpu, gpus = self._model, self._gpu, self._shape.stage_gpus
        chosen = 0 if self.ep == 1 or m.experts is None else m.experts.per_token

        def met(parts: int) -> float:
            """The share of so many equal parts, in which all experts are, that a token goes to."""
            return 1 - (1 - 1 / parts) ** chosen if chosen else 1.0

        token_bytes = tokens * m.hidden * 2
        link_s = (gpus - 1) / gpus * met(self.ep) * token_bytes / (gpu.link_bytes_per_s * self.link_share)
        nodes = 1 if gpu.link_gpus is None else -(-gpus // gpu.link_gpus)
        if nodes == 1 or gpu.link_gpus is None:
            return self.link_latency_s + link_s
        share = met(nodes)
        if m.experts is not None and m.experts.groups > 1:
            share = min(share, m.experts.group_limit / nodes)
        network_bytes = (nodes - 1) / nodes * share * token_bytes / gpu.link_gpus  # one of a node's GPUs gets a token
        network_s = network_bytes / ((gpu.network_bytes_per_s or gpu.link_bytes_per_s) * self.link_share)
        return self.link_latency_s + link_s + network_s

    def layers_s(self, tokens: float) -> float:
        """Seconds of the layers of a stage but for attention: projections, feed-forward, all-reduces."""
        return self._layers_of(tokens, -(-tokens // self.dp)).total_s

    def _layers_of(self, tokens: float, own: float) -> _Layers:
        """`own` of the tokens are those of the fullest group."""
        of_all = self._layers.get(tokens)
        if of_all is None:
            of_all = self._layers[tokens] = {}
        layers = of_all.get(own)
        if layers is None:
            layers = of_all[own] = self._all_layers(tokens, own)
        return layers

    def _all_layers(self, tokens: float, own: float) -> _Layers:
        m, layers = self._model, self._stage_layers
        beside_s, reduced_s = self._projections_s(own), self.allreduce_s(own)
        routed = min(m.routed_layers, layers)
        ffn_s = self._ffn_s(own, m.ffn) if routed < layers else 0.0
        total_s = (layers - routed) * (beside_s + ffn_s + 2 * reduced_s)
        linear_s, communication_s = layers * beside_s + (layers - routed) * ffn_s, (layers - routed) * 2 * reduced_s
        if not routed:
            return _Layers(total_s, linear_s, 0.0, communication_s)
        experts_s = self._experts_s(tokens, own)
        sent_s = 2 * reduced_s if self.dp == 1 else reduced_s + 2 * self.exchange_s(tokens)
        total_s += routed * (beside_s + experts_s + sent_s)
        return _Layers(total_s, linear_s, routed * experts_s, communication_s + routed * sent_s)

    def _projections_s(self, tokens: float) -> float:
        """Queries, keys, values and output of one layer; of layers of both kinds of attention the mean."""
        m, tp, fmt = self._model, self.tp, self._parts["attention"]
        q = m.heads // tp * m.head_dim
        if m.linear is not None:
            linear_s = self._product_s(tokens, m.hidden, -(-m.linear.matrix // (m.hidden * tp)), 1, fmt)
            share = m.linear.layers / m.layers
        if m.latent is None:
            wide, kv = 2 * q if m.output_gate else q, 2 * -(-m.kv_heads // tp) * m.head_dim
            time_s = self._product_s(tokens, m.hidden, wide + kv, 1, fmt) + self._product_s(tokens, q, m.hidden, 1, fmt)
            return time_s if m.linear is None else share * linear_s + (1 - share) * time_s
        low, heads = m.latent, m.heads // tp
        time_s = self._product_s(tokens, m.hidden, low.query_rank + low.kept, 1, fmt)
        time_s += self._product_s(tokens, low.query_rank or m.hidden, heads * (low.nope + low.rope), 1, fmt)
        time_s += self._product_s(tokens, low.rank, heads * (low.nope + low.value), 1, fmt)
        return time_s + self._product_s(tokens, heads * low.value, m.hidden, 1, fmt)

    def _ffn_s(self, tokens: float, width: int) -> float:
        """A feed-forward of `width` that all tokens pass."""
        m, ffn, fmt = self._model, -(-width // self.tp), self._parts["linear"]
        up_s = self._product_s(tokens, m.hidden, 2 * ffn if m.gated else ffn, 1, fmt)
        return up_s + self._product_s(tokens, ffn, m.hidden, 1, fmt)

    def _experts_s(self, tokens: float, own: float) -> float:
        """The gate, the experts that `tokens` tokens meet and those that are shared."""
        m, experts = self._model, self._model.experts
        assert experts is not None
        rows, hit = (
            (self.skew if self.ep > 1 else 1.0) * tokens * experts.per_token / self.ep,
            experts.hit(tokens) / self.ep,
        )
        ffn = -(-experts.ffn // (self._shape.stage_gpus // self.ep))
        up_s, down_s = self.matrices_s(rows, hit, ffn)
        time_s = self._product_s(own, m.hidden, experts.routed, 1, self._parts["gate"]) + up_s + down_s
        return time_s + (self._ffn_s(own, experts.shared_width) if experts.shared else 0.0)

    def matrices_s(self, rows: float, matrices: float, ffn: int) -> tuple[float, float]:
        """Seconds of both matrices of `matrices` experts of width `ffn`, for `rows` tokens of all of them."""
        hidden, fmt = self._model.hidden, self._parts["experts"]
        return self._product_s(rows, hidden, 2 * ffn, matrices, fmt), self._product_s(rows, ffn, hidden, matrices, fmt)

    def attention_s(self, tokens: float, stored: float) -> float:
        """Seconds of attention of one piece of prompt: `tokens` new ones, causal, after `stored` ones."""
        if not self._bounded:
            pairs = tokens * stored + tokens * (tokens + 1) // 2
            return self.paged_prefill * max(pairs * self._pair_s, (tokens + stored) * self._stored_s)
        time_s = self.paged_prefill * sum(kind.piece_s(tokens, stored) for kind in self._attention)
        return time_s + self._state_s * max(1.0, tokens / STATE_TOKENS)

    def head_s(self, sampled: int) -> float:
        """Seconds of the logits of so many tokens."""
        head_s = self._heads.get(sampled)
        if head_s is None:
            rows, columns = -(-sampled // self.dp), -(-self._model.vocab // self.tp)
            head_s = self._product_s(rows, self._model.hidden, columns, 1, self._parts["head"])
            self._heads[sampled] = head_s
        return head_s

    def _dense_s(self, tokens: float, own: float, sampled: int, own_seqs: int) -> float:
        """Everything but attention: host, layers, the head for the `sampled` last tokens."""
        return self._host_s + self.seq_s * own_seqs + self._layers_of(tokens, own).total_s + self.head_s(sampled)

    def decode_line(self, decode_seqs: int) -> tuple[float, float] | None:
        """(base, slope): seconds without context, and per cached token; None where some layers read less."""
        return None if self._bounded else self._line(decode_seqs)

    def _line(self, decode_seqs: int) -> tuple[float, float]:
        """But for windows and states."""
        line = self._decodes.get(decode_seqs)
        if line is None:
            group_seqs = -(-decode_seqs // self.dp)
            dense_s = self._dense_s(decode_seqs, group_seqs, decode_seqs, group_seqs)
            line = self._decodes[decode_seqs] = (dense_s + self._context_s * group_seqs, self._context_s / self.dp)
        return line

    def _bounded_s(self, own_seqs: Any, context_tokens: Any) -> Any:
        """Seconds in which decodes of a group read windows and states, with so many tokens stored."""
        time_s = self._state_s * own_seqs
        for kind in self._attention:
            if kind.window:
                seen, most = own_seqs + context_tokens, own_seqs * kind.window
                seen = np.minimum(seen, most) if isinstance(seen, np.ndarray) else min(seen, most)
                time_s = time_s + max(kind.decode_s, kind.stored_s) * seen
        return time_s

    def step_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: float) -> float:
        """Seconds of one step; `prefills` holds (new tokens, tokens already stored) per piece of prompt."""
        if not prefills:
            return self.decode_s(decode_seqs, context_tokens)
        tokens, attention_s = float(decode_seqs), 0.0
        for new, stored in prefills:
            tokens += new
            attention_s += self.attention_s(new, stored)
        fullest, own_seqs, context = tokens, decode_seqs, float(context_tokens)
        if self.dp > 1:
            fullest = max(-(-tokens // self.dp), *(new for new, _ in prefills), 0)
            own_seqs, context = -(-decode_seqs // self.dp), context / self.dp
            attention_s = self._longest_s(prefills, attention_s)
        time_s = self._dense_s(tokens, fullest, decode_seqs + len(prefills), own_seqs)
        time_s = time_s + self._context_s * (own_seqs + context) + attention_s
        return float(time_s + self._bounded_s(own_seqs, context)) if self._bounded else time_s

    def kv_s(self, prefills: Sequence[tuple[float, float]], decode_seqs: int, context_tokens: Any) -> Any:
        """Seconds of attention over KV in a step of a stage, for one or (k,) `context_tokens`."""
        attention_s = sum([self.attention_s(new, stored) for new, stored in prefills])
        own_seqs, context = decode_seqs, context_tokens / self.dp
        if self.dp > 1:
            own_seqs = -(-decode_seqs // self.dp)
            attention_s = self._longest_s(prefills, attention_s)
        time_s = self._context_s * (own_seqs + context) + attention_s
        return time_s + self._bounded_s(own_seqs, context) if self._bounded else time_s

    def beside_experts_s(self, own: float) -> float:
        """Seconds of the layers of a stage for `own` tokens of a group, but for KV and routed experts."""
        m, layers = self._model, self._stage_layers
        routed = min(m.routed_layers, layers)
        ffn_s = self._ffn_s(own, m.ffn) + self.allreduce_s(own) if routed < layers else 0.0
        return layers * (self._projections_s(own) + self.allreduce_s(own)) + (layers - routed) * ffn_s

    def experts_s(self, tokens: float, own: float) -> float:
        """Seconds of the experts of a stage for `tokens` tokens, `own` of them on each group, without sending them."""
        return min(self._model.routed_layers, self._stage_layers) * self._experts_s(tokens, own)

    def ends_s(self, seqs: int) -> float:
        """Seconds of a step beside its layers: the host, and the head for `seqs` sequences."""
        return self._host_s + self.seq_s * -(-seqs // self.dp) + self.head_s(seqs)

    @property
    def description(self) -> Model:
        """The model as the catalogue has it."""
        return self._model

    def step_parts(self, loads: StepLoads) -> StepParts:
        """Of what the time of steps consists, over all stages."""
        new, dp, stages = loads.new_tokens, self.dp, self.pp
        tokens = group_tokens = loads.decode_seqs + total(loads, new)
        sampled, own_seqs = loads.decode_seqs + total(loads, np.ones_like(new)), -(-loads.decode_seqs // dp)
        pieces_s = self._pieces_s(new, loads.stored_tokens)
        attention_s = total(loads, pieces_s)
        if dp > 1:
            group_tokens = np.maximum(-(-tokens // dp), largest(loads, new))
            attention_s = np.maximum(attention_s / dp, largest(loads, pieces_s))
        context = loads.context_tokens / dp
        attention_s += self._context_s * (own_seqs + context)
        if self._bounded:
            attention_s += self._bounded_s(own_seqs, context)
        sizes, first, of_size = np.unique(
            (tokens << 42) + (group_tokens << 21) + sampled, return_index=True, return_inverse=True
        )
        linear_s, experts_s, sent_s = np.empty((3, len(sizes)))
        for i, (all_tokens, fullest, last) in enumerate(
            zip(*(x[first].tolist() for x in (tokens, group_tokens, sampled)), strict=True)
        ):
            of = self._layers_of(all_tokens, fullest)
            linear_s[i], experts_s[i], sent_s[i] = of.linear_s + self.head_s(last), of.experts_s, of.communication_s
        by_layers = (part[of_size] for part in (linear_s, experts_s, sent_s))
        host_s = self._host_s + self.seq_s * own_seqs
        return StepParts(*(part * stages for part in (attention_s, *by_layers, host_s)))

    def _pieces_s(self, new: np.ndarray, stored: np.ndarray) -> np.ndarray:
        """(k,) what `attention_s` tells of each of so many pieces, to the last bit."""
        if self._bounded:
            return np.array([self.attention_s(*piece) for piece in zip(new.tolist(), stored.tolist(), strict=True)])
        pairs = new * stored + new * (new + 1) // 2
        times: np.ndarray = self.paged_prefill * np.maximum(pairs * self._pair_s, (new + stored) * self._stored_s)
        return times

    def _longest_s(self, prefills: Sequence[tuple[float, float]], attention_s: float) -> float:
        """Seconds of the attention of the pieces of the fullest group, of `attention_s` for all."""
        return max(attention_s / self.dp, *(self.attention_s(new, stored) for new, stored in prefills), 0.0)

    def decode_s(self, decode_seqs: int, context_tokens: float) -> float:
        """Seconds of a step of decodes alone."""
        base_s, slope_s = self._line(decode_seqs)
        time_s = base_s + slope_s * context_tokens
        if self._bounded:
            time_s += self._bounded_s(-(-decode_seqs // self.dp), context_tokens / self.dp)
        return time_s

    def decode_many_s(self, decode_seqs: int, context_tokens: np.ndarray) -> np.ndarray:
        """(k,) seconds of decode steps with these (k,) cached tokens."""
        base_s, slope_s = self._line(decode_seqs)
        times: np.ndarray = base_s + slope_s * context_tokens
        if self._bounded:
            times += self._bounded_s(-(-decode_seqs // self.dp), context_tokens / self.dp)
        return times
