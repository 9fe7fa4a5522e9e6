"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shared_data() -> Path:
    """The folder of real traces and measured latencies beside the project; skips where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("real traces and measurements (shared/data beside the project) are not on this machine")
    return path


@pytest.fixture
def draw():
    """A factory of requests: `draw(n, rate_rps, seed, prompt=(low, high), output=(low, high))`, Poisson arrivals."""
    import numpy as np

    from harness.api import Request

    def requests(n=60, rate_rps=4.0, seed=0, prompt=(1, 200), output=(1, 60)):
        rng = np.random.default_rng(seed)
        at_s = np.cumsum(rng.exponential(1 / rate_rps, n)).tolist()
        prompts = rng.integers(prompt[0], prompt[1] + 1, n).tolist()
        outputs = rng.integers(output[0], output[1] + 1, n).tolist()
        return [Request(i, *row) for i, row in enumerate(zip(at_s, prompts, outputs, strict=True))]

    return requests
