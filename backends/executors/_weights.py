"""The named tensors of a model, as Hugging Face stores them: read, made from a seed, or saved.

The weights in the layout of the forward pass: fused, transposed, with norms and scales folded in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize

from backends.executors._config import Config, read_json
from harness import untrusted
from harness.errors import UsageError, nearest

Tensors = dict[str, np.ndarray]
_INDEX = "model.safetensors.index.json"


def expected(config: Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model; a matrix is (outputs, inputs)."""
    hidden, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, hidden)}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, q)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        shapes[prefix + "mlp.gate_proj.weight"] = (config.intermediate, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (config.intermediate, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, config.intermediate)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    return shapes


def seeded(config: Config, seed: int) -> Tensors:
    """Float32 weights drawn from `seed`: variance 1/inputs, so that every layer matters; norms are ones."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in expected(config).items():
        if name.endswith("norm.weight"):
            tensors[name] = np.ones(shape, np.float32)
            continue
        tensors[name] = rng.standard_normal(shape, dtype=np.float32)
        if name != "model.embed_tokens.weight":
            tensors[name] *= np.float32(shape[-1] ** -0.5)
    return tensors


def of_model(model: str | None, config: Config, seed: int) -> Tensors:
    """The tensors in the folder `model`, or those of `seed` where there is none. Raises UsageError."""
    return seeded(config, seed) if model is None else read(Path(model), config)


def read(folder: Path, config: Config) -> Tensors:
    """All tensors of the model in float32. UsageError for one that is missing, unknown or misshapen."""
    shapes = expected(config)
    tensors: Tensors = {}
    for name, tensor, path in _stored(folder):
        # old files carry tensors that are computed: rotary tables, a tied output head
        if name.endswith("rotary_emb.inv_freq") or (config.tied and name == "lm_head.weight"):
            continue
        if name not in shapes:
            hint = nearest(name, shapes)
            raise UsageError(f"'{path}' holds tensor '{name}', which this model does not use.{hint}")
        if name in tensors:
            raise UsageError(f"'{path}' holds tensor '{name}' a second time.")
        if tensor.shape != shapes[name]:
            raise UsageError(
                f"'{path}': tensor '{name}' has shape {tensor.shape}, but config.json requires {shapes[name]}."
            )
        if not np.isfinite(tensor).all():
            raise UsageError(f"'{path}': tensor '{name}' holds numbers that are not finite; the file is damaged.")
        tensors[name] = tensor
    missing = [name for name in shapes if name not in tensors]
    if missing:
        rest = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UsageError(f"Model folder '{folder}' has no tensor '{missing[0]}'{rest}.")
    return tensors


def _stored(folder: Path) -> Iterator[tuple[str, np.ndarray, Path]]:
    """(name, tensor, file) of everything stored; with an index, each tensor must be in the file of the index."""
    if (folder / _INDEX).exists():
        index = _index(folder / _INDEX)
        for file in sorted(set(index.values())):
            names = {name for name, holder in index.items() if holder == file}
            for name, tensor in _file(folder / file):
                names.discard(name)
                yield name, tensor, folder / file
            if names:
                raise UsageError(f"'{folder / file}' has no tensor '{min(names)}', although {_INDEX} names it there.")
        return
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"Model folder '{folder}' has no *.safetensors file; only safetensors weights are read.")
    for path in files:
        for name, tensor in _file(path):
            yield name, tensor, path


class _WeightMap(msgspec.Struct):
    weight_map: dict[str, str]


def _index(path: Path) -> dict[str, str]:
    weight_map = read_json(path, _WeightMap).weight_map
    for file in weight_map.values():
        if Path(file).name != file:
            raise UsageError(f"'{path}': weight_map names '{file}', which is not a file of this folder.")
    return weight_map


def _file(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with untrusted.readable(f"'{path}'"):
            stored = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # safetensors ships no types
    except SafetensorError as error:
        raise UsageError(f"'{path}' is not a complete safetensors file: {error}.") from None
    for name, entry in stored:
        yield name, _array(entry, f"'{path}': tensor '{name}'")


def _array(entry: dict[str, Any], where: str) -> np.ndarray:
    """Raw little-endian bytes as float32."""
    kind, raw, shape = entry["dtype"], entry["data"], tuple(entry["shape"])
    if kind == "F32":
        return np.frombuffer(raw, "<f4").astype(np.float32, copy=False).reshape(shape)
    if kind == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float32).reshape(shape)
    if kind == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    raise UsageError(f"{where} is stored as {kind}; known: F32, F16, BF16.")


class Layer(NamedTuple):
    """One decoder layer; each RMSNorm's gain is folded into the matrix behind it, 1/sqrt(d) into the query."""

    qkv: np.ndarray  # (C, (H + 2 KV) d), query and key with rotary pairs side by side
    qkv_bias: np.ndarray | None  # ((H + 2 KV) d,)
    out: np.ndarray  # (H d, C)
    gate_up: np.ndarray  # (C, 2 F)
    down: np.ndarray  # (F, C)


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a model; `parameters` counts them as the model's authors do."""

    embed: np.ndarray  # (V, C)
    layers: tuple[Layer, ...]
    head: np.ndarray  # (C, V)
    parameters: int


def fuse(tensors: Tensors, config: Config, dtype: np.dtype) -> Weights:
    """`tensors` in the layout of the forward pass; empties `tensors` on the way to save memory."""
    parameters = sum(t.size for t in tensors.values())
    layers = tuple(_layer(tensors, f"model.layers.{i}.", config, dtype) for i in range(config.layers))
    embed = tensors.pop("model.embed_tokens.weight").astype(dtype)
    output = embed if config.tied else tensors.pop("lm_head.weight")
    return Weights(embed, layers, _folded(output, tensors.pop("model.norm.weight"), dtype), parameters)


def _layer(tensors: Tensors, at: str, config: Config, dtype: np.dtype) -> Layer:
    norm = tensors.pop(at + "input_layernorm.weight")
    parts = [_projection(tensors, at, name, config, dtype) for name in "qkv"]
    biases = [bias for _, bias in parts if bias is not None]
    post = tensors.pop(at + "post_attention_layernorm.weight")
    gate_up = np.concatenate([tensors.pop(f"{at}mlp.{name}_proj.weight") for name in ("gate", "up")])
    return Layer(
        qkv=_folded(np.concatenate([matrix for matrix, _ in parts]), norm, dtype),
        qkv_bias=np.concatenate(biases) if biases else None,
        out=_transposed(tensors.pop(at + "self_attn.o_proj.weight"), dtype),
        gate_up=_folded(gate_up, post, dtype),
        down=_transposed(tensors.pop(at + "mlp.down_proj.weight"), dtype),
    )


def _projection(
    tensors: Tensors, at: str, name: str, config: Config, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray | None]:
    """Matrix (rows, C) and bias (rows,) of query, key or value."""
    matrix = tensors.pop(f"{at}self_attn.{name}_proj.weight").astype(dtype, copy=False)
    bias = tensors.pop(f"{at}self_attn.{name}_proj.bias").astype(dtype, copy=False) if config.qkv_bias else None
    if name == "v":
        return matrix, bias
    scale = dtype.type(config.head_dim**-0.5 if name == "q" else 1.0)
    return _pairs(matrix, config.head_dim) * scale, None if bias is None else _pairs(bias, config.head_dim) * scale


def _pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Within each head, put row i and row i + d/2, which rotate together, side by side.

    Query and key are permuted alike, so their products do not change, and a rotation is one complex product.
    """
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _folded(matrix: np.ndarray, gain: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return _transposed(matrix.astype(dtype, copy=False) * gain.astype(dtype), dtype)


def _transposed(matrix: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(matrix.T, dtype)
