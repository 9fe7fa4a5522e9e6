"""Pipeline stages: several batches in flight, bubbles, shared memory, and the journal of all lanes."""

import numpy as np
import pytest

from backends.serving.pipeline import Pipeline
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request

POLICIES = ["static:batch=4", "orca:max_batch=4", "vllm-v0", "vllm-v1:budget=64,max_seqs=8",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=64",
            "sarathi:budget=64,max_seqs=16", "fastgen:budget=64,max_seqs=8"]  # fmt: skip


def pipeline(policy, kv, blocks, stages):
    """A replica on several stages, without a driver."""
    core = Core.of(policy, kv)
    front, *lanes = (core.replica(core.memory(), blocks) for _ in range(stages + 1))
    Pipeline(front, lanes)
    return front


@pytest.mark.parametrize("blocks", [40, 4000])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_served_once_by_one_batch_at_a_time(policy, blocks, draw):
    """A sequence in two batches at once, or a lost block, would make pipelines look faster than they are."""
    requests = draw(60, rate_rps=30.0, prompt=(1, 300), output=(1, 60))
    sim = Sim(policy=policy, pp=3, kv_blocks=blocks, latency="linear:base_s=0.002,prefill_token_s=0.0001")
    records = []
    for record in sim.simulate(requests):
        sim.cluster.check()
        records.append(record)

    assert {"ok"} == {r.status for r in records}
    assert sorted(r.id for r in requests) == sorted(r.request_id for r in records)
    assert all(list(r.token_s) == sorted(set(r.token_s)) and len(r.token_s) == r.output_tokens for r in records)
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas)


@pytest.mark.parametrize("stages", [2, 3])
def test_as_many_batches_are_in_flight_as_there_are_stages(stages):
    """Fewer would leave stages idle for no reason; more would need a sequence twice."""
    front = pipeline("vllm-v0:max_seqs=1", "paged", 1000, stages)
    for i in range(5):
        front.add(Request(i, 0.0, 10, 5), 0.0)
    batches = [front.schedule(0.0) for _ in range(stages)]

    assert [[i] for i in range(stages)] == [[seq.request.id for seq, _ in batch.prefills] for batch in batches]
    assert front.schedule(0.0) is None
    front.commit(batches[0], [1.0])
    assert front.schedule(1.0).decode_seqs == 1
    front.check()


def test_bubbles_of_two_stages_are_the_differences_of_neighbours():
    """K04.e: a two-stage pipeline stands idle for the difference of the times of each batch and the one before it."""
    prompts = np.random.default_rng(0).integers(1, 500, 50).tolist()
    sim = Sim(pp=2, policy="vllm-v0:max_seqs=1", latency="linear:base_s=0.01,prefill_token_s=0.001")
    list(sim.simulate(Request(i, 0.0, n, 1) for i, n in enumerate(prompts)))
    times_s = [0.01 + 0.001 * n for n in prompts]
    bubble_s = sum(abs(a - b) for a, b in zip(times_s, times_s[1:], strict=False))

    assert bubble_s / (bubble_s + 2 * sum(times_s)) == pytest.approx(sim.describe()["bubble_share"])


def test_equal_batches_make_no_bubbles():
    """K04.e: a pipeline of equal batches is full."""
    sim = Sim(pp=4, policy="vllm-v0:max_seqs=1", latency="linear:base_s=0.01")
    list(sim.simulate(Request(i, 0.0, 100, 8) for i in range(40)))

    assert sim.describe()["bubble_share"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("policy", ["vllm-v0", "sarathi:budget=64,max_seqs=16"])
def test_the_journal_of_a_pipeline_replays(policy, draw):
    """Which lane has which batch must follow from the calls alone."""
    from backends.serving.journal import replay

    requests = draw(40, rate_rps=30.0, prompt=(1, 200), output=(1, 40))
    sim = Sim(policy=policy, pp=2, kv_blocks=50, journal=True, latency="linear:base_s=0.002")
    list(sim.simulate(requests))
    journal = sim.cluster.replicas[0].journal
    again = pipeline(policy, "paged", 50, 2)
    again.journal = type(journal)()
    replay(journal.calls, {r.id: r for r in requests}, again)

    assert journal.decisions == again.journal.decisions
    again.check()


def test_stages_beside_prefill_and_decode(draw):
    """Both sides of a disaggregated cluster may be pipelines."""
    sim = Sim(prefill="1:pp=2", decode="2:pp=2", kv_blocks=80, latency="abc")
    records = list(sim.simulate(draw(60, rate_rps=12.0, prompt=(1, 300), output=(1, 60))))

    sim.cluster.check()
    assert {"ok"} == {r.status for r in records}
    assert sim.describe()["gpus"] == 6
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas)
