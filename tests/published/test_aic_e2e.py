"""Rows of benchmarks at fixed concurrency: which are scored, and in which precision."""

from collections import Counter
from pathlib import Path

import pandas as pd

from published import served


def read(folder: Path, frame: pd.DataFrame) -> tuple[list[served.Row], Counter[str]]:
    """Rows of a table of aiconfigurator with these columns, the others as in a run on one H100 under vLLM."""
    usual = {"system": "h100_sxm", "backend": "vllm", "mode": "agg", "isl": 64, "osl": 16, "tp_size": 1.0,
             "batch_size": 4.0, "precision": "fp8", "gemm_quant_mode": None, "attention_dp_size": None,
             "moe_ep_size": None, "silicon_concurrency": None, "silicon_ttft_ms": 30.0,
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
    frame = pd.DataFrame({"precision": ["fp8", "bf16", None] * 2}).assign(model_path="meta-llama/Llama-3.1-70B")
    rows, _ = read(tmp_path, frame)

    assert ["fp8", "bf16", "bf16"] * 2 == [dict(row.formats)["linear"] for row in rows]
