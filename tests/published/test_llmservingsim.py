"""Runs of vLLM that times of kernels must foretell without calibration."""

from pathlib import Path

import numpy as np

from published import llmservingsim


def test_runs_of_vllm_follow_from_times_of_kernels(shared_data: Path) -> None:
    """All three runs are scored; a memory-bound one follows from measured operators and its policy."""
    found = llmservingsim.validate(shared_data)
    profiled = [pair for pair in found.pairs if pair.setting == llmservingsim.PROFILED.name]

    assert 3 * 12 == len(found.pairs)
    assert not any(pair.calibrated for pair in found.pairs)
    assert 0.03 > np.mean([abs(pair.simulated / pair.measured - 1) for pair in profiled])
