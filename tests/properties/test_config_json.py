"""Any configuration of a known architecture becomes a model with sound memory; any other is one sentence."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import catalog
from harness.catalog.config_json import ARCHITECTURES, model_of
from harness.errors import UsageError

NESTED = tuple(name for name in ARCHITECTURES if name.endswith("ForConditionalGeneration"))
LATENT = ("Deepseek", "GlmMoeDsa", "Kimi")
ROUTED = (*LATENT, "Glm4Moe", "GptOss", "Llama4", "MiniMax", "Mixtral", "Qwen3Moe", "Qwen3Next", "Qwen3_5Moe")
QUANTISED: list[dict[str, Any] | None] = [
    None,
    {"quant_method": "fp8"},
    {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "awq", "bits": 4, "group_size": 128},
    {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"], "kv_cache_quant_algo": "FP8"},
    {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
        "ignore": ["re:.*self_attn.*", "re:.*shared_experts.*"],
    },
]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration as its maker might write it: sizes of any scale, with the fields of its architecture."""
    name = draw(st.sampled_from(sorted(ARCHITECTURES)))
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    heads = kv_heads * draw(st.integers(1, 8))
    layers = draw(st.integers(1, 80))
    text: dict[str, Any] = {
        "num_hidden_layers": layers, "hidden_size": 64 * draw(st.integers(1, 128)), "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": draw(st.integers(64, 30_000)),
        "vocab_size": draw(st.integers(256, 260_000)), "max_position_embeddings": draw(st.integers(1024, 2**20)),
        "head_dim": draw(st.sampled_from([64, 80, 128, 256])),
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float16"])),
    }  # fmt: skip
    if draw(st.booleans()):
        text["tie_word_embeddings"] = draw(st.booleans())
    if draw(st.booleans()):
        text |= {
            "sliding_window": draw(st.integers(16, 8192)),
            "use_sliding_window": True,
            "max_window_layers": layers // 2,
        }
    if name.startswith("OPT"):
        text["ffn_dim"] = text["intermediate_size"]
    if name.startswith(LATENT):
        text |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
                 "q_lora_rank": draw(st.sampled_from([None, 1536]))}  # fmt: skip
        if draw(st.booleans()):
            text |= {"index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128}
    if name.startswith(ROUTED):
        routed = draw(st.integers(2, 256))
        text |= {
            draw(st.sampled_from(["n_routed_experts", "num_local_experts", "num_experts"])): routed,
            "num_experts_per_tok": draw(st.integers(1, routed)), "moe_intermediate_size": draw(st.integers(64, 4096)),
            "first_k_dense_replace": draw(st.integers(0, min(3, layers))),
        }  # fmt: skip
        if name.startswith("Llama4"):
            text |= {"interleave_moe_layer_step": draw(st.sampled_from([1, 2])), "intermediate_size_mlp": 16_384,
                     "attention_chunk_size": 8192}  # fmt: skip
    if name.startswith(("Qwen3Next", "Qwen3_5")):
        text |= {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
                 "linear_value_head_dim": 128, "full_attention_interval": draw(st.sampled_from([2, 4]))}  # fmt: skip
    quantised = draw(st.sampled_from(QUANTISED))
    if quantised is not None:
        text["quantization_config"] = quantised
    return {"architectures": [name], **({"text_config": text} if name in NESTED else text)}


def _changed(config: Mapping[str, Any], field: str, factor: int) -> dict[str, Any]:
    inner = config.get("text_config")
    if isinstance(inner, dict):
        return {**config, "text_config": {**inner, field: inner[field] * factor}}
    return {**config, field: config[field] * factor}


@given(config=configs())
@settings(max_examples=300, deadline=None)
def test_every_configuration_becomes_a_model_with_sound_memory(config: dict[str, Any]) -> None:
    """Weights are positive, grow with every size, shrink with every GPU, and no token meets more than there is."""
    m = model_of(config, None, "drawn", "config.json")

    weights = catalog.weight_bytes(m)
    assert 0 < catalog.active_parameters(m) <= catalog.parameters(m)
    assert 4 * catalog.parameters(m) / 8 < weights <= 2 * catalog.parameters(m) + 1
    assert weights <= catalog.weight_bytes(replace(m, formats=catalog.Formats()))
    for field in ("vocab_size", "num_hidden_layers", "hidden_size"):
        assert weights < catalog.weight_bytes(model_of(_changed(config, field, 2), None, "drawn", "config.json"))
    for tp in (one for one in (2, 4) if m.heads % one == 0):
        each = catalog.weight_bytes(m, catalog.Shape(tp))
        assert each < weights <= tp * each + tp


def _write(folder: Path, config: object, name: str = "config.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return str(folder / name)


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256, "max_position_embeddings": 8192,
}  # fmt: skip


def test_a_configuration_is_the_model_of_the_catalogue(tmp_path: Path) -> None:
    """A file and its name in the catalogue must give the same simulation; a folder is its config.json."""
    file = _write(tmp_path / "Meta-Llama-3-8B", LLAMA)

    m, named = catalog.model(file), catalog.model("llama3-8b")

    assert m.name == "Meta-Llama-3-8B"
    assert catalog.model(str(tmp_path / "Meta-Llama-3-8B")).layers == m.layers
    assert catalog.parameters(m) == catalog.parameters(named)
    assert catalog.block_bytes(m, catalog.Shape(2)) == catalog.block_bytes(named, catalog.Shape(2))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """What is cached by path alone would simulate a model that is no longer there."""
    file = _write(tmp_path, LLAMA)
    assert catalog.model(file).layers == 32

    _write(tmp_path, {**LLAMA, "num_hidden_layers": 16})

    assert catalog.model(file).layers == 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no object"),
        ({}, "names no architecture"),
        ({**LLAMA, "architectures": ["BertModel"]}, "architecture BertModel is not understood. Known: Deepseek"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "lacks hidden_size"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers must be a whole number, got '32'"),
        ({**LLAMA, "num_key_value_heads": 5}, "5 KV heads do not divide the 32 attention heads"),
        ({**LLAMA, "torch_dtype": "int3"}, "dtype int3 is not understood"),
        ({**LLAMA, "quantization_config": {"quant_method": "hqq"}}, "quant_method hqq is not understood. Known: awq"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 3}}, "integers of 3 bits"),
        ({**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 9}, "a token meets 1 to 4 experts, got 9"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_not_understood_is_one_sentence(config: object, message: str, tmp_path: Path) -> None:
    """A user must learn which field or architecture it was, not see a traceback."""
    file = _write(tmp_path, config)

    with pytest.raises(UsageError) as error:
        catalog.model(file)

    assert message in str(error.value)
    assert file in str(error.value)


TOML = """layers = 2\nhidden = 64\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 128\nvocab = 1000\npositions = 0
max_tokens = 512\ngated = true\ntied = false\nfamily = "llama"\n"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOML.replace("layers = 2\n", ""), "missing 'layers'"),
        (TOML.replace("layers = 2", "layrs = 2"), "no figure is called 'layrs'. Did you mean 'layers'?"),
        (TOML.replace("layers = 2", 'layers = "2"'), "expected 'int', got 'str' in 'layers'"),
        (TOML.replace("layers = 2", "layers = 0"), "layers must be at least 1, got 0"),
        (TOML.replace('"llama"', '"lama"'), "No family of models named 'lama'. Did you mean 'llama'?"),
        (TOML + 'formats = { kv = "fp88" }', "No format named 'fp88'. Did you mean 'fp8'?"),
        (TOML + "experts = { routed = 4, per_token = 8, ffn = 8 }", "from 1 to all of them"),
        (TOML + "experts = { routd = 4, per_token = 2, ffn = 8 }", "Did you mean 'routed'?"),
        ("layers = ", "is not TOML"),
    ],
)
def test_a_toml_model_that_is_wrong_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    """The same for files of the catalogue's own keys."""
    with pytest.raises(UsageError) as error:
        catalog.model(_write(tmp_path, text, "mine.toml"))

    assert message in str(error.value)


def test_a_gpu_of_a_file(tmp_path: Path) -> None:
    """Figures with their sources, as in the catalogue, and without."""
    text = """title = "Mine"\nmemory_bytes = { value = 48e9, source = "its box" }\nbandwidth_bytes_per_s = 1e12
bf16_flops = 2e14\nfp16_flops = 2e14\npcie_bytes_per_s = 64e9\n"""
    good = _write(tmp_path, text, "mine.toml")

    gpu = catalog.hardware(good)

    assert (gpu.name, gpu.memory_bytes, gpu.sources["memory_bytes"]) == ("mine", 48 * 10**9, "its box")
    for wrong, message in ((text.replace("2e14", "-1.0"), "bf16_flops must be above 0"), ("title = 'x'", "missing")):
        with pytest.raises(UsageError, match=message):
            catalog.hardware(_write(tmp_path, wrong, "wrong.toml"))
    with pytest.raises(UsageError, match="is not known as hardware"):
        catalog.hardware(_write(tmp_path, {}, "x.json"))
