"""The prefix cache under both clocks: one set of decisions, the same tokens from fewer computed ones."""

import numpy as np
import pytest

from backends.executors.llama import Llama
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Request
from harness.registry import make
from workloads.content.tokens import Tokens

POLICIES = ["static:batch=4,pad=false", "orca:max_batch=4", "vllm-v0:max_seqs=8", "vllm-v1:budget=48,max_seqs=8",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=48", "sarathi:budget=48,max_seqs=8",
            "fastgen:budget=48"]  # fmt: skip


@pytest.fixture(scope="module")
def requests():
    """Prompts of which many begin alike, some with a cut block, some repeated."""
    rng = np.random.default_rng(3)
    rows = []
    at_s = np.cumsum(rng.exponential(0.05, 40)).tolist()
    for i, at in enumerate(at_s):
        family, blocks = int(rng.integers(0, 3)), int(rng.integers(0, 5))
        own = int(rng.integers(1, 30))
        ids = tuple(100 * family + b for b in range(blocks))
        rows.append(Request(i, at, 16 * blocks + own, int(rng.integers(1, 25)), ids, 16))
    again = rows[7]
    return [*rows, Request(40, at_s[-1] + 0.1, again.prompt_tokens, 9, again.prefix_ids, 16)]


@pytest.fixture(scope="module")
def serve(engine_loop):
    """Serves requests with a real model: the journal, what ran, and cached tokens by request."""

    def run(requests, policy, blocks, prefix_cache):
        model = Llama(seed=1)
        model.allocate(blocks, 16)
        kv, journal = make("kv", "paged"), Journal()
        replica = Replica(make("policies", policy), kv, blocks, journal=journal, prefix_cache=prefix_cache)
        ran = engine_loop(requests, replica, model, Tokens(seed=5).token_ids)
        return journal, ran, {end.request_id: end.cached_tokens for end in ran.ended}

    return run


@pytest.fixture(scope="module")
def plain(requests, serve):
    """What the model says without a prefix cache, and the tokens that it computed; no policy changes either."""
    _, ran, cached = serve(requests, "vllm-v0:max_seqs=8", 400, prefix_cache=False)

    assert set(cached.values()) == {None}
    return ran


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [24, 400])
def test_engine_and_simulator_find_the_same_and_the_model_says_the_same(
    policy, blocks, requests, plain, serve, engine_loop
):
    """A page of another sequence would change the answer; another hit than in the simulator makes it another system
    (E22 with a prefix cache, S40)."""
    journal, ran, cached = serve(requests, policy, blocks, prefix_cache=True)
    latency = engine_loop.latency
    sim = Sim(policy=policy, kv_blocks=blocks, journal=True, leap=False, prefix_cache="on", latency=latency)
    records = {r.request_id: r for r in sim.simulate(requests)}

    assert journal.decisions == sim.cluster.replicas[0].journal.decisions
    assert ran.stamps == {i: list(r.token_s) for i, r in records.items()}
    assert cached == {i: r.cached_tokens for i, r in records.items()}
    assert plain.tokens == ran.tokens
    if blocks == 400:
        assert plain.ran - ran.ran == sum(cached.values()) > 300
