"""What chunking, memory modes and load must do to latencies, policy by policy."""

import numpy as np
import pytest

from backends.sim import Sim
from harness.api import Request


@pytest.mark.parametrize(("prompt", "budget"), [(1000, 100), (1000, 1000), (1024, 256), (999, 250)])
def test_chunks_read_what_earlier_chunks_stored(prompt: int, budget: int):
    """N chunks read N(N-1)/2 chunk-loads of KV again, one chunk none (K04.c)."""
    sim = Sim(policy=f"sarathi:budget={budget},max_seqs=4", kv_blocks=1000)
    stored = []
    replica = sim.cluster.replicas[0]
    schedule = type(replica).schedule

    class Watching(type(replica)):
        __slots__ = ()

        def schedule(self, now_s):
            batch = schedule(self, now_s)
            stored.extend(already for _, already in batch.loads) if batch else None
            return batch

    replica.__class__ = Watching
    list(sim.simulate([Request(0, 0.0, prompt, 1)]))
    chunks = -(-prompt // budget)

    assert chunks == len(stored)
    assert chunks * (chunks - 1) // 2 * budget == sum(stored)


def test_a_running_request_never_waits_longer_than_one_full_step(draw):
    """With a token budget no gap exceeds the dearest step; whole prompts make longer ones (K04.d)."""
    requests = draw(150, rate_rps=4.0, prompt=(200, 1500), output=(20, 120))
    gaps, dearest = {}, {}
    for policy in ("sarathi:budget=256,max_seqs=64", "orca:max_batch=64"):
        sim = Sim(policy=policy)
        gaps[policy] = max(
            np.diff(record.token_s).max() for record in sim.simulate(requests) if len(record.token_s) > 1
        )
        steps = sim.steps_table()
        dearest[policy] = (steps["end_s"].to_numpy() - steps["start_s"].to_numpy()).max()
    chunked, whole = gaps

    assert gaps[chunked] <= dearest[chunked] * (1 + 1e-12)
    assert gaps[whole] > 2 * gaps[chunked]


@pytest.mark.parametrize("policy", ["vllm-v0", "orca", "sarathi"])
def test_with_endless_memory_every_memory_mode_is_the_same(policy: str, draw):
    """How memory is given out cannot matter where it never runs short (I8)."""
    requests = draw(120, rate_rps=6.0)
    modes = ["paged", "reserve-max:max_tokens=400", "reserve-pow2", "reserve-oracle"]
    runs = [
        {r.request_id: list(r.token_s) for r in Sim(policy=policy, kv=kv, kv_blocks=1_000_000).simulate(requests)}
        for kv in modes
    ]

    assert all(runs[0] == run for run in runs[1:])


def test_request_level_batching_is_far_worse_at_the_same_rate(draw):
    """Static batching makes the median first token wait many times longer than stall-free batching (S02's shape)."""
    requests = draw(128, rate_rps=1.0, prompt=(200, 2000), output=(50, 800))
    static, sarathi = (
        np.median([r.token_s[0] - r.scheduled_s for r in Sim(policy=policy).simulate(requests)])
        for policy in ("static:batch=16", "sarathi")
    )

    assert static > 20 * sarathi
