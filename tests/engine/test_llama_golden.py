"""Logits of small models against those of Hugging Face transformers (tests/golden/logits/make.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.executors.llama import Llama
from harness.api import Piece

GOLDEN = Path(__file__).parents[1] / "golden" / "logits"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-5)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_logits_equal_those_of_transformers(family: str, dtype: Any, tolerance: float) -> None:
    """The engine would serve another model than the folder holds, although it agrees with its own judge."""
    model = Llama(model=str(GOLDEN / family), dtype=dtype)
    model.allocate(20, 16)
    golden = np.load(GOLDEN / family / "golden.npz")
    ids = golden["token_ids"].tolist()
    blocks = np.random.default_rng(0).permutation(20).tolist()
    start, got = 0, []
    for size in [40, 1, 1, 30, 5, *[1] * 73]:
        got.append((start + size - 1, model.logits([Piece(0, ids[start : start + size], start, blocks, True)])[0]))
        start += size

    assert len(ids) == start
    np.testing.assert_allclose(golden["logits"][[at for at, _ in got]], [g for _, g in got], rtol=0, atol=tolerance)
