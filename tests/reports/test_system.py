"""The line that names a system."""

import pytest

from reports import _system


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"gpus": 1, "tp": 1, "pp": 1}, "1 GPU"),
        ({"gpus_at_start": 1, "tp": 1, "router": "autoscale"}, "1 GPU at the start"),
        ({"gpus": 8, "tp": 2, "pp": 2, "replicas": 2}, "8 GPUs (tp 2, pp 2)"),
        (
            {"gpus": 5, "tp": 1, "prefill": {"replicas": 2, "tp": 2, "pp": 1}, "decode": {"replicas": 1, "tp": 1}},
            "5 GPUs (prefill 2, tp 2; decode 1)",
        ),
    ],
)
def test_how_a_model_is_cut_is_shown(backend: dict[str, object], words: str) -> None:
    """Two layouts of as many GPUs would look like one and the same system."""
    assert _system.system({"model": "opt-13b", **backend}, {}).endswith(words)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ({"admission": "fcfs", "preempt": "recompute", "speculate": "off", "prefix_cache": False}, "sarathi, paged"),
        ({"admission": "past-future:max_new=4096"}, "sarathi, paged, admission past-future:max_new=4096"),
        ({"preempt": "swap", "speculate": "k=4,alpha=0.7"}, "sarathi, paged, preempt swap, speculate k=4,alpha=0.7"),
        ({"prefix_cache": True}, "sarathi, paged, prefix cache"),
    ],
)
def test_rules_other_than_the_usual_ones_are_shown(backend: dict[str, object], words: str) -> None:
    """Two systems that differ in who gets memory would print the same line."""
    shown = _system.system({"model": "opt-13b", "policy": "sarathi", "kv": "paged", **backend}, {})

    assert f"opt-13b, {words}" == shown
