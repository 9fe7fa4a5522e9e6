"""Preemption by changing priorities: who runs, what swapping costs, and what reuse saves."""

from random import Random

import pytest

from backends.sim import Sim
from harness.api import Request

HOST = {"preempt": "swap:blocks=4000"}
COST = "linear:base_s=0.02,prefill_token_s=0.0001,decode_seq_s=0.0001"


def traffic(number, requests=24):
    draw = Random(number)
    at_s = [draw.uniform(0, 4) for _ in range(requests)]
    return [Request(i, s, draw.randint(20, 300), draw.randint(2, 120)) for i, s in enumerate(sorted(at_s))]


def simulated(requests, policy, **fields):
    sim = Sim(policy=policy, latency=COST, kv_blocks=60, **{**HOST, **fields})
    records = sorted(sim.simulate(requests), key=lambda record: record.request_id)
    sim.cluster.check()
    return sim, records


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("pattern", ["markov", "random"])
def test_every_request_ends_and_leaps_equal_steps(number, pattern):
    """K21.d: no request starves, whatever priorities are drawn."""
    policy = f"priority-preempt:frequency=0.2,pattern={pattern},seed={number}"
    for fields in ({}, {"preempt": "swap:blocks=30,overlap=on"}, {"preempt": "recompute"},
                   {"preempt": "recompute", "prefix_cache": "on", "tiers": "dram:write=back"}):  # fmt: skip
        _, records = simulated(traffic(number), policy, **fields)

        assert all(record.status == "ok" for record in records)
        assert sum(record.preemptions for record in records) > 5
        assert records == simulated(traffic(number), policy, leap=False, **fields)[1]


def test_a_step_that_only_copies_ends():
    """By measured operators it took no number of seconds, so that no request after it ended."""
    sim = Sim(kv_blocks=60, policy="priority-preempt:frequency=0.5", **HOST)
    records = list(sim.simulate(traffic(1)))
    steps = sim.steps_table().to_pydict()

    assert (0, 0) in zip(steps["decode_seqs"], steps["prefill_tokens"], strict=True)
    assert all(record.status == "ok" for record in records)


def test_without_updates_it_is_vllm():
    """K21.a."""
    requests = traffic(9)

    assert simulated(requests, "vllm-v0:max_seqs=256")[1] == simulated(requests, "priority-preempt:frequency=0")[1]


def test_the_first_in_priority_run():
    """K21.e: after an update none that waits and fits goes before one that runs."""
    from backends.serving.batch import Phase
    from backends.systems.fastswitch import PriorityPreemptPolicy

    seen = []

    class Watched(PriorityPreemptPolicy):
        def _switch(self, replica, batch):
            super()._switch(replica, batch)
            late = [s for s in (*(replica.swap or ()), *replica.waiting) if s.phase is not Phase.DONE]
            room = replica.blocks.free
            for seq in replica.decoding:
                fits = [s for s in late if replica.blocks.blocks_for(s.prompt + s.emitted) <= room]
                seen.append(all(self._rank(seq) < self._rank(s) or s.blocks == 0 for s in fits))

    sim = Sim(policy="priority-preempt", latency=COST, kv_blocks=60, **HOST)
    sim.cluster.replicas[0]._fill = Watched(frequency=0.2).fill
    list(sim.simulate(traffic(1)))

    assert all(seen)


def test_groups_and_overlap_make_copies_cheaper():
    """A copy of 20 blocks takes one launch, and beside a step only what exceeds it; equal priorities, equal work."""
    fields = {"model": "llama3-8b", "hardware": "a10", "policy": "priority-preempt:frequency=0.2", "kv_blocks": 60,
              "latency": COST}  # fmt: skip
    block_s, ends = {}, {}
    for name, options in (("plain", ""), ("group", ",group=20"), ("overlap", ",group=20,overlap=on")):
        sim = Sim(preempt=f"swap:blocks=4000{options}", **fields)
        ends[name] = max(record.token_s[-1] for record in sim.simulate(traffic(3)))
        block_s[name] = sim.cluster.replicas[0].swap.block_s

    # Llama 3 8B: 2 MiB a block, 32 layers of keys and values, 5 us a launch, 0.78 of 32 GB/s
    assert block_s["plain"] == pytest.approx(2**21 / (0.78 * 32e9) + 64 * 5e-6)
    assert block_s["group"] == pytest.approx(2**21 / (0.78 * 32e9) + 64 * 5e-6 / 20)
    assert ends["overlap"] < ends["group"] < ends["plain"]
