"""Requests of several answers: block counts of copy-on-write, journals, the engine's text and the simulator's times."""

from itertools import count

import numpy as np
import pytest

from backends.engine_process.generation import GenerationParams
from backends.latency.builtin import Linear
from backends.serving.journal import Journal, replay
from backends.serving.plugins import draw
from backends.sim import Sim
from backends.simulator.core import Core
from backends.simulator.loop import step_ends
from backends.systems.vllm import distinct_blocks
from harness.api import Extra, Request
from harness.registry import make
from replay._alone import serve_alone, tokens_of
from workloads.content.tokens import Tokens

SYSTEMS = [
    {"policy": "sarathi:budget=24,max_seqs=9"},
    {"policy": "vllm-v0"},
    {"policy": "vllm-v0", "preempt": "swap:blocks=60"},
    {"policy": "vllm-v1:budget=24,max_seqs=16,long_prefill=10"},
    {"policy": "vllm-v1:budget=3,max_seqs=3", "prefix_cache": "on"},  # less than the answers of a request
    {"policy": "fastgen:budget=32,max_seqs=8"},
    {"policy": "orca:max_batch=8", "kv": "reserve-pow2:block_tokens=8", "kv_blocks": 100},
    {"policy": "sglang:chunk=24"},
    {"policy": "sarathi:budget=24,max_seqs=9", "pp": 2},
    {"policy": "autellix:budget=32,max_seqs=6,interval=5,quantum=8", "prefix_cache": "on", "preempt": "swap:blocks=60"},
    {"policy": "vllm-v0", "prefill": "1", "decode": "1", "link": "10Gbps"},
    {"policy": "vllm-v0", "prefill": "1", "decode": "1", "handoff": "push", "link": "10Gbps"},
    {"policy": "vllm-v0", "replicas": 3, "router": "freeness:poll_s=5ms,threshold=50,last_blocks=1"},
    {"policy": "vllm-v1:budget=64,max_seqs=16", "replicas": 2, "fail": "replica:1@0.3s..0.8s,requeue"},
    {"policy": "vllm-v0", "prefix_cache": "on", "tiers": "dram:size=1GB", "kv_blocks": 45},
]


def drawn(number, seed=0, rate_rps=60.0, longest=60, kind="autoregressive"):
    """Requests of 1 to 5 answers or beams, some of them with a shared beginning."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, number))
    return [
        Request(i, float(t), int(rng.integers(1, longest)), int(rng.integers(1, 40)), (7, 8), 8,
                extra=Extra(n=int(rng.integers(1, 6)), kind=kind))
        for i, t in enumerate(at_s)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["autoregressive", "beams"])
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: "-".join(map(str, system.values())))
def test_forks_lose_no_block_and_no_token_and_journals_replay(system, kind):
    """A block that a fork gave back twice, or never, would end a long run; a leap must not change what is counted."""
    requests = drawn(50, kind=kind)
    options = {"kv": "paged:block_tokens=8,watermark=0", "kv_blocks": 40, "model": "llama3-8b",
               "latency": "linear:base_s=3ms,prefill_token_s=2e-4"} | system  # fmt: skip
    sim = Sim(**options, journal=True)
    records = {}
    for record in sim.simulate(requests):
        records[record.request_id] = record
        sim.cluster.check()
    leaping = {r.request_id: list(r.token_s) for r in Sim(**options).simulate(requests)}

    assert leaping == {i: list(r.token_s) for i, r in records.items()}
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)
    for request in requests:
        record = records[request.id]
        tokens = request.answers * request.output_tokens

        assert (record.status, record.output_tokens, record.output_tokens_asked) == ("ok", tokens, tokens)
        assert sum(record.token_n or [1] * len(record.token_s)) == tokens
    if not any(name in system for name in ("pp", "prefill", "replicas")):
        journal, fresh = sim.cluster.replicas[0].journal, Sim(**options, journal=True)
        done = replay(journal.calls, {r.id: r for r in requests}, fresh.cluster.replicas[0])

        assert fresh.cluster.replicas[0].journal.decisions == journal.decisions
        assert {s.request.id: list(s.token_s) for s in done} == {i: list(r.token_s) for i, r in records.items()}
        if system["policy"].startswith(("sarathi", "vllm-v0", "autellix", "sglang")):
            assert sum(r.preemptions for r in records.values()), "this case is here for its preemptions"


def blocks_in_use(requests, size):
    """Blocks that the core has given out in each step after that of the prompts, all of which begin at once."""
    replica = Core.of("vllm-v0").replica(make("kv", f"paged:block_tokens={size},watermark=0"), 4000)
    for request in requests:
        replica.add(request, 0.0)
    replica.commit(replica.schedule(0.0), [1.0])
    for step in range(1, requests[0].output_tokens):
        batch = replica.schedule(float(step))
        yield replica.blocks.total - replica.blocks.free
        replica.commit(batch, [step + 1.0])


def parents(request):
    """Which beams of the step before each goes on from: itself where answers are apart, and before any has a token."""
    step = count(-1)

    def of(width):
        first = next(step) * width
        if first < 0 or request.extra.kind != "beams":
            return list(range(width))
        return [draw(request.id, first + i) * width >> 64 for i in range(width)]

    return of


@pytest.mark.parametrize("kind", ["autoregressive", "beams"])
@pytest.mark.parametrize("size", [1, 8])
def test_blocks_of_forks_are_those_of_reference_counts_to_the_last_one(kind, size):
    """Memory saved is what a paper claims of sharing: an estimate in its place would be believed."""
    requests = [Request(r.id, 0.0, r.prompt_tokens, 30, extra=r.extra) for r in drawn(20, 5, kind=kind)]
    counted = zip(*(distinct_blocks(r, r.answers, size, parents(r)) for r in requests), strict=True)

    assert [sum(blocks) for blocks in counted] == list(blocks_in_use(requests, size))


def test_two_answers_to_a_prompt_of_8_words_need_4_blocks():
    """Figure 8 of the paper: they share two blocks, and each has one of its own; apart they would be six."""
    assert [4, 4, 4, 4, 6] == list(blocks_in_use([Request(0, 0.0, 8, 6, extra=Extra(n=2))], 4))


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.nightly), 1.0])
@pytest.mark.parametrize(
    ("policy", "preempt", "cache"),
    [pytest.param("vllm-v0", "recompute", "off", marks=pytest.mark.nightly), ("vllm-v0", "swap:blocks=40", "off"),
     ("sarathi:budget=24,max_seqs=16", "recompute", "on"),
     ("vllm-v1:budget=11,max_seqs=11,long_prefill=7", "recompute", "on")],
)  # fmt: skip
def test_every_answer_of_the_engine_is_that_of_a_request_alone_with_its_seed(policy, preempt, cache, temperature):
    """An answer that read another one's KV after a fork, a copy or a preemption would be corrupt in silence."""
    requests = [r for r in drawn(8, 3, longest=50) if r.output_tokens > 1]
    model = make("executors", "llama", dtype="float64", vocab=512)
    model.allocate(400, 8)
    content = Tokens().token_ids
    core = Core.of(policy, "paged:block_tokens=8,watermark=0", preempt=preempt, prefix_cache=cache)
    turns = serve_alone(core.replica(core.memory(), 34), model, content, requests, temperature=temperature)
    answered = tokens_of(turns)
    first = {r.id: Request(r.id << 3, r.scheduled_s, r.prompt_tokens, r.output_tokens) for r in requests}
    singles, params = [], {}
    for request in requests:
        for i in range(request.answers):
            single = first[request.id].id + i
            singles.append(Request(single, request.scheduled_s, request.prompt_tokens, request.output_tokens))
            params[single] = GenerationParams(content(request, 512).tolist(), seed=request.id + (i << 32))
    big = Core.of("vllm-v0:max_seqs=1", "paged:block_tokens=8").replica(make("kv", "paged:block_tokens=8"), 400)
    alone = tokens_of(serve_alone(big, model, content, singles, params, temperature))

    assert sum(len(turn.preempted) for turn in turns)
    for request in requests:
        rows = np.array(answered[request.id]).reshape(-1, request.answers).T
        for i, row in enumerate(rows.tolist()):
            assert row == alone[first[request.id].id + i]


class TimedByBatch:
    """An executor whose tokens are all 7 and whose steps take what a latency model says of the batch in flight."""

    vocab_size, max_tokens, now_s = 100, 10**6, 0.0

    def __init__(self, replica, cost):
        self.replica, self.cost = replica, cost

    def copy_out(self, blocks):
        return blocks

    def copy_in(self, kept, blocks):
        assert len(kept) == len(blocks)

    def execute(self, pieces):
        (self.now_s,) = step_ends(self.cost, self.replica.in_flight, self.now_s, self.now_s)
        return [7 if piece.sample else None for piece in pieces]


@pytest.mark.parametrize("preempt", ["recompute", "swap:blocks=60"])
def test_engine_loop_and_simulator_fork_alike(preempt):
    """The simulator must not have a scheduler of its own, for forks neither."""
    requests, cost = drawn(40, 4, rate_rps=20.0), Linear(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=3e-4)
    policy, kv = "vllm-v1:budget=64,max_seqs=16", "paged:block_tokens=8,watermark=0"
    replica = Core.of(policy, kv, preempt=preempt).replica(make("kv", kv), 40, journal=Journal())
    sim = Sim(policy=policy, kv=kv, kv_blocks=40, preempt=preempt, journal=True, leap=False,
              latency="linear:base_s=0.01,prefill_token_s=1e-4,decode_seq_s=3e-4,context_token_s=0")  # fmt: skip
    if replica.swap is not None:
        replica.swap.block_s = sim.cluster.replicas[0].swap.block_s
    turns = serve_alone(replica, TimedByBatch(replica, cost), lambda r, _: np.ones(r.prompt_tokens, np.int64), requests)
    records = {r.request_id: list(np.repeat(r.token_s, r.answers or 1)) for r in sim.simulate(requests)}
    stamps = {r.id: [] for r in requests}
    for turn in turns:
        for request_id in turn.tokens:
            stamps[request_id].append(turn.at_s)

    assert sum(len(turn.preempted) for turn in turns)
    assert replica.journal.decisions == sim.cluster.replicas[0].journal.decisions
    assert stamps == records
