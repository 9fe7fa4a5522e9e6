"""Arithmetic of clusters: KV over links, the min-rule, linear scaling, scaled time, monotone load."""

import json

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request
from harness.errors import UsageError

LINEAR = "linear:base_s={base},prefill_token_s={token},decode_seq_s={seq},context_token_s={context}"


def poisson(rate_rps, count, prompt=128, output=24, seed=0):
    """Requests of equal lengths; another rate scales the same arrivals."""
    at_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, count)).tolist()
    return [Request(i, at, prompt, output) for i, at in enumerate(at_s)]


def linear(scale=1.0):
    """A latency model all of whose times are `scale` as long."""
    return LINEAR.format(base=0.01 * scale, token=1e-4 * scale, seq=2e-4 * scale, context=2**-20 * scale)


def span_s(requests, **fields):
    """Seconds until the last token of a queue that is there at once."""
    return max(r.token_s[-1] for r in Sim(**fields, log_steps=False).simulate(requests))


@pytest.mark.parametrize("link", ["none", "25Gbps:latency=2ms"])
def test_while_kv_moves_both_sides_hold_it(link):
    """K10.e, K10.f: KV belongs to one side but during the hand-off, and only one side says tokens."""
    sim = Sim(prefill="1", decode="1", link=link, latency=linear(), kv_blocks=200)
    for record in sim.simulate(poisson(20, 80)):
        first, second = sim.cluster.replicas
        sim.cluster.check()
        leaving = {seq.request.id for seq in first.outbox.leaving}
        coming = {seq.request.id for seq in second.inbox.incoming}
        offered = {seq.request.id for seq, _ in second.inbox.offers}

        assert coming | offered == leaving
        assert not coming & offered
        assert record.handoff_end_s <= record.decode_start_s < record.token_s[1]


@pytest.mark.parametrize(("prompt", "output"), [(256, 16), (64, 64)])
def test_the_slower_side_decides(prompt, output):
    """E20, K10.g: two prefill and one decode replica carry the lesser of what both sides carry alone."""
    requests = [Request(i, 0.0, prompt, output) for i in range(1500)]
    fields = {"latency": linear(), "kv_blocks": 4000}
    prefill, decode = (
        len(requests) / span_s(requests, **side, **fields) for side in ({"prefill": "2"}, {"decode": "1"})
    )
    both = len(requests) / span_s(requests, prefill="2", decode="1", link="none", **fields)

    assert min(prefill, decode) == pytest.approx(both, rel=0.05)
    assert 10 / 3 == pytest.approx(min(2 * 5.6, 10) / 3)


def test_twice_the_replicas_carry_twice_the_load():
    """E20: a queue is worked off in half the time."""
    requests = [Request(i, 0.0, 64, 16) for i in range(1536)]  # 24 whole batches for each of four replicas
    one, two, four = (span_s(requests, replicas=n, latency=linear(), policy="vllm-v0:max_seqs=16") for n in (1, 2, 4))

    assert one == pytest.approx(2 * two, rel=0.01)
    assert one == pytest.approx(4 * four, rel=0.01)


def test_a_system_that_cannot_be_is_refused_in_a_sentence(refusals):
    """Who asks for it must learn what to write instead, before a night of another system, or a crash in the middle."""
    refusals("wrong-system.txt", "--requests", "2")


def test_one_side_alone_can_be_simulated_and_not_served():
    """Prefill alone ends with the first token; decode alone begins with it; neither is a server."""
    requests = poisson(5, 20)
    first = list(Sim(prefill="1", latency=linear()).simulate(requests))
    rest = list(Sim(decode="1", latency=linear()).simulate(requests))

    assert {1} == {len(r.token_s) for r in first}
    assert {24} == {len(r.token_s) for r in rest}
    assert all(r.token_s[0] == r.scheduled_s for r in rest)
    with pytest.raises(UsageError, match="To serve requests give prefill and decode replicas"):
        Sim(prefill="1", latency=linear()).real_time()


@pytest.mark.parametrize("fields", [{"prefill": "1", "decode": "1"}, {"replicas": 2, "router": "freeness"}], ids=str)
def test_a_link_that_takes_no_time_can_be_stored(fields):
    """JSON has no infinite bandwidth, so that the whole run ended as a bug of the program."""
    assert 0.0 == json.loads(json.dumps(Sim(link="none", **fields).describe(), allow_nan=False))["link_latency_s"]


@pytest.mark.parametrize("cluster", [{"replicas": 3}, {"pp": 2}, {"prefill": "2", "decode": "1"}], ids=str)
def test_equal_requests_of_one_instant_may_change_places(cluster):
    """E21: who of several equal requests comes first changes no percentile."""
    requests = [Request(i, i // 5 * 0.2, 100, 20) for i in range(100)]
    swapped = [Request(r.id ^ 1, r.scheduled_s, 100, 20) for r in requests]
    one, two = (sorted(r.token_s[-1] - r.scheduled_s for r in Sim(latency=linear(), **cluster).simulate(each))
                for each in (requests, swapped))  # fmt: skip

    assert one == two


@pytest.mark.parametrize("cluster", [{}, {"pp": 2}, {"prefill": "2", "decode": "1", "link": "none"}], ids=str)
def test_half_the_costs_at_twice_the_rate_halve_every_latency(cluster):
    """E20, E21: attainment under scaled bounds is that of a faster machine under the true ones, exactly."""
    slow = list(Sim(latency=linear(1.0), kv_blocks=300, **cluster).simulate(poisson(8, 200)))
    halved = [Request(r.id, r.scheduled_s / 2, r.prompt_tokens, r.output_tokens) for r in poisson(8, 200)]
    fast = list(Sim(latency=linear(0.5), kv_blocks=300, **cluster).simulate(halved))

    assert [[t / 2 for t in r.token_s] for r in slow] == [list(r.token_s) for r in fast]
