"""Closed-loop benchmarks of dense models: calibrated on some rows, scored on others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from harness.validate.sources import aic_e2e

if TYPE_CHECKING:
    import pytest


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
