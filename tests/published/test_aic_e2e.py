"""Closed-loop benchmarks of dense models: calibrated on some rows, scored on others."""

from pathlib import Path

import pandas as pd
import pytest

from published import aic_e2e


def measured(shape: aic_e2e.Shape, constants: aic_e2e.Constants, knobs: aic_e2e.Knobs) -> pd.DataFrame:
    """Rows of a server that behaves as the simulator with these constants."""
    rows = []
    for prompt, output in ((64, 16), (512, 16), (64, 48)):
        for tp in (1, 2):
            for clients in (1, 2, 4):
                row = aic_e2e._Measured(prompt, output, tp, clients, 0.0, 0.0)
                ttft_s, tpot_s = aic_e2e._simulated(row, shape, constants, knobs)
                rows.append((prompt, output, tp, clients, 1e3 * ttft_s, 1e3 * tpot_s))
    names = ["isl", "osl", "tp_size", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms"]
    known = {"system": "h100_sxm", "model_path": "meta-llama/Llama-3.1-8B", "backend": "vllm", "mode": "agg",
             "gemm_quant_mode": "fp8", "precision": "fp8"}  # fmt: skip
    return pd.DataFrame(rows, columns=names).assign(**known)


@pytest.mark.nightly
def test_a_server_with_other_constants_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a third of its rows a server that is the simulator with other constants is foretold on the others."""
    monkeypatch.setattr(aic_e2e, "CHOICES", {"cached": (0.0, 0.9)})
    monkeypatch.setattr(aic_e2e.pool, "of", aic_e2e.pool.Here)
    shape = aic_e2e.Shape(8e9, 131_072, 1.0, 3.35e12, 85e9, 1979e12)
    other = aic_e2e.Constants(8e-3, 5e-5, 4e-3, 3e-5, 6e-8, 4e-6, 1e-9, 0.05, 2e-6)
    path = tmp_path / aic_e2e.FILE
    path.parent.mkdir()
    measured(shape, other, aic_e2e.Knobs()).to_parquet(path)

    found = aic_e2e.validate(tmp_path)

    assert {True: 12, False: 24} == {seen: sum(p.calibrated is seen for p in found.pairs) for seen in (True, False)}
    assert [True, True] == [target.holds for target in found.targets]
    assert 3.0 > max(target.obtained for target in found.targets)


def test_glm_5_is_no_dense_model_of_8b(tmp_path: Path) -> None:
    """A mixture of experts whose name tells no size was scored as a dense model of 8 billion parameters."""
    frame = rows({"zai-org/GLM-5-FP8": 7, "zai-org/GLM-4.6": 2, "some/Dense-Large": 3, "meta-llama/Llama-3.1-8B": 6})
    (tmp_path / "profiles").mkdir()
    frame.to_parquet(tmp_path / aic_e2e.FILE)
    found, left_out = aic_e2e._rows(tmp_path)

    assert {"meta-llama/Llama-3.1-8B"} == set(found["model_path"])
    assert left_out == (
        "mixtures of experts: 2 rows of zai-org/GLM-4.6, 7 rows of zai-org/GLM-5-FP8; "
        "models whose name tells no size: 3 rows of some/Dense-Large"
    )


def test_precision_is_that_of_the_row_not_of_the_first_of_its_group() -> None:
    """Rows in bf16 were simulated with the weights of fp8, because the first row of their group was fp8."""
    frame = rows({"meta-llama/Llama-3.1-8B": 6}).assign(precision=["fp8", "bf16", None] * 2, gemm_quant_mode=None)
    (task,) = aic_e2e._groups(frame)
    shapes = [row.shape for row in task.rows]
    constants, knobs = task.shape.estimate(), aic_e2e.Knobs()
    fast, slow = (aic_e2e._simulated(row, task.shape, constants, knobs)[1] for row in task.rows[:2])

    assert [1.0, 2.0, 2.0] * 2 == [shape.weight_bytes for shape in shapes if shape is not None]
    assert 8e9 / 3.35e12 / 0.8 * 0.9 < slow - fast


def rows(counts: dict[str, int]) -> pd.DataFrame:
    """So many rows of each model on one H100 under vLLM, in fp8."""
    frame = pd.DataFrame({"model_path": [name for name, count in counts.items() for _ in range(count)]})
    frame["batch_size"] = 1.0 + frame.index
    return frame.assign(system="h100_sxm", backend="vllm", mode="agg", isl=64, osl=16, tp_size=1.0, precision="fp8",
                        gemm_quant_mode="fp8", silicon_ttft_ms=30.0, silicon_tpot_ms=8.0)  # fmt: skip
