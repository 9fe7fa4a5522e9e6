"""The run of vLLM that operator times must foretell without calibration."""

from pathlib import Path

from published import llmservingsim_4090


def test_a_run_of_vllm_follows_from_its_operators(shared_data: Path) -> None:
    """Means and quantiles of a memory-bound run on an RTX 4090 follow from operators and policy alone."""
    found = llmservingsim_4090.validate(shared_data)

    assert all(target.holds for target in found.targets)
    assert {"ttft_s", "tpot_s"} == {target.metric for target in found.targets}
    assert not any(pair.calibrated for pair in found.pairs)
