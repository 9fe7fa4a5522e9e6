"""The judge of the transformer (a plain dense float64 forward), and ways to cut one sequence into steps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from backends.executors.llama import Llama
from harness.api import Piece

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "odd-groups": {"num_attention_heads": 6, "head_dim": 16},
    "large-groups": {"num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 8},
    "bias": {"architectures": ["Qwen2ForCausalLM"]},
    "tied": {"tie_word_embeddings": True},
    "wide-heads": {"head_dim": 32},
    "window": {"architectures": ["MistralForCausalLM"], "sliding_window": 19},
    "wide-window": {"architectures": ["MistralForCausalLM"], "sliding_window": 150},
    "mixed-windows": {
        "architectures": ["Qwen2ForCausalLM"], "sliding_window": 19, "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "linear-rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3-rope": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}  # fmt: skip


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as Hugging Face writes them, listed here once more on purpose."""
    c, f, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    d = config.get("head_dim", c // heads)
    q, kv = heads * d, config["num_key_value_heads"] * d
    made: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], c),
        "model.norm.weight": (c,),
    }
    if not config.get("tie_word_embeddings"):
        made["lm_head.weight"] = (config["vocab_size"], c)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        made |= {at + "input_layernorm.weight": (c,), at + "post_attention_layernorm.weight": (c,)}
        made |= {at + f"self_attn.{n}_proj.weight": (r, c) for n, r in (("q", q), ("k", kv), ("v", kv))}
        if config["architectures"] == ["Qwen2ForCausalLM"]:
            made |= {at + f"self_attn.{n}_proj.bias": (r,) for n, r in (("q", q), ("k", kv), ("v", kv))}
        made |= {at + "self_attn.o_proj.weight": (c, q), at + "mlp.down_proj.weight": (c, f)}
        made |= {at + "mlp.gate_proj.weight": (f, c), at + "mlp.up_proj.weight": (f, c)}
    return made


def write_model(folder: Path, variant: str, seed: int = 0) -> Path:
    """A small random model, with every vector (norms, biases) away from its trivial value."""
    config = BASE | VARIANTS[variant]
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes(config).items():
        scale = 1.0 if "embed" in name or len(shape) == 1 else shape[-1] ** -0.5
        tensors[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _angles(config: dict[str, Any], d: int) -> np.ndarray:
    freq = 1.0 / config.get("rope_theta", 10000.0) ** (np.arange(0, d, 2) / d)
    scaling = config.get("rope_scaling")
    if not scaling:
        return freq
    if scaling["rope_type"] == "linear":
        return freq / scaling["factor"]
    out = []
    for f in freq:
        length, original = 2 * np.pi / f, scaling["original_max_position_embeddings"]
        if length < original / scaling["high_freq_factor"]:
            out.append(f)
        elif length > original / scaling["low_freq_factor"]:
            out.append(f / scaling["factor"])
        else:
            smooth = (original / length - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"]
            )
            out.append((1 - smooth) * f / scaling["factor"] + smooth * f)
    return np.array(out)


def dense_logits(folder: Path, token_ids: Sequence[int]) -> np.ndarray:
    """Logits (T, V) of one sequence: no pages, no cache, no batch, head by head, float64."""
    config = json.loads((folder / "config.json").read_text())
    w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim", config["hidden_size"] // heads)
    at = np.arange(len(token_ids))
    angle = at[:, None] * _angles(config, d)
    cos, sin = np.cos(np.hstack([angle, angle])), np.sin(np.hstack([angle, angle]))

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * gain

    def rotate(x: np.ndarray) -> np.ndarray:
        return x * cos + np.hstack([-x[:, d // 2 :], x[:, : d // 2]]) * sin

    x = w["model.embed_tokens.weight"][list(token_ids)]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (h @ w[f"{p}self_attn.{n}_proj.weight"].T + w.get(f"{p}self_attn.{n}_proj.bias", 0) for n in "qkv")
        seen = at[None, :] <= at[:, None]
        window = config.get("sliding_window")
        if window and i >= config.get("max_window_layers", 0):
            seen &= at[None, :] > at[:, None] - window
        mixed = []
        for head in range(heads):
            of = slice(head // (heads // kv) * d, (head // (heads // kv) + 1) * d)
            score = rotate(q[:, head * d : (head + 1) * d]) @ rotate(k[:, of]).T / np.sqrt(d)
            weight = np.where(seen, np.exp(score - score.max(-1, keepdims=True)), 0)
            mixed.append(weight / weight.sum(-1, keepdims=True) @ v[:, of])
        x = x + np.hstack(mixed) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head_matrix = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ head_matrix.T


class Pages:
    """KV memory of a test: hands out pages in random order."""

    def __init__(self, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.size = block_size
        self.free = np.random.default_rng(seed).permutation(num_blocks).tolist()

    def take(self, tokens: int) -> list[int]:
        return [self.free.pop() for _ in range(-(-tokens // self.size))]

    def give(self, blocks: list[int]) -> None:
        self.free[:0] = blocks


class Run:
    """One sequence being generated: feeds its tokens in pieces of any size, and collects what is sampled."""

    def __init__(self, request_id: int, prompt: Sequence[int], pages: Pages, outputs: int, temperature: float = 0.0):
        self.id, self.tokens, self.prompt = request_id, [int(t) for t in prompt], len(prompt)
        self.pages, self.outputs, self.temperature = pages, outputs, temperature
        self.computed = 0
        self.blocks = pages.take(self.prompt + outputs)

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.prompt + self.outputs

    def piece(self, most: int) -> Piece:
        ids = self.tokens[self.computed : self.computed + most]
        last = self.computed + len(ids) == len(self.tokens)
        return Piece(self.id, ids, self.computed, self.blocks, last, self.temperature, seed=self.id)

    def took(self, piece: Piece, token: int | None) -> None:
        assert (token is not None) == piece.sample

        self.computed += len(piece.token_ids)
        if token is not None:
            self.tokens.append(token)

    def preempt(self) -> None:
        """Lose the pages; everything is computed again, in other pages."""
        self.pages.give(self.blocks)
        self.blocks = self.pages.take(self.prompt + self.outputs)
        self.computed = 0

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt :]


def generate(model: Llama, runs: Sequence[Run], chunk: Callable[[], int], preempt: Callable[[], bool]) -> None:
    """Run all to the end in one batch per step."""
    while any(not run.done for run in runs):
        pairs = [(run, run.piece(chunk())) for run in runs if not run.done]
        for (run, piece), token in zip(pairs, model.execute([p for _, p in pairs]), strict=True):
            run.took(piece, token)
            if not run.done and preempt():
                run.preempt()


class Kit:
    """What the tests of this folder share."""

    write_model = staticmethod(write_model)
    dense_logits = staticmethod(dense_logits)
    generate = staticmethod(generate)
    Pages = Pages
    Run = Run
    variants = tuple(VARIANTS)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
