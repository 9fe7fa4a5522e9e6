"""What is known of a model and of a GPU, as types; how the GPUs of a replica divide a model between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.errors import UsageError

Compute = Literal["bf16", "fp8", "fp4", "int8"]
FAMILIES = ("falcon", "gemma3", "glm4", "gpt-oss", "llama", "minimax", "opt", "qwen2", "qwen3")
"""Every family; where `layer_vector` names none, norms are all there is."""


@dataclass(frozen=True, slots=True)
class Format:
    """How elements are stored: `bits` each, scales included; products with them run at the peak named `compute`."""

    name: str
    bits: float
    compute: Compute
    about: str = ""

    @property
    def activation_bits(self) -> float:
        """Bits of an element that is multiplied with one of this format."""
        return {"bf16": 16.0, "fp8": 8.0, "int8": 8.0, "fp4": 4.5}[self.compute]


@dataclass(frozen=True, slots=True)
class Formats:
    """Names of formats (`formats.toml`) of the parts of a model.

    `attention`: its projections; `experts`: those that are routed; `linear`: other matrices of the layers, shared
    experts among them; `head`: embedding and output head; `kv`: keys and values. Norms, biases and gates have 16 bits.
    """

    linear: str = "bf16"
    attention: str = "bf16"
    experts: str = "bf16"
    head: str = "bf16"
    kv: str = "bf16"


@dataclass(frozen=True, slots=True)
class Window:
    """`layers` of the layers attend only to the last `tokens` tokens, and keep no KV beyond them.

    Chunked attention (Llama 4) attends to the tokens since the last multiple of `tokens`, half as many on the average;
    it is counted as a window of the whole chunk, which is what it needs at most.
    """

    tokens: int
    layers: int


@dataclass(frozen=True, slots=True)
class Linear:
    """`layers` of the layers are linear attention, which keeps `state_elements` elements per sequence and layer.

    It keeps no KV per token. `matrix` and `vector` are parameters of one such layer beside its feed-forward and norms;
    `state_bits` are those of an element of the state.
    """

    layers: int
    state_elements: int
    matrix: int = 0
    vector: int = 0
    state_bits: int = 16


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of `routed` gated experts of width `ffn`, of which each token meets `per_token`.

    `shared` experts, of the same width or of `shared_ffn`, meet every token; the first `dense_layers` layers have the
    plain feed-forward, and of the others every `interval`-th one has experts. `biased`: the gate has a bias per expert;
    `expert_biases`: so have the matrices of the experts. A token chooses among `group_limit` of `groups` groups of
    experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: node-limited routing).
    """

    routed: int
    per_token: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    biased: bool = False
    shared_ffn: int | None = None
    interval: int = 1
    groups: int = 1
    group_limit: int = 1
    expert_biases: bool = False

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together."""
        return self.shared * (self.ffn if self.shared_ffn is None else self.shared_ffn)

    def hit(self, tokens: float) -> float:
        """Mean number of routed experts that `tokens` tokens meet, each choosing without preference."""
        met: float = 1 - (1 - self.per_token / self.routed) ** tokens
        return self.routed * met


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: per token and layer `rank` + `rope` elements are kept for all heads together.

    A head has `nope` + `rope` elements of query and key and `value` elements of value; `query_rank` is the width of the
    compressed query, 0 where queries are not compressed. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    With `index_topk` a token attends only to so many tokens, which an indexer of `index_heads` heads chooses by keys of
    `index_dim` elements that are kept beside (sparse attention of DeepSeek-V3.2 and GLM-5).
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int = 0
    index_topk: int | None = None
    index_heads: int = 0
    index_dim: int = 0

    @property
    def kept(self) -> int:
        """Elements of the latent kept per token and layer."""
        return self.rank + self.rope

    def repeated(self, hidden: int) -> int:
        """Parameters of the matrices that every GPU of a tensor-parallel group holds: compressions and indexer."""
        indexer = (self.query_rank or hidden) * self.index_heads * self.index_dim
        return hidden * (self.query_rank + self.kept + self.index_dim + self.index_heads) + indexer

    def divided(self, hidden: int, heads: int) -> int:
        """Parameters of the matrices that are divided by heads: both expansions and the output."""
        queries = (self.query_rank or hidden) * heads * (self.nope + self.rope)
        return queries + self.rank * heads * (self.nope + self.value) + heads * self.value * hidden

    @property
    def vector(self) -> int:
        """Parameters of the norms of both compressions and of the keys of the indexer."""
        return self.query_rank + self.rank + 2 * self.index_dim


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU: total memory as torch reports it, dense peaks of the tensor cores, links (both directions).

    A peak or a link between GPUs (`nvlink_bytes_per_s`: NVLink, or Infinity Fabric) is None where the GPU has none.
    `link_gpus` GPUs share that link; with `link_peers` it is a mesh with so many equal links, one to each other GPU.
    `network_bytes_per_s` is one direction of the network per GPU in the maker's node; `power_w` is the maker's limit.
    `generation` is its architecture, such as Hopper or CDNA3. `kernel_gap_s` seconds pass between two kernels of a
    graph beyond what they do on NVIDIA's GPUs, and a product with scales of blocks takes `block_scaled_s` longer.
    `sources` says where each number comes from.
    """

    name: str
    title: str
    memory_bytes: int
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp16_flops: float
    pcie_bytes_per_s: float
    sources: Mapping[str, str] = field(default_factory=dict)
    fp8_flops: float | None = None
    fp4_flops: float | None = None
    int8_ops: float | None = None
    nvlink_bytes_per_s: float | None = None
    link_gpus: int | None = None
    link_peers: int | None = None
    network_bytes_per_s: float | None = None
    power_w: float | None = None
    generation: str | None = None
    kernel_gap_s: float | None = None
    block_scaled_s: float | None = None

    def peak_flops(self, dtype_bytes: int) -> float:
        """FLOP/s for operands of `dtype_bytes` (2: bf16, 1: fp8). Raises UsageError if the GPU has none."""
        peak = {1: self.fp8_flops, 2: self.bf16_flops}.get(dtype_bytes)
        if peak is None:
            what = "fp8" if dtype_bytes == 1 else f"{dtype_bytes}-byte"
            raise UsageError(f"{self.name} has no {what} tensor cores; use dtype_bytes=2.")
        return peak

    def peak(self, compute: Compute) -> float | None:
        """Operations per second of this kind; None if the GPU has none."""
        return {"bf16": self.bf16_flops, "fp8": self.fp8_flops, "fp4": self.fp4_flops, "int8": self.int8_ops}[compute]

    def peak_or_wider(self, compute: Compute) -> float:
        """The same, or the peak of the next wider type where the GPU has none of this one."""
        wider: Mapping[Compute, tuple[Compute, ...]] = {"fp4": ("fp4", "fp8"), "fp8": ("fp8",), "int8": ("int8",)}
        return next((peak for kind in wider.get(compute, ()) if (peak := self.peak(kind)) is not None), self.bf16_flops)

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes per second in one direction that a GPU exchanges with the others of its node: NVLink, else PCIe."""
        return (self.nvlink_bytes_per_s or self.pcie_bytes_per_s) / 2

    def group_bytes_per_s(self, gpus: int) -> float:
        """The same within a group of `gpus` GPUs of a node: of a mesh, only the links inside the group."""
        if self.nvlink_bytes_per_s is None or self.link_peers is None:
            return self.link_bytes_per_s
        return self.link_bytes_per_s * min(1.0, max(1, gpus - 1) / self.link_peers)


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of one decoder-only transformer; `family` tells which vectors go with its matrices.

    `output_gate`: a gate as wide as the queries multiplies what attention returns. `drafts` counts layers that predict
    further tokens; they are part of no other figure, and `draft_acceptance` is the share of theirs that is right.
    """

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
    window: Window | None = None
    linear: Linear | None = None
    output_gate: bool = False
    drafts: int = 0
    draft_acceptance: float | None = None
    formats: Formats = Formats()

    @property
    def kv_width(self) -> int:
        """Elements of keys (or of values) stored per token and layer, where they are stored apart."""
        return self.kv_heads * self.head_dim

    @property
    def kv_elements(self) -> int:
        """Elements stored per token and layer: keys and values, or the latent of both and the keys of its indexer."""
        return 2 * self.kv_width if self.latent is None else self.latent.kept + self.latent.index_dim

    def kv_elements_per_gpu(self, tp: int) -> int:
        """The same on one of `tp` GPUs: heads are divided and, where fewer, repeated; a latent is repeated."""
        return 2 * -(-self.kv_heads // tp) * self.head_dim if self.latent is None else self.kv_elements

    @property
    def linear_layers(self) -> int:
        """Layers of linear attention."""
        return 0 if self.linear is None else self.linear.layers

    @property
    def kv_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers - self.linear_layers

    @property
    def full_layers(self) -> int:
        """Layers that keep keys and values of every token of a sequence."""
        return self.kv_layers - (0 if self.window is None else self.window.layers)

    @property
    def dense_layers(self) -> int:
        """Layers whose feed-forward is plain."""
        return self.layers - self.routed_layers

    @property
    def routed_layers(self) -> int:
        """Layers whose feed-forward is a choice of experts."""
        return 0 if self.experts is None else (self.layers - self.experts.dense_layers) // self.experts.interval

    def attention_matrix(self, tp: int = 1) -> int:
        """Parameters of queries, keys, values and output of one layer on one of `tp` GPUs."""
        if self.latent is not None:
            return self.latent.repeated(self.hidden) - (-self.latent.divided(self.hidden, self.heads) // tp)
        kv, wide = 2 * self.hidden * self.kv_width, 3 if self.output_gate else 2
        return -(-wide * self.hidden * self.heads * self.head_dim // tp) - (-kv // min(tp, self.kv_heads))

    @property
    def ffn_matrix(self) -> int:
        """Parameters of the plain feed-forward of one layer."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def expert_matrix(self) -> int:
        """Parameters of one routed expert of one layer, 0 without experts."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.ffn

    @property
    def shared_matrix(self) -> int:
        """Parameters of the shared experts of one layer."""
        return 0 if self.experts is None else 3 * self.hidden * self.experts.shared_width

    @property
    def gate(self) -> int:
        """Parameters of the gate of one layer with experts, and its biases."""
        return 0 if self.experts is None else self.experts.routed * (self.hidden + self.experts.biased)

    @property
    def layer_vector(self) -> int:
        """Parameters of the norms and biases of one layer with attention."""
        if self.latent is not None:
            return self.latent.vector + 2 * self.norm_vector
        queries = self.heads * self.head_dim
        qkv = queries + 2 * self.kv_width
        more = {
            "opt": qkv + self.hidden + self.ffn + self.hidden,
            "qwen2": qkv,
            "qwen3": 2 * self.head_dim,
            "glm4": qkv + 2 * self.head_dim,
            "minimax": queries + self.kv_width,
            "gemma3": 2 * self.head_dim + 2 * self.norm_vector,
            "gpt-oss": qkv + self.hidden + self.heads,
        }
        return more.get(self.family, 0) + 2 * self.norm_vector

    @property
    def expert_vector(self) -> int:
        """Parameters of the biases of the routed experts of one layer."""
        if self.experts is None or not self.experts.expert_biases:
            return 0
        return self.experts.routed * (2 * self.experts.ffn + self.hidden)

    @property
    def norm_vector(self) -> int:
        """Parameters of one norm: scale and shift in OPT and Falcon, scale alone elsewhere."""
        return (2 if self.family in ("opt", "falcon") else 1) * self.hidden

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding; the output head has as many, unless it is tied."""
        return self.vocab * self.hidden


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """How the GPUs of one replica divide a model.

    `pp` stages; in each, `dp` groups hold requests of their own (attention data parallelism), and in each of these `sp`
    parts of `tp` GPUs hold parts of each sequence. Attention and plain feed-forwards are divided by `tp` and repeated
    otherwise. The routed experts of a layer lie on all GPUs of a stage: whole experts on each of `ep` equal parts,
    whose GPUs divide their matrices. `hardware` is the kind of GPU where it matters, `nodes` the GPUs on each node.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    sp: int = 1
    hardware: str = ""
    nodes: tuple[int, ...] = ()

    @property
    def stage_gpus(self) -> int:
        return self.tp * self.dp * self.sp

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pp

    def check(self, m: Model) -> None:
        """Raise UsageError where it cannot divide the model."""
        if self.tp < 1 or m.heads % self.tp:
            raise UsageError(f"tp={self.tp} does not divide the {m.heads} attention heads of {m.name}.")
        if self.pp < 1 or m.layers % self.pp:
            raise UsageError(f"pp={self.pp} does not divide the {m.layers} layers of {m.name}.")
        for name in ("dp", "ep", "sp"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.ep > 1 and m.experts is None:
            raise UsageError(f"ep={self.ep} divides experts, and {m.name} has none; leave out ep.")
        if self.stage_gpus % self.ep:
            raise UsageError(f"ep={self.ep} does not divide the {self.stage_gpus} GPUs of a stage (tp x dp x sp).")
        if m.experts is not None and self.ep > m.experts.routed:
            raise UsageError(f"ep={self.ep} exceeds the {m.experts.routed} experts of {m.name}.")
        if self.nodes and sum(self.nodes) != self.gpus:
            raise UsageError(f"nodes hold {sum(self.nodes)} GPUs, but the replica has {self.gpus}.")
