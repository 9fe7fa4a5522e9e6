"""The latency model `operators`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from harness.registry import make

TABLES: dict[str, list[Any]] = {
    "tokens": [1, 100], "dense_s": [0.01, 0.02], "seqs": [1, 10], "head_s": [0.001, 0.001],
    "decode_seqs": [1, 10], "decode_context": [10, 110], "decode_s": [[0.001, 0.002], [0.010, 0.020]],
    "chunk": [10, 100], "stored": [0, 100], "prefill_s": [[0.001, 0.002], [0.010, 0.020]],
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Operator times of a small model."""
    path = tmp_path / "operators.json"
    path.write_text(json.dumps(TABLES))
    return path


def test_a_step_is_the_sum_of_its_operators(file: Path) -> None:
    """Projections at all tokens, the head at all sequences, and attention of prompts and decodes are added."""
    model = make("latency", f"operators:file={file},overhead_s=0.5,seq_s=0.1")

    assert 0.5 + 0.1 * 10 + 0.01 + 0.01 * 9 / 99 + 0.001 + 0.015 == pytest.approx(model.step_s((), 10, 600))
    assert 0.5 + 0.1 * 2 + 0.02 + 0.01 / 99 + 0.001 + 0.020 + 0.001 == pytest.approx(model.step_s([(100, 100)], 1, 10))


def test_a_leap_takes_as_long_as_its_steps(file: Path) -> None:
    """One call for many decode steps gives what a call for each gives, to the last bit."""
    model = make("latency", f"operators:file={file},scale=1.1")
    context = np.arange(5, 4000, 37)

    assert [model.decode_s(7, int(c)) for c in context] == model.decode_many_s(7, context).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_s": [0.01]}, "dense_s must have"),
        ({"tokens": [100, 1]}, "tokens must be two numbers or more that rise"),
        ({"head_s": [-1, 1]}, "head_s must hold seconds"),
        ({"chunk": None}, "chunk"),
    ],
)
def test_a_damaged_file_is_an_error(file: Path, change: dict[str, Any], message: str) -> None:
    """A table that does not fit is refused with its name, not with a traceback in the middle of a run."""
    file.write_text(json.dumps(TABLES | change))

    with pytest.raises(UsageError, match=message):
        make("latency", f"operators:file={file}")
