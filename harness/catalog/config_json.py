"""A model from the `config.json` of its checkpoint on Hugging Face.

An architecture is a row of `ARCHITECTURES`: its family and what its configuration does not state. Everything else is
read: shapes, experts, latent attention, windows, linear attention, and the formats that `quantization_config` names.
The meaning and defaults of fields are those of huggingface/transformers `configuration_*.py`.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from harness.catalog.facts import Experts, Formats, Latent, Linear, Model, Window
from harness.errors import UsageError

_DTYPES = MappingProxyType({"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"})  # float32 is served in 16 bits
_ALGORITHMS = MappingProxyType(
    {"FP8": "fp8", "FP8_PB_WO": "fp8-block", "MXFP4": "mxfp4", "NVFP4": "nvfp4", "W4A16_AWQ": "int4-g128"}
)
METHODS = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4")
"""Every quant_method that is understood."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the name of an architecture says. `tied`: whether the head shares the embedding where no field says it.

    `full_every`: every so many-th layer has full attention and the others a window, where no field lists them; 1: all
    layers have the window where there is one, 0: a window counts only where `use_sliding_window` says so.
    """

    family: str
    tied: bool = False
    full_every: int = 1
    gated: bool = True
    biased: bool = False
    expert_biases: bool = False
    vocab: int | None = None


_DEEPSEEK = Architecture("llama", biased=True)
_GEMMA = Architecture("gemma3", tied=True, full_every=6, vocab=262_208)
_LLAMA4 = Architecture("llama", full_every=4)
_NEXT = Architecture("qwen3", full_every=0)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "DeepseekV2ForCausalLM": Architecture("llama"),
        "DeepseekV3ForCausalLM": _DEEPSEEK,
        "DeepseekV32ForCausalLM": _DEEPSEEK,
        "FalconForCausalLM": Architecture("falcon", tied=True, gated=False),
        "Gemma3ForCausalLM": _GEMMA,
        "Gemma3ForConditionalGeneration": _GEMMA,
        "Glm4MoeForCausalLM": Architecture("qwen3", biased=True),
        "GlmMoeDsaForCausalLM": _DEEPSEEK,
        "GptOssForCausalLM": Architecture("gpt-oss", full_every=2, biased=True, expert_biases=True),
        "KimiK25ForConditionalGeneration": _DEEPSEEK,
        "Llama4ForCausalLM": _LLAMA4,
        "Llama4ForConditionalGeneration": _LLAMA4,
        "LlamaForCausalLM": Architecture("llama"),
        "MiniMaxM2ForCausalLM": Architecture("minimax", biased=True),
        "Mistral3ForConditionalGeneration": Architecture("llama"),
        "MistralForCausalLM": Architecture("llama"),
        "MixtralForCausalLM": Architecture("llama"),
        "OPTForCausalLM": Architecture("opt", tied=True, gated=False),
        "Qwen2ForCausalLM": Architecture("qwen2", full_every=0),
        "Qwen3ForCausalLM": Architecture("qwen3", full_every=0),
        "Qwen3MoeForCausalLM": Architecture("qwen3", full_every=0),
        "Qwen3NextForCausalLM": _NEXT,
        "Qwen3_5ForConditionalGeneration": _NEXT,
        "Qwen3_5MoeForConditionalGeneration": _NEXT,
    }
)
"""Every architecture that is understood."""


@dataclass(frozen=True, slots=True)
class _Config:
    """Fields of a configuration, with errors that name the file."""

    values: Mapping[str, Any]
    where: str

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of these fields that is there. Raises UsageError where none is, or for no whole number."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"'{self.where}': {name} must be a whole number, got {value!r}.")
            return value
        if default is None:
            raise UsageError(f"'{self.where}' lacks {' or '.join(names)}, without which the model has no size.")
        return default

    def says(self, name: str, *, default: bool = False) -> bool:
        """Whether this switch is on."""
        value = self.values.get(name)
        return default if value is None else bool(value)


def model_of(config: Mapping[str, Any], quantised: Mapping[str, Any] | None, name: str, where: str) -> Model:
    """The model of a configuration; `quantised` is its hf_quant_config.json. Raises UsageError for what is unknown."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        raise UsageError(
            f"'{where}' names no architecture: it is neither a config.json of Hugging Face nor a run.json "
            "with the figures of a model."
        )
    arch = ARCHITECTURES.get(str(names[0]))
    if arch is None:
        raise UsageError(f"'{where}': architecture {names[0]} is not understood. Known: {', '.join(ARCHITECTURES)}.")
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else dict(config)
    c = _Config(text, where)
    hidden, layers = c.count("hidden_size"), c.count("num_hidden_layers")
    heads = c.count("num_attention_heads")
    if not heads or not layers or not hidden:
        raise UsageError(f"'{where}': layers, hidden size and attention heads must be at least 1.")
    kv_heads = c.count("num_key_value_heads", "num_kv_heads", default=1 if c.says("multi_query") else heads)
    if not kv_heads or heads % kv_heads:
        raise UsageError(f"'{where}': {kv_heads} KV heads do not divide the {heads} attention heads.")
    latent = _latent(c)
    experts, linear = _experts(c, arch), _linear(c, hidden, layers)
    family = arch.family
    if family == "qwen3" and names[0] == "Glm4MoeForCausalLM":  # GLM-4.5 has norms and biases, GLM-4.5-Air biases alone
        norms, biases = c.says("use_qk_norm"), c.says("attention_bias")
        family = ("glm4" if biases else "qwen3") if norms else ("qwen2" if biases else "llama")
    elif family == "llama" and latent is None and c.says("attention_bias"):
        family = "qwen2"
    return Model(
        name=name,
        source=f"'{where}'",
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent is not None else kv_heads,
        head_dim=c.count("head_dim", default=hidden // heads) if latent is None else latent.value,
        ffn=_ffn(c, arch, experts),
        vocab=c.count("vocab_size", default=arch.vocab),
        positions=c.count("max_position_embeddings") + 2 if family == "opt" else 0,
        max_tokens=c.count("max_position_embeddings", default=2048 if family == "falcon" else 131_072),
        gated=arch.gated,
        tied=c.says("tie_word_embeddings", default=arch.tied),
        experts=experts,
        latent=latent,
        window=_window(c, arch, layers - (0 if linear is None else linear.layers)),
        linear=linear,
        output_gate=c.says("attn_output_gate", default=names[0] == "Qwen3NextForCausalLM"),
        drafts=c.count("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", default=0),
        formats=_formats(c, quantised, layers),
    )


def _ffn(c: _Config, known: Architecture, experts: Experts | None) -> int:
    """Width of the plain feed-forward; that of an expert where no layer has a plain one."""
    plain = ["intermediate_size_mlp"] if "intermediate_size_mlp" in c.values else []  # Llama 4: dense layers are wider
    names = [*plain, "ffn_dim" if known.family == "opt" else "intermediate_size", "ffn_hidden_size"]
    fallback = 4 * c.count("hidden_size") if known.family == "falcon" else None
    return c.count(*names, default=experts.ffn if experts is not None else fallback)


def _latent(c: _Config) -> Latent | None:
    if c.values.get("kv_lora_rank") is None:
        return None
    topk = c.values.get("index_topk")
    sparse = topk is not None
    return Latent(
        rank=c.count("kv_lora_rank"),
        rope=c.count("qk_rope_head_dim"),
        nope=c.count("qk_nope_head_dim"),
        value=c.count("v_head_dim"),
        query_rank=c.count("q_lora_rank", default=0),
        index_topk=c.count("index_topk") if sparse else None,
        index_heads=c.count("index_n_heads") if sparse else 0,
        index_dim=c.count("index_head_dim") if sparse else 0,
    )


def _experts(c: _Config, known: Architecture) -> Experts | None:
    routed = c.count("n_routed_experts", "num_local_experts", "num_experts", default=0)
    if not routed:
        return None
    listed = c.values.get("mlp_only_layers")
    if isinstance(listed, list) and listed and listed != list(range(len(listed))):
        raise UsageError(f"'{c.where}': layers without experts must be the first ones, got mlp_only_layers={listed}.")
    ffn = c.count("moe_intermediate_size", "intermediate_size")
    shared_ffn = c.count("shared_expert_intermediate_size", "shared_intermediate_size", default=0)
    llama4 = "interleave_moe_layer_step" in c.values
    frequency = c.values.get("moe_layer_freq")
    if isinstance(frequency, list):
        raise UsageError(f"'{c.where}': moe_layer_freq as a list of layers is not understood.")
    per_token = c.count("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
    if not 0 < per_token <= routed:
        raise UsageError(f"'{c.where}': a token meets 1 to {routed} experts, got {per_token}.")
    return Experts(
        routed=routed,
        per_token=per_token,
        ffn=ffn,
        shared=1 if llama4 or shared_ffn else c.count("n_shared_experts", "num_shared_experts", default=0),
        dense_layers=c.count("first_k_dense_replace", default=len(listed) if isinstance(listed, list) else 0),
        biased=known.biased and c.values.get("topk_method", "noaux_tc") == "noaux_tc",
        shared_ffn=shared_ffn if shared_ffn and shared_ffn != ffn else None,
        interval=max(1, c.count("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", default=1)),
        groups=max(1, c.count("n_group", default=1)),
        group_limit=max(1, c.count("topk_group", default=1)),
        expert_biases=known.expert_biases,
    )


def _window(c: _Config, known: Architecture, layers: int) -> Window | None:
    """The window of some of so many layers of softmax attention."""
    tokens = c.count("sliding_window", "attention_chunk_size", default=0)
    if not tokens:
        return None
    kinds = c.values.get("layer_types")
    if isinstance(kinds, list):
        inside = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
    elif known.full_every == 0:
        if not c.says("use_sliding_window"):
            return None
        inside = layers - c.count("max_window_layers", default=0)
    elif (
        isinstance(c.values.get("no_rope_layers"), list) and c.values["no_rope_layers"]
    ):  # Llama 4: 0 is full attention
        inside = sum(map(bool, c.values["no_rope_layers"]))
    else:
        interval = c.count("sliding_window_pattern", "no_rope_layer_interval", default=known.full_every)
        inside = layers - (layers // interval if interval > 1 else 0)
    return Window(tokens, min(inside, layers)) if inside > 0 else None


def _linear(c: _Config, hidden: int, layers: int) -> Linear | None:
    """Gated DeltaNet of Qwen3-Next and Qwen3.5 (Yang et al., arXiv 2412.06464).

    A sequence keeps a matrix of keys by values per head, and the last inputs of a short convolution.
    """
    if c.values.get("linear_num_value_heads") is None:
        return None
    kinds = c.values.get("layer_types")
    period = c.count("full_attention_interval", default=4)
    inside = sum(kind == "linear_attention" for kind in kinds) if isinstance(kinds, list) else layers - layers // period
    if not inside:
        return None
    value_heads, key_heads = c.count("linear_num_value_heads"), c.count("linear_num_key_heads")
    key_dim, value_dim = c.count("linear_key_head_dim"), c.count("linear_value_head_dim")
    kernel = c.count("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    return Linear(
        layers=min(inside, layers),
        state_elements=value_heads * key_dim * value_dim + (kernel - 1) * mixed,
        matrix=hidden * (mixed + values + 2 * value_heads) + values * hidden,
        vector=mixed * kernel + 2 * value_heads + value_dim,
        state_bits=32 if c.values.get("mamba_ssm_dtype") == "float32" else 16,
    )


def _formats(c: _Config, quantised: Mapping[str, Any] | None, layers: int) -> Formats:
    dtype = str(c.values.get("dtype") or c.values.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    plain = _DTYPES.get(dtype)
    if plain is None:
        raise UsageError(f"'{c.where}': dtype {dtype} is not understood. Known: {', '.join(_DTYPES)}.")
    unquantised = Formats(plain, plain, plain, plain, plain)
    config = c.values.get("quantization_config")
    if quantised is not None and isinstance(quantised.get("quantization"), dict):
        config = quantised["quantization"]
    if not isinstance(config, dict):
        return unquantised
    q = _Config(config, c.where)
    stored = _stored(q)
    kv = config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    kv_format = "fp8" if kv == "FP8" or (isinstance(kv, dict) and kv.get("num_bits") == 8) else plain
    excluded = [str(module) for key in ("modules_to_not_convert", "exclude_modules", "ignore", "ignored_layers")
                for module in config.get(key) or ()]  # fmt: skip
    if stored == "mxfp4" and config.get("quant_method") == "mxfp4":  # transformers: the experts alone
        return replace(unquantised, experts=stored, kv=kv_format)
    last = f"model.layers.{layers - 1}"
    parts = {
        "attention": (f"{last}.self_attn.q_proj", f"{last}.self_attn.q_b_proj"),
        "experts": (f"{last}.mlp.experts.0.up_proj", f"{last}.block_sparse_moe.experts.0.w1"),
        "linear": (f"{last}.mlp.up_proj", f"{last}.mlp.shared_experts.up_proj"),
    }
    formats = {part: plain if _excluded(modules, excluded) else stored for part, modules in parts.items()}
    return Formats(**formats, head=plain, kv=kv_format)


def _stored(q: _Config) -> str:
    """Name of the format of matrices. Raises UsageError for a way to quantise that is not known."""
    method, algorithm = q.values.get("quant_method"), q.values.get("quant_algo")
    if algorithm is not None and (method in (None, "modelopt")):
        stored = _ALGORITHMS.get(str(algorithm))
        if stored is None:
            raise UsageError(f"'{q.where}': quant_algo {algorithm} is not understood. Known: {', '.join(_ALGORITHMS)}.")
        return stored
    if method == "mxfp4":
        return "mxfp4"
    if method == "fp8":
        return "fp8-block" if q.values.get("weight_block_size") else "fp8"
    if method in ("gptq", "awq"):
        return _integers(q.count("bits", "w_bit", default=4), q.count("group_size", "q_group_size", default=128), q)
    groups = q.values.get("config_groups")
    if method in ("compressed-tensors", "modelopt", None) and isinstance(groups, dict) and groups:
        first = next(iter(groups.values()))
        weights = _Config(first.get("weights") or {}, q.where)
        bits, size = weights.count("num_bits"), weights.count("group_size", default=128) or 128
        if weights.values.get("type") == "float":
            if bits == 8:
                return "fp8-block" if weights.values.get("strategy") == "block" else "fp8"
            if bits == 4:
                return "nvfp4" if size == 16 else "mxfp4"
        elif bits == 8 and first.get("input_activations"):
            return "int8"
        else:
            return _integers(bits, size, q)
    raise UsageError(f"'{q.where}': quant_method {method} is not understood. Known: {', '.join(METHODS)}.")


def _integers(bits: int, group: int, q: _Config) -> str:
    names = {(4, 128): "int4-g128", (4, 32): "int4-g32"}
    if bits == 8:
        return "int8-weights"
    name = names.get((bits, group))
    if name is None:
        raise UsageError(
            f"'{q.where}': integers of {bits} bits in groups of {group} are not understood (4 in 128 or 32)."
        )
    return name


def _excluded(modules: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a pattern leaves out one of these modules: a name or part of one, a glob, or `re:` and an expression."""

    def meets(module: str, pattern: str) -> bool:
        if pattern.startswith("re:"):
            return re.match(pattern[3:], module) is not None
        bare = pattern.removeprefix("language_model.")
        if "*" in bare:
            return fnmatch.fnmatch(module, bare) or fnmatch.fnmatch(module, f"{bare}.*")
        return f".{bare}." in f".{module}."

    return any(meets(module, pattern) for module in modules for pattern in patterns)
