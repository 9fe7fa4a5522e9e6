"""The table of errors that answers print is written by the program that scores the rows."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from published import compared
from published.served import Row

SCORED = "tests/published/zero_shot.py"


def row(gpu: str, precision: str = "fp8") -> Row:
    return Row("x", gpu, "vllm", "llama3.1-70b", precision, (("linear", "bf16"),), 4, 1, 1, 1, 1, 1, 1.0, 1.0, "mean")


def test_rows_of_a_program_replace_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of an earlier version would stay, or those of other programs be lost."""
    path = tmp_path / "compared.toml"
    path.write_text(compared.TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(compared, "TABLE", path)
    rows = [row("h100")] * compared.FEWEST + [row("h200")] * (compared.FEWEST - 1) + [row("h200", "nan")] * 11
    logs = np.linspace(-0.4, 0.0, len(rows))
    before = tomllib.loads(path.read_text(encoding="utf-8"))["compared"]
    compared.write(rows, logs, 2 * logs, latency="operators", source=SCORED)
    after = tomllib.loads(path.read_text(encoding="utf-8"))["compared"]

    assert [one for one in before if (one["latency"], one["source"]) != ("operators", SCORED)] == after[:-2]
    assert [("h100", "vLLM", "fp8", 10), ("h200", "vLLM", "bf16", 11)] == [
        tuple(one[key] for key in ("hardware", "engine", "format", "rows")) for one in after[-2:]
    ]
    assert (-np.median(logs[:10]), -2 * np.median(logs[:10])) == pytest.approx(
        (after[-2]["tpot"], after[-2]["ttft"]), abs=1e-3
    )
