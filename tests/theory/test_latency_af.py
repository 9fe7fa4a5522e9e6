"""Attention and experts on GPUs of their own, with micro-batches that take turns."""

from bisect import bisect_right

import numpy as np
import pytest

from backends.sim import Sim
from backends.systems.megascale_infer import AfLatency, PingPong
from harness.api import Request

NETWORK = {"network_bytes_per_s": 25e9}


@pytest.mark.parametrize("micro", [1, 2, 3, 4])
@pytest.mark.parametrize(("seqs", "context"), [(8, 4000), (256, 160_000), (2048, 1_300_000)])
def test_a_step_takes_as_long_as_micro_batches_followed_one_by_one(micro: int, seqs: int, context: int) -> None:
    """Sides that wait for each other would be free."""
    model = AfLatency(micro=micro, tp=2, dp=2, **NETWORK)
    one, layers = model._micro(-(-seqs // micro), 0), model._layers
    attention_s = (one.plain_s + model._attention.kv_s((), seqs, context) / micro) / layers
    followed = PingPong(attention_s, one.experts_s / layers, one.sent_s / layers, layers).simulated_s(micro)

    assert followed + model._attention.ends_s(seqs) == pytest.approx(model.decode_s(seqs, context), rel=1e-12)


def test_leaps_over_steps_equal_single_ones() -> None:
    """The side that is the slower one changes with the context."""
    requests = [Request(i, i / 5, 400 + i, 60) for i in range(50)]
    found = [
        [r.token_s for r in Sim("mixtral-8x22b", "a100-80g", "af:experts=8", tp=2, dp=2, leap=leap).simulate(requests)]
        for leap in (True, False)
    ]

    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_gpus_of_experts_count_and_leave_their_memory_to_kv() -> None:
    """A cluster would be cheaper than it is, and hold less."""
    apart = Sim("mixtral-8x22b", "a100-80g", "af:experts=8", tp=2, dp=2).describe()
    together = Sim("mixtral-8x22b", "a100-80g", "roofline", tp=2, dp=2, ep=4).describe()

    assert (12, 8, "a100-80g", 4) == (*(apart[k] for k in ("gpus", "expert_gpus", "expert_hardware")), together["gpus"])
    assert apart["kv_blocks"] > 2 * together["kv_blocks"]


def most_seqs(model: AfLatency) -> int:
    """Sequences of 650 tokens on each group of attention whose step takes 150 ms at most."""
    return bisect_right(range(4001), 0.15, key=lambda seqs: model.decode_s(model.dp * seqs, model.dp * seqs * 650)) - 1


@pytest.mark.parametrize(
    ("model", "experts", "tp"),
    [("mixtral-8x22b", 8, 4), ("mixtral-8x22b", 8, 2), ("mixtral-8x22b", 8, 1), ("mixtral-8x7b", 8, 1),
     ("scaled-moe-317b", 32, 8), ("scaled-moe-317b", 32, 4)],
)  # fmt: skip
def test_the_best_number_of_attention_groups_balances_both_sides(model: str, experts: int, tp: int) -> None:
    """GPUs of the faster side would wait: the best is within one of k1 E / (k3 K), at the largest batches (S38.c)."""
    found = []
    for groups in range(1, 9):
        deployment = AfLatency(experts, model=model, tp=tp, dp=groups, **NETWORK)
        seqs = most_seqs(deployment)
        step_s = deployment.decode_s(groups * seqs, groups * seqs * 650)
        found.append((groups * seqs / step_s / (groups * tp + experts), groups, seqs // deployment.micro))
    _, best, micro = max(found)
    one = AfLatency(experts, model=model, tp=tp, **NETWORK)
    attention_s, experts_s = (
        [of(seqs) for seqs in (micro, 2 * micro, 4 * micro, 8 * micro)]
        for of in (
            lambda n: one._micro(n, 0).plain_s + one._attention.kv_s((), n, n * 650),
            lambda n: one._micro(n, 0).experts_s,
        )
    )
    k1, k3_k_over_e = (attention_s[1] - attention_s[0]) / micro, (experts_s[3] - experts_s[2]) / (4 * micro)

    assert abs(best - k1 / k3_k_over_e) <= 1
