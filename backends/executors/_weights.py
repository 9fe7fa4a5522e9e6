"""The weights as the forward pass wants them: fused, transposed, with norms and scales folded in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from backends.executors._config import Config
    from backends.executors._tensors import Tensors


@dataclass(frozen=True, slots=True)
class Layer:
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
