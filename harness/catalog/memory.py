"""The arithmetic of memory: parameters, bytes of weights on a GPU, bytes of KV, and the blocks that fit beside.

A model that is stored in several formats has each part counted in its own (`Model.formats`). `weight_bits`, where it is
given, is that of the matrices of the layers instead, and `kv_bits` that of KV.
"""

import math
from dataclasses import asdict, replace

from harness.catalog.facts import Hardware, Model, Shape
from harness.catalog.tables import format_named, hardware, model
from harness.errors import UsageError

RESERVE = 0.01
"""Share of the memory of a GPU that is kept for activations."""

SEQS = 256
"""Sequences that run at a time at most, where no policy says it: vLLM's default for many GPUs (`max_num_seqs`)."""

ONE_GPU = Shape()

PLAIN_BITS = 16.0
"""Of an element of norms, biases and gates, and of the head where the layers have `weight_bits`."""


def _bits(m: Model, weight_bits: float | None) -> dict[str, float]:
    """Bits of an element of each part of `Formats`, and of the gates of experts."""
    bits = {part: format_named(name).bits for part, name in asdict(m.formats).items()} | {"gate": PLAIN_BITS}
    layers = ("linear", "attention", "experts", "gate")
    return bits if weight_bits is None else bits | dict.fromkeys(layers, weight_bits) | {"head": PLAIN_BITS}


def bits_of_kv(m: Model, kv_bits: float | None = None) -> float:
    """Bits of an element of the KV: `kv_bits`, or those of the model's format."""
    return format_named(m.formats.kv).bits if kv_bits is None else kv_bits


def kv_bytes_per_token(m: Model, kv_bits: float | None = None) -> int:
    """Bytes of KV that one token takes over all layers: 2 * layers * kv_heads * head_dim * bits / 8.

    With latent attention it is layers * (rank + rope) * bits / 8. Layers of linear attention keep nothing per token;
    those with a window are counted, as they keep a token while it is in the window.
    """
    return math.ceil(m.kv_layers * m.kv_elements * bits_of_kv(m, kv_bits) / 8)


def parameters(m: Model) -> int:
    """Number of parameters, exact; layers that draft are not counted."""
    head = 0 if m.tied else m.embedding
    ends = m.embedding + m.positions * m.hidden + head + m.norm_vector
    layers = m.kv_layers * (m.attention_matrix() + m.layer_vector)
    if m.linear is not None:
        layers += m.linear.layers * (m.linear.matrix + m.linear.vector + 2 * m.norm_vector)
    routed = 0
    if m.experts is not None:
        routed = m.experts.routed * m.expert_matrix + m.shared_matrix + m.gate + m.expert_vector
    return ends + layers + m.dense_layers * m.ffn_matrix + m.routed_layers * routed


def active_parameters(m: Model) -> int:
    """Number of parameters that one token meets: all but the experts that it does not choose."""
    if m.experts is None:
        return parameters(m)
    idle = (m.experts.routed - m.experts.per_token) * (m.expert_matrix + m.expert_vector // m.experts.routed)
    return parameters(m) - m.routed_layers * idle


def weight_bytes(m: Model, shape: Shape = ONE_GPU, weight_bits: float | None = None) -> int:
    """Bytes of weights on the fullest GPU of a shape; exact for the whole model on one GPU.

    Matrices are divided by `tp` (a KV head never is, nor the compressions of latent attention), vectors and position
    embeddings are repeated; layers are divided by `pp`, and the first stage holds the embedding, the last one the
    head and the final norm. Experts are divided as `Shape` says; where `ep` does not divide them, a part has one more.
    """
    shape.check(m)
    bits = _bits(m, weight_bits)
    layers, cut = m.layers // shape.pp, shape.tp
    linear = -(-m.linear_layers * layers // m.layers)
    routed = min(m.routed_layers, -(-layers // m.experts.interval)) if m.experts is not None else 0
    matrices = (layers - linear) * m.attention_matrix(cut) * bits["attention"]
    matrices += (layers - routed) * -(-m.ffn_matrix // cut) * bits["linear"]
    vectors = (layers - linear) * m.layer_vector
    if m.linear is not None:
        matrices += linear * -(-m.linear.matrix // cut) * bits["linear"]
        vectors += linear * (m.linear.vector + 2 * m.norm_vector)
    if m.experts is not None:
        local_experts = -(-m.experts.routed // shape.ep)  # experts of one part
        part_gpus = shape.stage_gpus // shape.ep
        matrices += routed * -(-local_experts * m.expert_matrix // part_gpus) * bits["experts"]
        matrices += routed * (-(-m.shared_matrix // cut) * bits["linear"] + m.gate * bits["gate"])
        vectors += routed * -(-local_experts * m.expert_vector // (m.experts.routed * part_gpus))
    head = -(-m.embedding // cut) * bits["head"]
    first, last = head + m.positions * m.hidden * PLAIN_BITS, m.norm_vector * PLAIN_BITS + head
    ends = max(first, last) if shape.pp > 1 else first + last - (head if m.tied else 0)
    return math.ceil(matrices / 8) + math.ceil((vectors * PLAIN_BITS + ends) / 8)


def without_experts(m: Model) -> Model:
    """The model as GPUs hold it that have all but its routed layers' experts; plain feed-forwards are spread evenly."""
    return replace(m, experts=None, ffn=round(m.ffn * m.dense_layers / m.layers))


def expert_bytes(m: Model, parts: int) -> int:
    """Bytes of the experts, shared ones among them, on each of `parts` GPUs that hold whole ones."""
    if m.experts is None:
        return 0
    bits = _bits(m, None)
    local_experts = -(-m.experts.routed // parts)
    layer_bits = local_experts * m.expert_matrix * bits["experts"] + m.shared_matrix * bits["linear"]
    layer_bits += m.gate * bits["gate"]
    return math.ceil(m.routed_layers * layer_bits / 8)


def block_bytes(m: Model, shape: Shape = ONE_GPU, block_tokens: int = 16, kv_bits: float | None = None) -> int:
    """Bytes of one block of `block_tokens` tokens on each GPU; KV heads are repeated when tp exceeds them.

    Layers with a window are counted: it is a block of tokens that are in the window.
    """
    return _block_bytes(m, shape, m.kv_layers, block_tokens, bits_of_kv(m, kv_bits))


def _block_bytes(m: Model, shape: Shape, layers: int, block_tokens: int, bits: float) -> int:
    return math.ceil(block_tokens * -(-layers // shape.pp) * m.kv_elements_per_gpu(shape.tp) * bits / 8)


def adapter_bytes(m: Model, shape: Shape, rank: int, *, feed_forward: bool = True) -> float:
    """Bytes of a LoRA adapter of attention (and of plain feed-forward layers) on each GPU, at 16 bits.

    With tensor parallelism the base model's half of a matrix is divided, its other half repeated, as in vLLM. Raises
    UsageError for a model with other attention.
    """
    if m.latent is not None or m.linear is not None:
        raise UsageError(f"{m.name} has no full attention in every layer: the size of its adapters is not known.")
    tp, wide = shape.tp, m.heads * m.head_dim
    attention = 4 * m.hidden + (wide + 2 * m.kv_width + wide) / tp
    inputs = 2 if m.gated else 1
    plain = (inputs + 1) * (m.hidden + m.ffn / tp) if feed_forward else 0
    return 2 * rank * (m.layers * attention + m.dense_layers * plain) / shape.pp


def kv_capacity_blocks(
    m: Model | str,
    gpu: Hardware | str,
    shape: Shape = ONE_GPU,
    utilisation: float = 0.9,
    block_tokens: int = 16,
    weight_bits: float | None = None,
    kv_bits: float | None = None,
    seqs: int = SEQS,
    further_bytes: float = 0.0,
) -> int:
    """KV blocks that fit beside the weights and `further_bytes` (adapters) on each GPU, per replica.

    A share `utilisation` of the memory is ours, of which `RESERVE` (of the total) is kept for activations; weights and
    KV take the formats of the model, or `weight_bits` and `kv_bits`. Raises UsageError when not a single block fits.

    With windows, so many tokens fit however they are spread over `seqs` sequences: each may fill its windows, and
    beyond them only layers with full attention keep KV. State of linear attention is set aside for `seqs` sequences.
    Memory of data-parallel groups adds up.
    """
    m = model(m) if isinstance(m, str) else m
    gpu = hardware(gpu) if isinstance(gpu, str) else gpu
    weights = weight_bytes(m, shape, weight_bits=weight_bits) + further_bytes
    kv_bytes = gpu.memory_bytes * utilisation - gpu.memory_bytes * RESERVE - weights
    bits, dp_seqs = bits_of_kv(m, kv_bits), -(-seqs // shape.dp)  # sequences of one data-parallel group
    if m.linear is not None:
        held = -(-m.linear.layers // shape.pp) * -(-m.linear.state_elements // shape.tp)
        kv_bytes -= dp_seqs * held * m.linear.state_bits / 8
    blocks = math.floor(kv_bytes / _block_bytes(m, shape, m.kv_layers, block_tokens, bits)) if m.kv_layers else 0
    if m.window is not None and m.full_layers:
        inside = dp_seqs * -(-m.window.tokens // block_tokens)  # blocks that are in windows
        if blocks > inside:
            windows = _block_bytes(m, shape, m.window.layers, block_tokens, bits)
            full = _block_bytes(m, shape, m.full_layers, block_tokens, bits)
            blocks = math.floor((kv_bytes - inside * windows) / full)
    if blocks < 1:
        share = utilisation - RESERVE
        raise UsageError(
            f"{m.name} needs {weights / 1e9:.1f} GB of weights per GPU with tp={shape.tp}, pp={shape.pp}, and "
            f"{gpu.name} offers {gpu.memory_bytes * share / 1e9:.1f} GB; {_larger(m, gpu, shape, share)}."
        )
    return blocks * shape.dp * shape.sp


def _larger(m: Model, gpu: Hardware, shape: Shape, share: float) -> str:
    for more in range(shape.tp + 1, 9):
        if m.heads % more == 0 and weight_bytes(m, Shape(more, shape.pp)) < gpu.memory_bytes * share:
            return f"use tp={more} or more"
    return "use more pipeline stages or a larger GPU"
