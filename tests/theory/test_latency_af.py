"""Attention and experts on GPUs of their own, with micro-batches that take turns."""

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
    one, layers = model._micro(-(-seqs // micro)), model._layers
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
