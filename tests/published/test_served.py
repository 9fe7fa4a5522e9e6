"""Rows of benchmarks at fixed concurrency: which are scored, and in which precision."""

from collections import Counter
from pathlib import Path

import pandas as pd

from published import served


def read(folder: Path, frame: pd.DataFrame) -> tuple[list[served.Row], Counter[str]]:
    """Rows of a table of aiconfigurator with these columns, the others as in a run on one H100 under vLLM."""
    usual = {"system": "h100_sxm", "backend": "vllm", "mode": "agg", "isl": 64, "osl": 16, "tp_size": 1.0,
             "batch_size": 4.0, "precision": "fp8", "gemm_quant_mode": None, "attention_dp_size": None,
             "moe_tp_size": None, "moe_ep_size": None, "silicon_concurrency": None, "silicon_ttft_ms": 30.0,
             "silicon_tpot_ms": 8.0}  # fmt: skip
    (folder / "profiles").mkdir(exist_ok=True)
    frame.assign(**{name: value for name, value in usual.items() if name not in frame}).to_parquet(
        folder / "profiles" / "aic_silicon_e2e.parquet"
    )
    out: Counter[str] = Counter()
    return served.aiconfigurator(folder, out), out


def test_experts_are_scored_and_what_is_not_is_counted(tmp_path: Path) -> None:
    """A mixture of experts was scored as a dense model of 8 billion parameters, and all others were dropped."""
    names = ["MiniMaxAI/MiniMax-M2.5", "meta-llama/Llama-3.1-70B", "some/Unknown"]
    rows, out = read(tmp_path, pd.DataFrame({"model_path": names, "system": ["b200_sxm", "h100_sxm", "h100_sxm"]}))

    assert [("minimax-m2.5", "b200"), ("llama3.1-70b", "h100")] == [(row.model, row.gpu) for row in rows]
    assert {"aiconfigurator: some/Unknown is not in the catalogue": 1} == out


def test_precision_is_that_of_the_row_not_of_another_of_its_group(tmp_path: Path) -> None:
    """Rows in bf16 were simulated with the weights of fp8, because the first row of their group was fp8."""
    frame = pd.DataFrame({"precision": ["fp8", "bf16", None] * 2, "silicon_ttft_ms": [30.0 + i for i in range(6)]})
    rows, _ = read(tmp_path, frame.assign(model_path="meta-llama/Llama-3.1-70B"))

    assert ["fp8", "bf16", "bf16"] * 2 == [dict(row.formats)["linear"] for row in rows]


def test_products_of_degrees_are_read_as_the_degrees(tmp_path: Path) -> None:
    """Runs on a node of eight GPUs were simulated on 64, and runs of vLLM on 4 GPUs on 16."""
    frame = pd.DataFrame({
        "tp_size": [64.0, 1.0, 4.0, 8.0, 36.0], "attention_dp_size": [1.0, 64.0, 4.0, 1.0, 1.0],
        "moe_tp_size": [8.0, 8.0, 1.0, 1.0, 36.0], "moe_ep_size": [8.0, 8.0, 16.0, 8.0, 1.0],
        "batch_size": [16.0, 1.0, 4.0, 16.0, 16.0], "silicon_concurrency": [16.0, 64.0, 16.0, 16.0, 16.0],
    }).assign(model_path="deepseek-ai/DeepSeek-R1", system="b200_sxm")  # fmt: skip
    rows, out = read(tmp_path, frame)

    assert [(8, 1, 8), (1, 8, 8), (4, 1, 4)] == [(row.tp, row.dp, row.ep) for row in rows]
    assert [16, 64, 16] == [row.clients for row in rows]
    assert [1, 1] == list(out.values())
    assert "aiconfigurator: a run listed again" in out


def test_the_load_of_a_replica_is_not_that_of_all(tmp_path: Path) -> None:
    """The requests of 32 GPUs, sent to two of them, had a TTFT 119 times too long."""
    frame = pd.DataFrame({"batch_size": [13.0], "silicon_concurrency": [416.0], "attention_dp_size": [1.0]})
    rows, _ = read(tmp_path, frame.assign(model_path="nvidia/Qwen3-32B-NVFP4", system="b200_sxm", backend="trtllm"))

    assert [13] == [row.clients for row in rows]
