"""The prefix cache under both clocks: one set of decisions, the same tokens from fewer computed ones."""

import numpy as np
import pytest

from backends.engine_process.core import EngineCore
from backends.executors.llama import Llama
from backends.latency.linear import Linear
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Request
from harness.registry import make
from workloads.content.tokens import Tokens

POLICIES = ["static:batch=4,pad=false", "orca:max_batch=4", "vllm-v0:max_seqs=8", "vllm-v1:budget=48,max_seqs=8",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=48", "sarathi:budget=48,max_seqs=8",
            "fastgen:budget=48"]  # fmt: skip
COST = Linear(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=3e-4, context_token_s=1e-7)


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


class Timed:
    """A real model on a clock that goes by what a latency model says of each step."""

    def __init__(self, model) -> None:
        self.model, self.now_s, self.ran = model, 0.0, 0
        self.vocab_size, self.max_tokens = model.vocab_size, model.max_tokens
        self.copy_out, self.copy_in = model.copy_out, model.copy_in

    def execute(self, pieces):
        decoding = {seq.request.id for seq in self.replica.decoding}
        prefills = [(len(p.token_ids), p.position) for p in pieces if p.request_id not in decoding]
        decodes = [p for p in pieces if p.request_id in decoding]
        self.now_s += COST.step_s(prefills, len(decodes), sum(p.position for p in decodes))
        self.ran += sum(len(p.token_ids) for p in pieces)
        return self.model.execute(pieces)


def engine(requests, policy, blocks, prefix_cache):
    """The engine's loop: decisions, token stamps, output tokens, tokens that ran, cached tokens by request."""
    model = Llama(seed=1)
    model.allocate(blocks, 16)
    timed, journal = Timed(model), Journal()
    replica = timed.replica = Replica(
        make("policies", policy), make("kv", "paged"), blocks, journal=journal, prefix_cache=prefix_cache
    )
    content = Tokens(seed=5)
    core = EngineCore(replica, timed, content.token_ids, lambda: timed.now_s)
    left, stamps, tokens_of, cached = list(requests), {}, {}, {}
    while left or replica.waiting or replica.running:
        if not replica.waiting and not replica.running:
            timed.now_s = max(timed.now_s, left[0].scheduled_s)
        arrived = [r for r in left if r.scheduled_s <= timed.now_s]
        left = left[len(arrived) :]
        turn = core.turn(arrived)
        replica.check()
        for i, token in zip(turn.tokens, turn.token_ids, strict=True):
            stamps.setdefault(i, []).append(turn.at_s)
            tokens_of.setdefault(i, []).append(token)
        cached |= {e.request_id: e.cached_tokens for e in turn.ended}
    return journal.decisions, stamps, tokens_of, timed.ran, cached


@pytest.fixture(scope="module")
def plain(requests):
    """What the model says without a prefix cache, and the tokens that it computed; no policy changes either."""
    _, _, tokens_of, ran, cached = engine(requests, "vllm-v0:max_seqs=8", 400, prefix_cache=False)

    assert set(cached.values()) == {None}
    return tokens_of, ran


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [24, 400])
def test_engine_and_simulator_find_the_same_and_the_model_says_the_same(policy, blocks, requests, plain):
    """A page of another sequence would change the answer; another hit than in the simulator makes it another system
    (E22 with a prefix cache, S40)."""
    decisions, stamps, tokens_of, ran, cached = engine(requests, policy, blocks, prefix_cache=True)
    latency = ",".join(
        f"{f}={getattr(COST, f)!r}" for f in ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s")
    )
    sim = Sim(policy=policy, kv_blocks=blocks, journal=True, leap=False, prefix_cache="on", latency=f"linear:{latency}")
    records = {r.request_id: r for r in sim.simulate(requests)}

    assert decisions == sim.cluster.replicas[0].journal.decisions
    assert stamps == {i: list(r.token_s) for i, r in records.items()}
    assert cached == {i: r.cached_tokens for i, r in records.items()}
    assert plain[0] == tokens_of
    if blocks == 400:
        assert plain[1] - ran == sum(cached.values()) > 300
