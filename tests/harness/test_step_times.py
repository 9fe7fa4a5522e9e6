"""Which measurements an answer names beside its step times."""

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from harness import catalog
from harness.data.run_json import StepTimes
from harness.validity.step_times import nearest, of_backend
from reports._system import step_times

ROWS = [
    {"latency": "operators", "model": model, "hardware": gpu, "engine": engine, "format": width, "rows": rows,
     "tpot": rows / 1000, "ttft": rows / 500, "source": "x"}
    for model, gpu, engine, width, rows in (
        ("llama3.1-70b", "h100", "vLLM", "fp8", 45), ("llama3.1-70b", "h200", "TensorRT-LLM", "fp8", 72),
        ("llama3.1-70b", "h200", "vLLM", "fp8", 60), ("llama3.1-8b", "h100", "TensorRT-LLM", "bf16", 177),
        ("deepseek-r1", "b200", "SGLang", "fp4", 145), ("deepseek-r1", "b200", "SGLang", "fp8", 55),
        ("deepseek-r1", "mi300x", "SGLang", "fp8", 29), ("minimax-m2.5", "h200", "vLLM", "fp8", 51),
    )
]  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "comparisons", lambda name: [row for row in ROWS if row["latency"] == name])


def facts(model: str, gpu: str, **more: object) -> Mapping[str, Any]:
    return {"latency": "operators", "model": model, "hardware": gpu, **more}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("model", "gpu", "policy", "badge", "rows"),
    [
        ("llama3.1-70b", "h100", "sarathi", "measured here", 45),
        ("llama3.3-70b", "h200", "sarathi", "measured here", 72),
        ("llama3.1-70b", "h200", "vllm-v1:budget=8192", "measured here", 60),
        ("deepseek-r1", "b200", "sarathi", "measured here", 55),
        ("qwen3-32b", "h100", "sarathi", "near", 45),
        ("llama3-8b", "h200", "sarathi", "near", 177),
        ("llama3.1-70b", "h20", "sarathi", "near", 72),
        ("kimi-k2", "gb300", "sarathi", "near", 55),
        ("deepseek-r1", "mi325x", "sarathi", "near", 29),
        ("llama3.1-8b", "mi325x", "sarathi", "other", 29),
        ("deepseek-r1", "h200", "sarathi", "other", 72),
        ("llama3.1-70b", "a100-80g", "sarathi", "none", 0),
    ],
)
def test_the_row_that_is_most_like_an_answer(model: str, gpu: str, policy: str, badge: str, rows: int) -> None:
    """The mean of all stood for MI325X, 9 to 18 %, while its sibling MI300X is off by a factor of 2."""
    (row,) = of_backend(facts(model, gpu, policy=policy))

    assert (badge, rows) == (row.badge, row.rows)
    assert (math.expm1(rows / 1000) if rows else None) == row.tpot_error
    assert (math.expm1(rows / 500) if rows else None) == row.ttft_error


def test_no_row_is_of_another_generation_and_near_is_of_the_same_class() -> None:
    """An error of one kind of kernels would stand for another, of any model on any GPU of the catalogue."""
    rng = np.random.default_rng(0)
    for name in ("operators", "roofline"):
        rows = catalog.comparisons(name)
        for _ in range(60):
            m, gpu = catalog.model(rng.choice(catalog.models())), catalog.hardware(rng.choice(catalog.gpus()))
            row = nearest(name, gpu.name, m, gpu)
            if row.badge == "none":
                assert gpu.generation not in {catalog.hardware(other["hardware"]).generation for other in rows}
                continue
            assert row.of_model is not None
            assert row.of_hardware is not None
            of = catalog.model(row.of_model)

            assert gpu.generation == catalog.hardware(row.of_hardware).generation
            assert row.rows >= 7
            if row.badge != "other":
                assert ((m.latent is None), (m.experts is None)) == ((of.latent is None), (of.experts is None))


@pytest.mark.usefixtures("measured")
def test_files_count_by_the_figures_that_a_run_holds() -> None:
    """A checkpoint of a known shape would not be known, or a file of another machine be read for a stored run."""
    m = replace(catalog.model("llama3.1-70b"), name="mine", source="config.json")
    gpu = replace(catalog.hardware("h100"), name="ours", title="ours")
    figures = {key: value for key, value in asdict(replace(gpu, sources={})).items() if value is not None}
    files = {"model_file": {"figures": {key: value for key, value in asdict(m).items() if value is not None}}}

    assert ["measured here"] == [row.badge for row in of_backend(facts("/gone/config.json", "h100", **files))]
    assert ["near"] == [row.badge for row in of_backend(
        facts("/gone/config.json", "/gone/ours.toml", **files, hardware_files={"/gone/ours.toml": {"figures": figures}})
    )]  # fmt: skip
    assert ["none"] * 3 == [row.badge for broken in (
        facts("/gone/config.json", "h100"), facts("deepseek-r1", "<script>"),
        facts("x.json", "h100", model_file={"figures": {"layers": "many"}}),
    ) for row in of_backend(broken)]  # fmt: skip


@pytest.mark.usefixtures("measured")
def test_what_is_printed() -> None:
    """A reader would not learn of what, and of how many rows, an error is."""
    sides = {
        "prefill": {"latency": "operators", "hardware": "h200"},
        "decode": {"latency": "operators", "hardware": "l4"},
    }

    assert (
        "operators: near (llama3.1-70b on h200, 72 rows of TensorRT-LLM in fp8): TPOT off by 7%, TTFT by 15%, median; "
        "operators: not compared with measurements on Ada"
    ) == step_times((), facts("qwen3-32b", "h200", **sides))
    assert "file: calibrated on your steps" in step_times((), facts("qwen3-32b", "h200") | {"latency": "file:s.json"})
    assert "" == step_times((), {"model": "qwen3-32b", "url": "http://127.0.0.1"})
    assert "roofline: other (a on b): much" == step_times([StepTimes(
        latency="roofline", hardware="h100", badge="other", of_model="a", of_hardware="b", figures="much"
    )], {})  # fmt: skip
