"""Models and GPUs from files on the command line, and what a run keeps of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 32_000, "max_position_embeddings": 8192,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
GPU = """title = "Mine"\nmemory_bytes = 16e9\nbandwidth_bytes_per_s = 1e12\nbf16_flops = 1e14\nfp16_flops = 1e14
pcie_bytes_per_s = { value = 64e9, source = "PCIe Gen4 x16" }\n"""


def _run(folder: Path, *more: str) -> dict[str, Any]:
    assert 0 == main(["run", "--backend", "sim", "--requests", "20", "--no-html", "--out", str(folder), *more])
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())["backend"]
    return found


def test_a_run_is_repeated_when_its_files_are_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of a file that moved could be neither understood nor repeated."""
    model, gpu = tmp_path / "mine" / "config.json", tmp_path / "gpu.toml"
    model.parent.mkdir()
    model.write_text(json.dumps(CONFIG))
    gpu.write_text(GPU)
    first = _run(tmp_path / "a", "--model", str(model.parent), "--hardware", str(gpu))
    model.unlink()
    gpu.unlink()

    assert main(["run", "--config", str(tmp_path / "a" / "run.json"), "--out", str(tmp_path / "b")]) == 2
    assert "The run.json of a run with it holds its figures" in capsys.readouterr().err
    stored = str(tmp_path / "a" / "run.json")
    again = _run(tmp_path / "c", "--model", str(tmp_path / "a"), "--hardware", stored)

    assert first["model_file"]["figures"]["experts"]["routed"] == 4
    assert first["hardware_files"][str(gpu)]["figures"]["sources"]["pcie_bytes_per_s"] == "PCIe Gen4 x16"
    assert first["model_file"]["figures"] == again["model_file"]["figures"]
    assert first["kv_tokens"] == again["kv_tokens"]


def test_names_of_the_catalogue_leave_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are part of the version; a run of names holds none that another run could take."""
    facts = _run(tmp_path / "a", "--model", "llama3-8b")

    assert not {"model_file", "hardware_files"} & set(facts)
    assert main(["run", "--backend", "sim", "--model", str(tmp_path / "a" / "run.json")]) == 2
    assert "holds no figures of model: that run named llama3-8b" in capsys.readouterr().err


def test_each_side_has_the_memory_of_its_gpus(tmp_path: Path) -> None:
    """H20 decode replicas were given the memory of the prefill side's GPU."""
    gpu = tmp_path / "gpu.toml"
    gpu.write_text(GPU)

    facts = _run(
        tmp_path / "a", "--model", "qwen2.5-7b", "--hardware", "h100", "--prefill", "1",
        "--backend", "sim:link=100Gbps",
        "--decode", f"1:tp=4,hardware={gpu}", "--latency", "roofline",
    )  # fmt: skip

    assert (facts["prefill"]["hardware"], facts["decode"]["hardware"]) == ("h100", str(gpu))
    assert facts["decode"]["kv_tokens"] < facts["prefill"]["kv_tokens"] * 4 * 16 / 79


def test_a_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was read of a configuration must be seen before a simulation is believed."""
    model, gpu = tmp_path / "config.json", tmp_path / "gpu.toml"
    model.write_text(json.dumps(CONFIG))
    gpu.write_text(GPU)

    assert main(["explain", str(model)]) == 0
    assert "routed 4, per_token 2" in capsys.readouterr().out
    assert main(["explain", f"hardware.{gpu}"]) == 0
    assert "100 TFLOP/s" in capsys.readouterr().out


def test_place_searches_on_a_gpu_of_a_file(tmp_path: Path) -> None:
    """Names of GPUs are taken in any case, but a path has one; the model is that of the latency model."""
    model, gpu = tmp_path / "config.json", tmp_path / "Mine.toml"
    model.write_text(json.dumps(CONFIG))
    gpu.write_text(GPU)

    code = main([
        "place", "--gpus", "1", "--hardware", str(gpu), "--latency", f"roofline:model={model}", "--rate", "1",
        "--workload", "fixed:prompt=64,output=8", "--slo", "ttft=10,tpot=10", "--algorithm", "vllm++",
        "--max-requests", "3000", "--out", str(tmp_path / "out"),
    ])  # fmt: skip

    best = json.loads((tmp_path / "out" / "place.json").read_text())["best"][0]
    assert (code, best["hardware"], best["gpus"]) == (0, str(gpu), 1)
    assert str(model) in best["command"]
