"""Models and GPUs that the simulator knows, and the arithmetic of their memory.

The numbers live in `models.toml` and `hardware.toml`, each with its source. Closed forms: KV bytes per token,
parameters, weight bytes of one GPU, and how many KV blocks are left beside the weights.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import UsageError, no_such

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of `routed` gated experts of width `ffn`, of which each token meets `per_token`.

    `shared` experts of the same width meet every token; the first `dense_layers` layers have the plain feed-forward.
    `biased`: the gate has a bias per expert.
    """

    routed: int
    per_token: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    biased: bool = False

    def hit(self, tokens: int) -> float:
        """Mean number of routed experts that `tokens` tokens meet, each choosing without preference."""
        return self.routed * (1 - (1 - self.per_token / self.routed) ** tokens)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: per token and layer `rank` + `rope` elements are kept for all heads together.

    A head has `nope` + `rope` elements of query and key and `value` elements of value; `query_rank` is the width of the
    compressed query. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int

    @property
    def kept(self) -> int:
        """Elements kept per token and layer."""
        return self.rank + self.rope

    def repeated(self, hidden: int) -> int:
        """Parameters of the matrices that every GPU of a tensor-parallel group holds: both compressions."""
        return hidden * (self.query_rank + self.kept)

    def divided(self, hidden: int, heads: int) -> int:
        """Parameters of the matrices that are divided by heads: both expansions and the output."""
        queries = self.query_rank * heads * (self.nope + self.rope)
        return queries + self.rank * heads * (self.nope + self.value) + heads * self.value * hidden

    @property
    def vector(self) -> int:
        """Parameters of the norms of both compressions."""
        return self.query_rank + self.rank


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU: total memory as torch reports it, dense peaks of the tensor cores, links (both directions).

    A peak or an NVLink rate is None where the GPU has none. `sources` tells where each number comes from.
    """

    name: str
    title: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp16_flops: float
    pcie_bytes_per_s: float
    sources: Mapping[str, str]
    fp8_flops: float | None = None
    nvlink_bytes_per_s: float | None = None

    def peak_flops(self, dtype_bytes: int) -> float:
        """FLOP/s for operands of `dtype_bytes` (2: bf16, 1: fp8). Raises UsageError if the GPU has none."""
        peak = {1: self.fp8_flops, 2: self.bf16_flops}.get(dtype_bytes)
        if peak is None:
            what = "fp8" if dtype_bytes == 1 else f"{dtype_bytes}-byte"
            raise UsageError(f"{self.name} has no {what} tensor cores; use dtype_bytes=2.")
        return peak

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes per second in one direction between two GPUs of a node: NVLink, else PCIe."""
        return (self.nvlink_bytes_per_s or self.pcie_bytes_per_s) / 2


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of one decoder-only transformer; `family` tells which vectors go with its matrices."""

    name: str
    source: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    positions: int
    max_tokens: int
    gated: bool
    tied: bool
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def kv_width(self) -> int:
        """Elements of keys (or of values) stored per token and layer, where they are stored apart."""
        return self.kv_heads * self.head_dim

    @property
    def kv_elements(self) -> int:
        """Elements stored per token and layer: keys and values, or the latent of both."""
        return 2 * self.kv_width if self.latent is None else self.latent.kept

    def kv_elements_per_gpu(self, tp: int) -> int:
        """The same on one of `tp` GPUs: heads are divided and, where fewer, repeated; a latent is repeated."""
        return 2 * -(-self.kv_heads // tp) * self.head_dim if self.latent is None else self.latent.kept

    @property
    def dense_layers(self) -> int:
        """Layers whose feed-forward is plain."""
        return self.layers if self.experts is None else self.experts.dense_layers

    @property
    def routed_layers(self) -> int:
        """Layers whose feed-forward is a choice of experts."""
        return self.layers - self.dense_layers

    def attention_matrix(self, tp: int = 1) -> int:
        """Parameters of queries, keys, values and output of one layer on one of `tp` GPUs."""
        if self.latent is not None:
            return self.latent.repeated(self.hidden) - (-self.latent.divided(self.hidden, self.heads) // tp)
        kv = 2 * self.hidden * self.kv_width
        return -(-2 * self.hidden * self.heads * self.head_dim // tp) - (-kv // min(tp, self.kv_heads))

    @property
    def ffn_matrix(self) -> int:
        """Parameters of the plain feed-forward of one layer."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def expert_matrix(self) -> int:
        """Parameters of one expert of one layer, 0 without experts."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.ffn

    @property
    def layer_matrix(self) -> int:
        """Parameters of the matrices of one layer with the plain feed-forward."""
        return self.attention_matrix() + self.ffn_matrix

    @property
    def layer_vector(self) -> int:
        """Parameters of the norms and biases of one layer."""
        if self.latent is not None:
            return self.latent.vector + 2 * self.norm_vector
        qkv = self.heads * self.head_dim + 2 * self.kv_width
        more = {"opt": qkv + self.hidden + self.ffn + self.hidden, "qwen2": qkv, "qwen3": 2 * self.head_dim}
        return more.get(self.family, 0) + 2 * self.norm_vector

    @property
    def norm_vector(self) -> int:
        """Parameters of one norm: scale and shift in OPT and Falcon, scale alone elsewhere."""
        return (2 if self.family in ("opt", "falcon") else 1) * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding; the output head has as many, unless it is tied."""
        return self.vocab * self.hidden


@cache
def _table(file: str) -> Mapping[str, Any]:
    return MappingProxyType(tomllib.loads((_FOLDER / file).read_text(encoding="utf-8")))


def models() -> list[str]:
    """Sorted names of all models."""
    return sorted(_table("models.toml"))


def gpus() -> list[str]:
    """Sorted names of all GPUs."""
    return sorted(_table("hardware.toml"))


def _unknown(what: str, name: str, known: list[str]) -> UsageError:
    """The usual error; but 'a100' means 'a100-40g' or 'a100-80g' although 'a10' is nearer."""
    longer = [k for k in known if k.startswith(name.lower())] if name else []
    if not 1 <= len(longer) <= 2:
        return no_such(what, name, known)
    meant = " or ".join(f"'{one}'" for one in longer)
    return UsageError(f"No {what} named '{name}'. Did you mean {meant}? Known: {', '.join(known)}.")


@cache
def model(name: str) -> Model:
    """The model of that name, in any case. Raises UsageError with the nearest known name."""
    found = _table("models.toml").get(name.lower())
    if found is None:
        raise _unknown("model", name, models())
    parts = {"experts": Experts, "latent": Latent}
    made = {key: parts[key](**value) if key in parts else value for key, value in found.items()}
    return Model(name=name.lower(), **made)


@cache
def hardware(name: str) -> Hardware:
    """The GPU of that name, in any case. Raises UsageError with the nearest known name."""
    found = _table("hardware.toml").get(name.lower())
    if found is None:
        raise _unknown("hardware", name, gpus())
    numbers = {key: entry["value"] for key, entry in found.items() if key != "title"}
    sources = {key: entry["source"] for key, entry in found.items() if key != "title"}
    return Hardware(name=name.lower(), title=found["title"], sources=MappingProxyType(sources), **numbers)


def compared(latency: str, model_name: str, hardware_name: str) -> str | None:
    """How far a latency model was from measurements of a model on a GPU; None where they were not compared."""
    for row in _table("compared.toml")["compared"]:
        if (row["latency"], row["hardware"]) == (latency, hardware_name) and model_name in row["models"]:
            return str(row["figures"])
    return None


def check_parallel(m: Model, tp: int, pp: int) -> None:
    """Raise UsageError unless `tp` divides the heads and `pp` the layers."""
    if tp < 1 or m.heads % tp:
        raise UsageError(f"tp={tp} does not divide the {m.heads} attention heads of {m.name}.")
    if pp < 1 or m.layers % pp:
        raise UsageError(f"pp={pp} does not divide the {m.layers} layers of {m.name}.")


def kv_bytes_per_token(m: Model, dtype_bytes: int = 2) -> int:
    """Bytes of KV that one token takes over all layers: 2 * layers * kv_heads * head_dim * dtype_bytes.

    With latent attention it is layers * (rank + rope) * dtype_bytes.
    """
    return m.layers * m.kv_elements * dtype_bytes


def parameters(m: Model) -> int:
    """Number of parameters, exact."""
    head = 0 if m.tied else m.embedding
    ends = m.embedding + m.positions * m.hidden + head + m.norm_vector
    layers = m.layers * (m.attention_matrix() + m.layer_vector)
    return ends + layers + m.dense_layers * m.ffn_matrix + m.routed_layers * _routed(m)


def _routed(m: Model, tp: int = 1) -> int:
    """Parameters of the feed-forward of one layer with experts: those on one of `tp` GPUs, and the gate."""
    if m.experts is None:
        return 0
    experts = -(-(m.experts.routed + m.experts.shared) * m.expert_matrix // tp)
    return experts + m.hidden * m.experts.routed + m.experts.routed * m.experts.biased


def active_parameters(m: Model) -> int:
    """Number of parameters that one token meets: all but the experts that it does not choose."""
    if m.experts is None:
        return parameters(m)
    idle = (m.experts.routed - m.experts.per_token) * m.expert_matrix
    return parameters(m) - m.routed_layers * idle


def weight_bytes(m: Model, tp: int = 1, pp: int = 1, dtype_bytes: int = 2, weight_bits: float | None = None) -> int:
    """Bytes of weights on the fullest GPU of a `tp` x `pp` group; exact for the whole model with tp = pp = 1.

    Matrices are divided by `tp` (a KV head never is, nor the compressions of latent attention), vectors and position
    embeddings are repeated; layers are divided by `pp`, and the first stage holds the embedding, the last one the
    head and the final norm. `weight_bits` are those of the matrices of the layers where they are quantised.
    """
    check_parallel(m, tp, pp)
    layers = m.layers // pp
    routed = min(m.routed_layers, layers)
    matrices = layers * m.attention_matrix(tp) + (layers - routed) * -(-m.ffn_matrix // tp) + routed * _routed(m, tp)
    head = -(-m.embedding // tp)
    first, last = head + m.positions * m.hidden, m.norm_vector + head
    ends = max(first, last) if pp > 1 else first + last - (head if m.tied else 0)
    bits = 8 * dtype_bytes if weight_bits is None else weight_bits
    return math.ceil(matrices * bits / 8) + (layers * m.layer_vector + ends) * dtype_bytes


def block_bytes(
    m: Model, tp: int = 1, pp: int = 1, block_tokens: int = 16, dtype_bytes: int = 2, kv_bits: float | None = None
) -> int:
    """Bytes of one block of `block_tokens` tokens on each GPU; KV heads are repeated when tp exceeds them."""
    bits = 8 * dtype_bytes if kv_bits is None else kv_bits
    return math.ceil(block_tokens * (m.layers // pp) * m.kv_elements_per_gpu(tp) * bits / 8)


def kv_capacity_blocks(
    m: Model | str,
    gpu: Hardware | str,
    tp: int = 1,
    pp: int = 1,
    utilisation: float = 0.9,
    block_tokens: int = 16,
    reserve: float = 0.01,
    dtype_bytes: int = 2,
    weight_bits: float | None = None,
    kv_bits: float | None = None,
) -> int:
    """KV blocks that fit beside the weights, per replica.

    A share `utilisation` of the memory is ours, of which the share `reserve` (of the total) is kept for
    activations; weights and KV take `dtype_bytes` an element, or `weight_bits` and `kv_bits`. Raises UsageError
    when not a single block fits.
    """
    m = model(m) if isinstance(m, str) else m
    gpu = hardware(gpu) if isinstance(gpu, str) else gpu
    weights = weight_bytes(m, tp, pp, dtype_bytes, weight_bits)
    left = gpu.memory_bytes * utilisation - gpu.memory_bytes * reserve - weights
    blocks = math.floor(left / block_bytes(m, tp, pp, block_tokens, dtype_bytes, kv_bits))
    if blocks < 1:
        share = utilisation - reserve
        raise UsageError(
            f"{m.name} needs {weights / 1e9:.1f} GB of weights per GPU with tp={tp}, pp={pp}, and {gpu.name} "
            f"offers {gpu.memory_bytes * share / 1e9:.1f} GB; {_larger(m, gpu, tp, pp, share, dtype_bytes)}."
        )
    return blocks


def _larger(m: Model, gpu: Hardware, tp: int, pp: int, share: float, dtype_bytes: int) -> str:
    for more in range(tp + 1, 9):
        if m.heads % more == 0 and weight_bytes(m, more, pp, dtype_bytes) < gpu.memory_bytes * share:
            return f"use tp={more} or more"
    return "use more pipeline stages or a larger GPU"


def simdistserve_tokens(m: Model, gpu: Hardware, tp: int = 1, pp: int = 1) -> int:
    """KV capacity in tokens as DistServe's simulator has it (LLMServe/DistServe `max_num_tokens.csv`).

    Utilisation 0.95, reserve 1 %, blocks of 16; its weights are vocab * h + 2048 * h, undivided, and
    (12 * h^2 / tp + 5 * h) per layer of the stage, all in fp16. Zero where the weights do not fit.
    """
    h, layers = m.hidden, m.layers / pp
    weights = 2 * (m.vocab * h + 2048 * h + 12 * layers * h * h / tp + 5 * layers * h)
    block = 16 * 2 * layers * (h / tp) * 2
    return max(0, math.floor((gpu.memory_bytes * 0.95 - gpu.memory_bytes * 0.01 - weights) / block)) * 16
