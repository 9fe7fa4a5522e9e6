"""Requests with images: encoded once, before their prompts, by the replica itself or in front of it."""

from dataclasses import replace

import pytest

from backends.sim import Sim
from backends.systems.xllm_epd import ENCODE_TOKEN_S, TRANSFER_TOKEN_S, StagesPolicy
from harness.api import Extra

SYSTEM = {"latency": "linear:base_s=0.01", "kv_blocks": 60, "journal": True}


def with_images(requests, tokens=1000):
    """Every other request has an image."""
    return [replace(r, extra=Extra(image_tokens=tokens)) if r.id % 2 else r for r in requests]


@pytest.mark.parametrize("policy", ["stages", "stages:ordered=false", "stages:budget=32,max_seqs=6,encode_tokens=1"])
@pytest.mark.parametrize("cluster", [{}, {"prefill": "2", "decode": "1", "link": "10Gbps"}])
def test_every_image_is_encoded_once_and_no_request_is_lost(policy, cluster, draw):
    """An image that is never encoded would keep its request waiting for ever; one encoded twice would cost twice."""
    requests = with_images(draw(60, rate_rps=30.0, prompt=(1, 150), output=(1, 60)))
    sim = Sim(policy=policy, **SYSTEM, **cluster)
    records = {r.request_id: r for r in sim.simulate(requests)}
    sim.cluster.check()

    assert {"ok"} == {r.status for r in records.values()}
    leaping = Sim(policy=policy, **SYSTEM | {"journal": False}, **cluster).simulate(requests)
    assert {i: list(r.token_s) for i, r in records.items()} == {r.request_id: list(r.token_s) for r in leaping}
    if "max_seqs" not in policy:
        assert sum(r.preemptions for r in records.values()), "this case is here for those that lose their memory"
    for replica in sim.cluster.replicas:
        assert not replica.policy._encoded if isinstance(replica.policy, StagesPolicy) and not cluster else True


def test_an_encoder_takes_one_image_after_the_other_and_its_time_is_in_the_first_token(draw):
    """Encoders without a queue would serve any rate."""
    requests = with_images([replace(r, scheduled_s=0.0) for r in draw(4)])
    records = {r.request_id: r for r in Sim(router="encode", **SYSTEM).simulate(requests)}
    prefill_s = {i: r.prefill_start_s for i, r in records.items()}

    assert prefill_s[0] == prefill_s[2] == 0.0
    for place, i in enumerate((1, 3), 1):
        assert prefill_s[i] >= 1000 * (place * ENCODE_TOKEN_S + TRANSFER_TOKEN_S)


def test_without_images_an_encode_stage_changes_nothing(draw):
    """A stage that is not needed must cost nothing."""
    requests = draw(40, rate_rps=10.0)
    times = [
        {r.request_id: list(r.token_s) for r in Sim(router=router, replicas=2, **SYSTEM).simulate(requests)}
        for router in ("encode", "min-load")
    ]

    assert times[0] == times[1]
