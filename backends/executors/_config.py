"""The shape of a model: read from the `config.json` of a Hugging Face folder, or written to one."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from backends.executors._layers import sample
from backends.executors._plan import Memory, Plan, plan
from harness import bounds, untrusted
from harness.api import Piece
from harness.bounds import AtLeastOne, AtLeastZero, Positive
from harness.errors import UsageError, no_such

T = TypeVar("T")
FAMILIES: Mapping[str, str] = MappingProxyType(
    {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "MistralForCausalLM": "mistral"}
)

BYTES = MappingProxyType({"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2})

SIZES = ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "context_tokens")
"""Fields of `Config` that a seeded model is made of, in its order."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: `linear`, or `llama3` (only the slow ones; Llama 3.1)."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a decoder-only transformer; `windows` is the sliding window of each layer, None = all."""

    family: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = False
    windows: tuple[int | None, ...] = ()

    @property
    def qkv_bias(self) -> bool:
        """Whether the projections of query, key and value have a bias (Qwen2)."""
        return self.family == "qwen2"

    @property
    def facts(self) -> dict[str, object]:
        return {
            "family": self.family, "layers": self.layers, "hidden": self.hidden, "heads": self.heads,
            "kv_heads": self.kv_heads, "vocab_size": self.vocab, "max_tokens": self.context_tokens,
        }  # fmt: skip

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer sees, itself included; None = all."""
        return self.windows[layer] if self.windows else None


@dataclass(slots=True)
class Transformer:
    """What the executors of a model share: its folder or the shape of a seeded one, and how a step is planned."""

    model: str | None = None
    seed: AtLeastZero = 0
    threads: AtLeastOne | None = None
    layers: AtLeastOne = 2
    hidden: AtLeastOne = 256
    heads: AtLeastOne = 4
    kv_heads: AtLeastOne = 2
    head_dim: AtLeastOne = 32
    intermediate: AtLeastOne = 512
    vocab: AtLeastOne = 4096
    context_tokens: AtLeastOne = 16384
    dtype: str = "float32"
    config: Config = field(init=False, repr=False)
    _exact: np.dtype = field(init=False, repr=False)
    """Of what is computed before it is rounded to `dtype`."""
    _parameters: int = field(init=False, repr=False)
    _memory: Memory | None = field(init=False, repr=False, default=None)
    _pages: tuple[Any, ...] = field(init=False, repr=False, default=())
    """KV memory of each layer."""

    def _configure(self) -> None:
        """Check the arguments and read the shape. Raises UsageError for numbers that do not fit."""
        bounds.check(self)
        self._exact = np.dtype(np.float64 if self.dtype == "float64" else np.float32)
        if self.model is not None:
            self.config = read_config(Path(self.model))
            return
        self.config = Config("llama", *(getattr(self, name) for name in SIZES))
        check(self.config, self._name)

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    @property
    def vocab_size(self) -> int:
        return self.config.vocab

    @property
    def max_tokens(self) -> int:
        return self.config.context_tokens

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps, all layers."""
        c = self.config
        return 2 * c.layers * c.kv_heads * c.head_dim * BYTES[self.dtype]

    def describe(self) -> dict[str, object]:
        return {
            "model": f"seeded-{self.config.family}-{self.seed}" if self.model is None else Path(self.model).name,
            "parameters": self._parameters,
            **self.config.facts,
            "dtype": self.dtype,
            "threads": self._threads(),
            "kv_bytes_per_token": self.kv_bytes_per_token,
        }

    def execute(self, pieces: Sequence[Piece]) -> list[int | None]:
        tokens: list[int | None] = [None] * len(pieces)
        if pieces:
            step = self._plan(pieces)
            chosen = self._sampled(step, [pieces[i] for i in step.sampled])
            for index, token in zip(step.sampled, chosen, strict=True):
                tokens[index] = token
        return tokens

    def copy_in(self, kept: Sequence[object], blocks: Sequence[int]) -> None:
        page: Any  # what `copy_out` gave
        for page, block in zip(kept, blocks, strict=True):
            for layer, part in zip(self._pages, page, strict=True):
                layer[block] = part

    def logits(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Run one step; the logits (pieces that sample, vocab), in the order of `pieces`."""
        step = self._plan(pieces)
        return self._logits(step)[np.argsort(step.sampled)]

    def _sampled(self, step: Plan, pieces: Sequence[Piece]) -> list[int]:
        """Run one step; a token for each of these pieces, those that sample, in row order."""
        return sample(self._logits(step), pieces)

    def _logits(self, step: Plan) -> np.ndarray:
        """Run one step; the logits (sampled pieces in row order, vocab)."""
        raise NotImplementedError

    def _threads(self) -> int:
        if self.threads is not None:
            return self.threads
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return max(1, cores // 2)

    def _remember(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            got = f"{num_blocks}x{block_size}"
            raise UsageError(f"{self._name}: KV memory needs at least one page of one token, got {got}.")
        self._memory = Memory(num_blocks, block_size, self.config.heads)

    def _plan(self, pieces: Sequence[Piece]) -> Plan:
        if self._memory is None:
            raise RuntimeError(f"{self._name}: allocate comes before the first step")
        c = self.config
        return plan(pieces, self._memory, [c.window(i) for i in range(c.layers)], self._exact)


def check(config: Config, where: str) -> None:
    """Raises UsageError when the numbers do not fit together; `where` starts the sentence."""
    if config.heads % config.kv_heads:
        raise UsageError(f"{where}: heads ({config.heads}) must be a multiple of kv_heads ({config.kv_heads}).")
    if config.head_dim % 2 or not config.head_dim:
        raise UsageError(f"{where}: the head dimension must be even for rotary embedding, got {config.head_dim}.")


class _Rope(msgspec.Struct, frozen=True):
    """Rotary embedding in config.json; `type` is the older name of `rope_type`."""

    rope_type: str | None = None
    type: str = "default"
    rope_theta: Positive | None = None
    factor: Positive = 1.0
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0
    original_max_position_embeddings: AtLeastOne = 8192


class _ConfigJson(msgspec.Struct, frozen=True):
    """What config.json says of a model; what would change the arithmetic and is not built comes last."""

    architectures: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]
    vocab_size: AtLeastOne
    hidden_size: AtLeastOne
    intermediate_size: AtLeastOne
    num_hidden_layers: AtLeastOne
    num_attention_heads: AtLeastOne
    max_position_embeddings: AtLeastOne
    num_key_value_heads: AtLeastOne | None = None
    head_dim: AtLeastOne | None = None
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive = 10000.0
    rope_parameters: _Rope | None = None  # of transformers 5
    rope_scaling: _Rope | None = None  # of transformers 4
    tie_word_embeddings: bool = False
    sliding_window: AtLeastOne | None = None
    use_sliding_window: bool = False
    layer_types: list[str] | None = None
    max_window_layers: AtLeastZero = 28
    hidden_act: Literal["silu", "swish"] = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    quantization_config: object = None


def read_json(path: Path, kind: type[T]) -> T:
    """The object in a JSON file of a model folder. Raises UsageError when it is missing, broken or something else."""
    with untrusted.readable(f"'{path}'", "; a model folder holds config.json and *.safetensors"):
        return msgspec.convert(_stated(untrusted.read_json(path)), kind)


def _stated(fields: Any) -> Any:
    """The fields of an object, but those that are null or an empty object: these are as good as not there."""
    if not isinstance(fields, dict):
        return fields
    return {name: _stated(field) for name, field in fields.items() if field not in (None, {})}


def read_config(folder: Path) -> Config:
    """The shape in `folder`/config.json. Raises UsageError for what is missing, wrong or not supported."""
    if not folder.is_dir():
        raise UsageError(f"There is no model folder '{folder}'; give the path of a folder with config.json.")
    path = folder / "config.json"
    stored = read_json(path, _ConfigJson)
    (architecture,) = stored.architectures
    if architecture not in FAMILIES:
        raise no_such("architecture", architecture, FAMILIES, f"(in '{path}')")
    for name in ("attention_bias", "mlp_bias", "quantization_config"):
        if getattr(stored, name):
            raise UsageError(f"'{path}': {name} is not supported; use a model without it.")
    rope = stored.rope_parameters or stored.rope_scaling or _Rope()
    heads = stored.num_attention_heads
    config = Config(
        family=FAMILIES[architecture],
        vocab=stored.vocab_size,
        hidden=stored.hidden_size,
        intermediate=stored.intermediate_size,
        layers=stored.num_hidden_layers,
        heads=heads,
        kv_heads=stored.num_key_value_heads or heads,
        head_dim=stored.head_dim or stored.hidden_size // heads,
        context_tokens=stored.max_position_embeddings,
        norm_eps=stored.rms_norm_eps,
        rope_theta=rope.rope_theta or stored.rope_theta,
        rope_scaling=_scaling(rope, path),
        tied=stored.tie_word_embeddings,
        windows=_windows(stored, FAMILIES[architecture], path),
    )
    check(config, f"'{path}'")
    return config


def _scaling(rope: _Rope, path: Path) -> RopeScaling | None:
    kind = rope.rope_type or rope.type
    if kind not in ("default", "linear", "llama3"):
        raise no_such("rope scaling", kind, ("default", "linear", "llama3"), f"(in '{path}')")
    factors = (rope.factor, rope.low_freq_factor, rope.high_freq_factor)
    return None if kind == "default" else RopeScaling(kind, *factors, rope.original_max_position_embeddings)


def _windows(stored: _ConfigJson, family: str, path: Path) -> tuple[int | None, ...]:
    """The sliding window of each layer; Llama has none, Qwen2 only with `use_sliding_window`."""
    size, layers, kinds = stored.sliding_window, stored.num_hidden_layers, stored.layer_types
    if size is None or family == "llama" or (family == "qwen2" and not stored.use_sliding_window):
        return ()
    if kinds is None:
        first = stored.max_window_layers if family == "qwen2" else 0
        return tuple(size if layer >= first else None for layer in range(layers))
    if len(kinds) != layers:
        raise UsageError(f"'{path}': layer_types must name each of the {layers} layers.")
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)
