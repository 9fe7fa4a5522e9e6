"""The shape of a model: read from the `config.json` of a Hugging Face folder, or written to one."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from backends.executors._layers import sample
from backends.executors._plan import Memory, Plan, plan
from harness import bounds, untrusted
from harness.api import Piece
from harness.bounds import AtLeastOne, AtLeastZero
from harness.errors import UsageError, no_such

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
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 512
    vocab: int = 4096
    context_tokens: int = 16384
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
    for name in SIZES:
        if getattr(config, name) < 1:
            raise UsageError(f"{where}: {name} must be at least 1, got {getattr(config, name)}.")
    if config.heads % config.kv_heads:
        raise UsageError(f"{where}: heads ({config.heads}) must be a multiple of kv_heads ({config.kv_heads}).")
    if config.head_dim % 2:
        raise UsageError(f"{where}: the head dimension must be even for rotary embedding, got {config.head_dim}.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises UsageError when the file is missing, broken or holds something else."""
    try:
        loaded = untrusted.read_json(path)
    except FileNotFoundError:
        raise UsageError(
            f"Model folder '{path.parent}' has no {path.name}; a model folder holds config.json and *.safetensors."
        ) from None
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UsageError(f"'{path}' is not valid JSON: {error}.") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"'{path}' must hold a JSON object, got {type(loaded).__name__}.")
    return loaded


def read_config(folder: Path) -> Config:
    """The shape in `folder`/config.json. Raises UsageError for what is missing, wrong or not supported."""
    if not folder.is_dir():
        raise UsageError(f"There is no model folder '{folder}'; give the path of a folder with config.json.")
    source = _Source(folder / "config.json")
    family = source.family()
    source.refuse()
    heads, hidden = source.integer("num_attention_heads"), source.integer("hidden_size")
    theta, scaling = source.rope()
    config = Config(
        family=family,
        vocab=source.integer("vocab_size"),
        hidden=hidden,
        intermediate=source.integer("intermediate_size"),
        layers=source.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=source.integer("num_key_value_heads", heads),
        head_dim=source.integer("head_dim", hidden // max(1, heads)),
        context_tokens=source.integer("max_position_embeddings"),
        norm_eps=source.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=bool(source.fields.get("tie_word_embeddings", False)),
        windows=source.windows(family),
    )
    check(config, f"'{source.path}'")
    return config


class _Source:
    """Typed reading of one config.json, with the file and the field in every complaint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fields = read_json(path)

    def family(self) -> str:
        architectures = self.fields.get("architectures")
        if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
            raise UsageError(f"'{self.path}': architectures must name one model class, got {architectures!r}.")
        if architectures[0] not in FAMILIES:
            raise no_such("architecture", architectures[0], FAMILIES, f"(in '{self.path}')")
        return FAMILIES[architectures[0]]

    def refuse(self) -> None:
        """What would change the arithmetic and is not built."""
        act = self.fields.get("hidden_act", "silu")
        if act not in ("silu", "swish"):
            raise UsageError(f"'{self.path}': hidden_act '{act}' is not supported; known: silu.")
        for name in ("attention_bias", "mlp_bias", "quantization_config"):
            if self.fields.get(name):
                raise UsageError(f"'{self.path}': {name} is not supported; use a model without it.")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"'{self.path}': {name} must be an integer, got {value!r}.")
        return value

    def number(self, name: str, default: float, fields: Mapping[str, Any] | None = None) -> float:
        value = (self.fields if fields is None else fields).get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise UsageError(f"'{self.path}': {name} must be a positive number, got {value!r}.")
        return float(value)

    def rope(self) -> tuple[float, RopeScaling | None]:
        """Base and scaling; `rope_parameters` is how transformers 5 writes what 4 called `rope_scaling`."""
        scaling = self.fields.get("rope_parameters") or self.fields.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise UsageError(f"'{self.path}': rope scaling must be a JSON object, got {scaling!r}.")
        theta = self.number("rope_theta", self.number("rope_theta", 10000.0), scaling)
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "default":
            return theta, None
        if kind not in ("linear", "llama3"):
            raise no_such("rope scaling", str(kind), ("default", "linear", "llama3"), f"(in '{self.path}')")
        return theta, RopeScaling(
            kind=kind,
            factor=self.number("factor", 1.0, scaling),
            low_freq_factor=self.number("low_freq_factor", 1.0, scaling),
            high_freq_factor=self.number("high_freq_factor", 4.0, scaling),
            original_tokens=int(self.number("original_max_position_embeddings", 8192, scaling)),
        )

    def windows(self, family: str) -> tuple[int | None, ...]:
        """The sliding window of each layer; Llama has none, Qwen2 only with `use_sliding_window`."""
        size = self.fields.get("sliding_window")
        if size is None or family == "llama" or (family == "qwen2" and not self.fields.get("use_sliding_window")):
            return ()
        size, layers = self.integer("sliding_window"), self.integer("num_hidden_layers")
        if size < 1:
            raise UsageError(f"'{self.path}': sliding_window must be at least 1, got {size}.")
        kinds = self.fields.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != layers:
                raise UsageError(f"'{self.path}': layer_types must name each of the {layers} layers.")
            return tuple(size if kind == "sliding_attention" else None for kind in kinds)
        first = self.integer("max_window_layers", 28) if family == "qwen2" else 0
        return tuple(size if layer >= first else None for layer in range(layers))
