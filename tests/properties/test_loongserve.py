"""Groups of instances of LoongServe: none is used twice, and prompts are divided over them as well as can be."""

from itertools import product

import numpy as np
import pytest

from backends.latency.roofline import Roofline
from backends.serving.replica import Replica
from backends.sim import Sim
from backends.systems.loongserve import LoongservePolicy
from harness.api import Request
from harness.registry import make

LONG = {"model": "llama2-7b", "latency": "roofline", "max_model_len": 600_000}


@pytest.mark.parametrize("seed", range(4))
def test_no_instance_has_two_batches(seed, monkeypatch):
    """Groups that overlap would compute more than the GPUs can."""
    rng, taken, take = np.random.default_rng(seed), [], LoongservePolicy.take

    def checked(policy, lane, group, batch, pieces, context):
        take(policy, lane, group, batch, pieces, context)
        taken.append(group)
        assert group >= 1
        assert sum(policy._groups[i] for i, each in enumerate(lanes) if each.in_flight is not None) + group <= policy.sp

    monkeypatch.setattr(LoongservePolicy, "take", checked)
    requests = [
        Request(i, float(s), int(np.exp(rng.uniform(3, 11))), int(rng.integers(1, 40)))
        for i, s in enumerate(np.cumsum(rng.exponential(0.5, 40)))
    ]
    sim = Sim(policy="loongserve:decode_seqs=4", kv_blocks=12_000, **LONG)
    lanes = sim.cluster.replicas[0].lanes
    records = list(sim.simulate(requests))

    sim.cluster.check()
    assert {"ok"} == {record.status for record in records}
    assert {1, 4} <= set(taken)


@pytest.mark.parametrize("seed", range(6))
def test_prompts_are_divided_as_by_trying_all_divisions(seed):
    """Dynamic programming must find the least sum of latencies of all batches in order of length."""
    rng = np.random.default_rng(seed)
    model, policy = Roofline(model="llama2-7b", tp=2), LoongservePolicy()
    policy.use_model(model)
    replica = Replica(make("policies", "sarathi"), make("kv", "paged"), 40_000)
    prompts = [int(np.exp(rng.uniform(4, 12))) for _ in range(5)]
    for i, prompt in enumerate(prompts):
        replica.add(Request(i, 0.0, prompt, 1), 0.0)
    chosen, group = policy.batch_of_head(replica, 4)
    ordered, least = sorted(replica.waiting, key=lambda seq: seq.prompt), []
    for cuts in product([False, True], repeat=len(prompts) - 1):
        batches = [[ordered[0]]]
        for seq, cut in zip(ordered[1:], cuts, strict=True):
            batches.append([seq]) if cut else batches[-1].append(seq)
        for groups in product(range(1, 5), repeat=len(batches)):
            holds = all(
                sum(-(-seq.prompt // 16) for seq in batch) <= each * 10_000
                for batch, each in zip(batches, groups, strict=True)
            )
            if sum(groups) <= 4 and holds:
                sum_s = sum(
                    len(batch) * policy._seconds([(seq.prompt, 0) for seq in batch], each)
                    for batch, each in zip(batches, groups, strict=True)
                )
                least.append((sum_s, [(set(b), g) for b, g in zip(batches, groups, strict=True)]))
    best = min(least, key=lambda division: division[0])[1]

    assert (chosen, group) in best


def test_a_long_prompt_has_all_instances_and_a_short_one_no_more_than_it_needs():
    """Attention of a prompt alone is divided exactly; so is the KV that its decodes read."""
    model = Roofline(model="llama2-7b", tp=2)
    sim = Sim(policy="loongserve", tp=2, **LONG)
    (record,) = sim.simulate([Request(0, 0.0, 400_000, 3)])
    prefill, first, _ = sim.steps_table().to_pylist()

    assert prefill["end_s"] == pytest.approx(model.step_s([(100_000, 150_000)], 0, 0))
    assert first["end_s"] - first["start_s"] == pytest.approx(model.decode_s(1, 200_000))  # two instances hold it
    assert record.handoff_start_s is None
    assert 8 == sim.describe()["gpus"]
    assert sim.describe()["kv_tokens"] == 4 * Sim(tp=2, **LONG).describe()["kv_tokens"]
