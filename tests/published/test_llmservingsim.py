"""Runs of vLLM that times of kernels must foretell without calibration."""

from pathlib import Path

import numpy as np

from published import llmservingsim


def test_runs_of_vllm_follow_from_times_of_kernels(shared_data: Path) -> None:
    """All three runs are scored; on RTX PRO 6000 decodes beside prompts and Triton's experts have to be right."""
    found = llmservingsim.validate(shared_data)
    profiled = [pair for pair in found.pairs if pair.setting == llmservingsim.PROFILED.name]

    assert 3 * 12 == len(found.pairs)
    assert not any(pair.calibrated for pair in found.pairs)
    assert {"tpot_s": True, "ttft_s": False} == {target.metric: target.holds for target in found.targets}
    assert all(target.obtained < 11.5 for target in found.targets)  # TTFT misses 10 %: queues of one run are too short
    assert 0.03 > np.mean([abs(pair.simulated / pair.measured - 1) for pair in profiled])
