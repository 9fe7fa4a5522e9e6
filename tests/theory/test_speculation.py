"""Speculative decoding (K06, S15): tokens per step, the gain that shrinks with the batch, the same answers."""

from collections import Counter

import numpy as np
import pytest

from backends.engine_process.generation import looked_up
from backends.executors.llama import Llama
from backends.sim import Sim
from backends.simulator.core import Core
from backends.systems.laws import tokens_per_step
from harness.api import Request
from harness.errors import UsageError
from replay._alone import serve_alone, tokens_of

POLICIES = ["vllm-v0", "sarathi:budget=64,max_seqs=16", "orca:max_batch=6", "static:batch=4",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=32",
            "vllm-v1:budget=64,max_seqs=16", "fastgen:budget=64,max_seqs=16"]  # fmt: skip


def run(speculate, requests, **fields):
    sim = Sim(speculate=speculate, **{"policy": "vllm-v0", "latency": "linear", **fields})
    records = list(sim.simulate(requests))
    sim.cluster.check()
    return records, sim


@pytest.mark.parametrize(("k", "alpha"), [(4, 0.7), (2, 0.8), (6, 0.9), (1, 0.5)])
def test_tokens_per_step_follow_the_closed_form(k, alpha):
    """(1 - alpha^(k+1)) / (1 - alpha) tokens a step within 1 % (E19, K06.a)."""
    requests = [Request(i, 0.0, 10, 20_000) for i in range(4)]
    records, _ = run(f"k={k},alpha={alpha}", requests, kv_blocks=10_000)
    counts = [n for r in records for n in r.token_n[1:-7]]

    assert tokens_per_step(k, alpha) == pytest.approx(np.mean(counts), rel=0.01)
    assert k + 1 == max(counts)


def test_the_speed_up_of_one_sequence_is_tokens_over_the_cost_of_drafts():
    """Where weights bind, a step costs 1 + k * cost and yields that many tokens (K06.b)."""
    requests = [Request(0, 0.0, 10, 20_000)]
    ends = [run(s, requests, kv_blocks=10_000)[0][0].token_s[-1] for s in (None, "k=4,alpha=0.7,cost=0.1")]

    assert tokens_per_step(4, 0.7) / (1 + 4 * 0.1) == pytest.approx(ends[0] / ends[1], rel=0.02)


def test_drafts_that_are_never_right_say_the_same_tokens_one_by_one():
    """With alpha 0 and free drafts nothing but the cost of verifying may change (K06.c)."""
    requests = [Request(i, i * 0.05, 20 + i, 30 + 5 * i) for i in range(20)]
    plain, _ = run(None, requests)
    never, _ = run("k=4,alpha=0,cost=0", requests)  # this latency model charges rows nothing

    assert [list(r.token_s) for r in plain] == [list(r.token_s) for r in never]
    assert {1} == {n for r in never for n in r.token_n}


def test_the_gain_shrinks_with_the_batch_and_is_gone_past_the_knee():
    """Verifying is free only while weights bind (S15)."""
    gains = []
    for batch in (1, 16, 64, 256):
        requests = [Request(i, 0.0, 64, 60) for i in range(batch)]
        tpot = [
            np.mean([(r.token_s[-1] - r.token_s[0]) / (r.output_tokens - 1) for r in records])
            for records, _ in (run(s, requests, latency="roofline") for s in (None, "k=4,alpha=0.7"))
        ]
        gains.append(tpot[0] / tpot[1])

    assert sorted(gains, reverse=True) == gains
    assert gains[0] > 1.8
    assert gains[-1] < 1


def test_no_draft_where_computing_binds():
    """With a bound on rows a batch beyond it decodes plainly."""
    requests = [Request(i, 0.0, 64, 60) for i in range(40)]
    plain, _ = run(None, requests)
    bound, _ = run("k=4,max_rows=100", requests)

    assert [list(r.token_s) for r in plain] == [list(r.token_s) for r in bound]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kv", ["paged:block_tokens=4,watermark=0", "reserve-oracle:block_tokens=4"])
def test_every_token_comes_out_once_whatever_runs_short(policy, kv, draw):
    """Drafts take memory that others need; no sequence may lose a token or a block by it (I1, I2, I3)."""
    requests = draw(40, rate_rps=20.0)
    records, sim = run("k=3,alpha=0.6", requests, policy=policy, kv=kv, kv_blocks=90, leap=False)
    steps = sim.steps_table().to_pydict()

    counts = {r.request_id: r.token_n or [1] * len(r.token_s) for r in records}

    assert {r.id: r.output_tokens for r in requests} == {i: sum(n) for i, n in counts.items()}
    assert all(len(counts[r.request_id]) == len(r.token_s) == len(set(r.token_s)) for r in records)
    assert 90 == sim.cluster.replicas[0].blocks.free
    if "budget=64" in policy:
        assert max(p + d for p, d in zip(steps["prefill_tokens"], steps["decode_seqs"], strict=True)) <= 64


def tokens(speculate, blocks, policy, temperature):
    """What the engine says, and in how many steps."""
    core, executor = Core.of(policy=policy, speculate=speculate), Llama(vocab=32, hidden=64, intermediate=64)
    executor.allocate(blocks, 16)
    turns = serve_alone(
        core.replica(core.memory(), blocks),
        executor,
        lambda r, v: np.random.default_rng(r.id).integers(0, v, r.prompt_tokens),
        [Request(i, 0.0, 20 + 7 * i, 40 + 3 * i) for i in range(8)],
        temperature=temperature,
    )
    return tokens_of(turns), len(turns)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("blocks", [400, 20])
def test_the_engine_says_the_same_with_and_without_drafts(blocks, temperature):
    """A draft may only save time: one other token and it would be another model (E19)."""
    plain, steps = tokens(None, blocks, "sarathi:budget=64,max_seqs=16", temperature)
    drafted, fewer = tokens("k=4,ngram=1", blocks, "sarathi:budget=64,max_seqs=16", temperature)
    prompts_first, _ = tokens("k=3", blocks, "vllm-v0", temperature)

    assert plain == drafted == prompts_first
    assert {i: 40 + 3 * i for i in range(8)} == {i: len(outputs) for i, outputs in plain.items()}
    if temperature == 0:
        assert fewer < 0.8 * steps, "this case is here for drafts that are right"


def test_drafts_are_what_followed_last_time():
    """The draft of an n-gram is what stood behind its last occurrence."""
    text = np.array([5, 1, 2, 3, 4, 1, 2, 7, 8, 1, 2])

    assert [7, 8, 1] == looked_up(text, 2, 3)
    assert [] == looked_up(text, 3, 3)
    assert [] == looked_up(text, 2, 0)
    assert [] == looked_up(text[:2], 2, 3)


def test_wrong_speculation_is_reported():
    """A wrong alpha must fail before the run."""
    with pytest.raises(UsageError, match="alpha must be between 0 and 1"):
        Core.of(speculate="k=4,alpha=2")


@pytest.mark.parametrize(
    "fields", [{"pp": 2}, {"prefill": "1", "decode": "1"}, {"preempt": "swap"}, {"prefix_cache": "on"}]
)
def test_drafts_go_with_every_other_part(fields, draw):
    """Parts are chosen one by one; no two of them may lose a token between them."""
    requests = draw(40, rate_rps=10.0, prompt=(1, 300), output=(1, 120))
    records, _ = run("k=4", requests, kv_blocks=40, **fields)

    assert {r.id: r.output_tokens for r in requests} == {
        r.request_id: sum(r.token_n or [1] * len(r.token_s)) for r in records
    }


def test_drafts_come_out_in_real_time_too(draw):
    """`bench serve` must tell all tokens of a step, not one."""
    requests = draw(20, rate_rps=10.0)
    live = Sim(speculate="k=3,alpha=0.7", latency="linear", kv_blocks=60).real_time()
    for request in requests:
        live.arrive(request, request.scheduled_s)
    counts = Counter(i for ran in live.advance(1e9) for i in ran.tokens)

    assert {r.id: r.output_tokens for r in requests} == dict(counts)


def test_a_model_that_drafts_by_itself_does_so_with_its_published_acceptance():
    """A user would have to know how often the drafts of a model are right, and what one costs."""
    requests = [Request(i, 0.2 * i, 100, 60) for i in range(20)]
    fields = {"model": "deepseek-v3", "latency": "linear", "kv_blocks": 500, "hardware": "h200", "tp": 8}
    own, named = (
        [list(r.token_s) for r in Sim(speculate=drafts, **fields).simulate(requests)]
        for drafts in ("mtp", f"k=1,alpha=0.85,cost={1 / 61!r}")
    )

    assert own == named
    with pytest.raises(UsageError, match="No acceptance is published of drafts by opt-13b itself"):
        Sim(speculate="mtp")
