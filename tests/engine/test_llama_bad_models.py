"""Broken model folders: one sentence that names the file and the tensor or field."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from backends.executors.llama import Llama
from harness.errors import UsageError
from harness.registry import find, make

Change = Callable[[Path], None]


def tensors(change: Callable[[dict[str, np.ndarray]], None]) -> Change:
    def apply(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return apply


def config(**fields: object) -> Change:
    def apply(folder: Path) -> None:
        held = json.loads((folder / "config.json").read_text())
        held.update(fields)
        (folder / "config.json").write_text(json.dumps({k: v for k, v in held.items() if v != "gone"}))

    return apply


def index(**fields: object) -> Change:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps(fields))

    return apply


def text(name: str, content: str) -> Change:
    return lambda folder: bool((folder / name).write_text(content)) and None


UP = "model.layers.1.mlp.up_proj.weight"
BROKEN: dict[str, tuple[Change, str]] = {
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "config.json' cannot be read: No such file or directory; a model folder holds",
    ),
    "broken config": (text("config.json", '{"a": '), "config.json' cannot be read: it is not JSON ("),
    "config is a list": (text("config.json", "[]"), "config.json' cannot be read: Expected `object`, got `array`; "),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no *.safetensors file"),
    "broken weights": (text("model.safetensors", "x" * 40), "model.safetensors' is not a complete safetensors file"),
    "weights that are no numbers": (
        tensors(lambda held: held.update({UP: held[UP] * np.nan})),
        f"tensor '{UP}' holds numbers that are not finite; the file is damaged.",
    ),
    "cut weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]) and None,
        "model.safetensors' is not a complete safetensors file",
    ),
    "missing tensor": (tensors(lambda t: t.pop(UP) is None), f"has no tensor '{UP}'."),
    "extra tensor": (
        tensors(lambda t: t.update({UP + "s": t[UP]})),
        f"holds tensor '{UP}s', which this model does not use. Did you mean '{UP}'?",
    ),
    "wrong shape": (
        tensors(lambda t: t.update({UP: t[UP][:3].copy()})),
        f"tensor '{UP}' has shape (3, 64), but config.json requires (96, 64).",
    ),
    "wrong dtype": (
        tensors(lambda t: t.update({UP: t[UP].astype(np.int8)})),
        f"tensor '{UP}' is stored as I8; known: F32, F16, BF16.",
    ),
    "more layers": (config(num_hidden_layers=3), "has no tensor 'model.layers.2.input_layernorm.weight' (and "),
    "unknown architecture": (
        config(architectures=["LlamaForCausalML"]),
        "No architecture named 'LlamaForCausalML'. Did you mean 'LlamaForCausalLM'?",
    ),
    "no architecture": (config(architectures="gone"), "Object missing required field `architectures`"),
    "unknown rope": (config(rope_scaling={"rope_type": "yarn", "factor": 2}), "No rope scaling named 'yarn'."),
    "rope is a word": (config(rope_scaling="linear"), "Expected `object | null`, got `str` - at `$.rope_scaling`"),
    "negative factor": (
        config(rope_scaling={"type": "linear", "factor": -1}),
        "Expected `float` > 0.0 - at `$.rope_scaling.factor`",
    ),
    "field is text": (config(hidden_size="64"), "Expected `int`, got `str` - at `$.hidden_size`"),
    "field is missing": (config(vocab_size="gone"), "Object missing required field `vocab_size`"),
    "field is zero": (config(num_hidden_layers=0), "Expected `int` >= 1 - at `$.num_hidden_layers`"),
    "no heads": (config(num_attention_heads=0), "Expected `int` >= 1 - at `$.num_attention_heads`"),
    "heads do not divide": (config(num_key_value_heads=3), "heads (4) must be a multiple of kv_heads (3)."),
    "odd head": (config(head_dim=15), "the head dimension must be even for rotary embedding, got 15."),
    "bias": (config(attention_bias=True), "attention_bias is not supported; use a model without it."),
    "quantised": (config(quantization_config={"bits": 4}), "quantization_config is not supported"),
    "other activation": (config(hidden_act="gelu"), "Invalid enum value 'gelu' - at `$.hidden_act`"),
    "bad window": (
        config(architectures=["MistralForCausalLM"], sliding_window=0),
        "Expected `int` >= 1 - at `$.sliding_window`",
    ),
    "bad layer types": (
        config(architectures=["MistralForCausalLM"], sliding_window=9, layer_types=["full_attention"]),
        "layer_types must name each of the 2 layers.",
    ),
    "index is no map": (index(weight_map=[]), "Expected `object`, got `array` - at `$.weight_map`"),
    "index names a missing file": (
        index(weight_map={UP: "a.safetensors"}),
        "a.safetensors' cannot be read: No such file or directory",
    ),
    "index leaves the folder": (index(weight_map={UP: "../a"}), "which is not a file of this folder."),
    "index names a missing tensor": (
        index(weight_map={"nothing": "model.safetensors"}),
        "model.safetensors' has no tensor 'nothing', although model.safetensors.index.json names it there.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_reported_in_one_sentence(kit: Any, tmp_path: Path, name: str) -> None:
    """A user with a broken download would get a traceback, or a model that computes nonsense."""
    change, words = BROKEN[name]
    folder = kit.write_model(tmp_path / "model", "gqa")
    change(folder)

    with pytest.raises(UsageError, match=re.escape(words)) as error:
        Llama(model=str(folder))
    assert "\n" not in str(error.value)


def test_a_tensor_stored_twice_is_refused(kit: Any, tmp_path: Path) -> None:
    """Which of two versions of a tensor is used would depend on the names of files."""
    folder = kit.write_model(tmp_path / "model", "gqa")
    save_file({UP: load_file(folder / "model.safetensors")[UP]}, folder / "other.safetensors")

    with pytest.raises(UsageError, match=re.escape(f"other.safetensors' holds tensor '{UP}' a second time.")):
        Llama(model=str(folder))


def test_files_beside_the_index_are_not_read(kit: Any, tmp_path: Path) -> None:
    """A folder that also holds consolidated weights, as Mistral's do, could not be loaded."""
    folder = kit.write_model(tmp_path / "model", "gqa")
    names = load_file(folder / "model.safetensors")
    (folder / "consolidated.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    index(weight_map=dict.fromkeys(names, "model.safetensors"))(folder)

    assert Llama(model=str(folder)).vocab_size == 160


def test_tensors_that_are_computed_anyway_are_ignored(kit: Any, tmp_path: Path) -> None:
    """Old checkpoints, which store rotary tables and tied heads, could not be loaded."""
    folder = kit.write_model(tmp_path / "model", "tied")
    tensors(lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}))(folder)
    tensors(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))(folder)

    assert Llama(model=str(folder)).vocab_size == 160


def test_fields_that_are_null_are_as_good_as_not_there(kit: Any, tmp_path: Path) -> None:
    """Folders of tools that write every field could not be loaded."""
    folder = kit.write_model(tmp_path / "model", "gqa")
    plain = Llama(model=str(folder)).config
    config(attention_bias=None, use_sliding_window=None, max_window_layers=None, rope_parameters={})(folder)

    assert plain == Llama(model=str(folder)).config


def test_the_registry_finds_it() -> None:
    """The executor of the engine could not be chosen."""
    assert find("executors", "llama") is Llama
    assert make("executors", "llama:context=4096").max_tokens == 4096


@pytest.mark.parametrize("size", [(0, 16), (4, 0)])
def test_empty_memory_is_refused(size: tuple[int, int]) -> None:
    """An engine without memory would fail at the first request instead of at its start."""
    with pytest.raises(UsageError, match="at least one page of one token"):
        Llama(vocab=64).allocate(*size)
