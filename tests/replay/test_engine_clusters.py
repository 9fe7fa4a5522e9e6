"""Clusters of the engine: batches and times of the simulator, text of one engine alone, wherever requests move."""

from dataclasses import dataclass, field
from mmap import mmap

import numpy as np
import pytest

from backends.engine_process.cluster import Copy, EngineCluster, Offload
from backends.engine_process.executor_processes import Ran, StepRunner
from backends.engine_process.generation import Answers, GenerationParams, Work
from backends.executors.llama import Llama
from backends.latency.builtin import Linear
from backends.serving.batch import VisibleRequest
from backends.serving.routing import Migrate, Replicate, Send
from backends.sim import Sim
from backends.simulator.core import Core
from backends.simulator.loop import step_ends
from harness.api import Request
from harness.errors import UsageError
from replay._alone import serve_alone, tokens_of
from workloads.content.tokens import Tokens

COST = Linear(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=3e-4, context_token_s=1e-7)
LATENCY = "linear:base_s=0.01,prefill_token_s=0.0001,decode_seq_s=0.0003,context_token_s=1e-07"
BLOCK = 8
SHAPES = {
    "replicas": {"replicas": 2},
    "1p1d": {"prefill": "1", "decode": "1", "link": "25Gbps"},
    "2p1d": {"prefill": "2", "decode": "1", "link": "25Gbps:latency=2ms"},
    "push": {"prefill": "1", "decode": "2", "link": "25Gbps", "handoff": "push"},
    "migrating": {"replicas": 3, "router": "freeness"},
    "apart, migrating": {"prefill": "1", "decode": "2", "link": "25Gbps"},
}


@dataclass(slots=True)
class Restless:
    """Moves some request to some other replica of its role every few steps, live or not."""

    tick_s: float = 0.03
    report_s: float = 0.0
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    def decide(self, request, now_s, view):  # noqa: ARG002  chance decides
        entries = view.open("mixed", "prefill")
        return Send(entries[self._rng.integers(len(entries))].index)

    def tick(self, now_s, view):  # noqa: ARG002  chance decides
        ends = view.open("mixed", "decode")
        one, other = (ends[i] for i in self._rng.choice(len(ends), 2, replace=False))
        running = one.sequences()
        if running:
            chosen = running[self._rng.integers(len(running))].request_id
            yield Migrate(chosen, one.index, other.index, live=bool(self._rng.integers(2)), last_blocks=1)


def cluster_of(shape, **options):
    """A simulator of this shape; its replicas are as good for the engine."""
    sim = Sim(journal=True, leap=False, latency=LATENCY, **SHAPES[shape], **options)
    if "migrating" in shape:
        sim.reset()
        sim.cluster.router = Restless()
    return sim


def serve(cluster, requests, run, params=None, withdrawn=()):
    """The engine's front over executors that are called where they stand: turns, one after the other.

    `run(engine, replica, message)` answers a message; who is `withdrawn` leaves after so many turns, by request id.
    """
    answers = Answers(Tokens().token_ids, 512, 10_000, 0.0)
    engine = EngineCluster(cluster, answers, lambda replica, message: run(engine, replica, message))
    turns = [refused for r in requests if (refused := engine.arrive(r, params, r.scheduled_s))]
    left = dict(withdrawn)
    while len(ended := [e for turn in turns for e in turn.ended]) + len(withdrawn) - len(left) < len(requests):
        for turn in engine.advance(engine.next_s):
            turns.append(turn)
            for i in [i for i, count in left.items() if count <= len(turns)]:
                del left[i]
                engine.withdraw(i)
            if all(replica.in_flight is None for replica in cluster.replicas):
                cluster.check()
    list(engine.advance(engine.loop.now_s + 1.0))  # migrations of requests that ended meanwhile are aborted

    assert sorted(e.request_id for e in ended) == sorted(r.id for r in requests if r.id not in withdrawn)
    assert not answers.token_ids
    for replica in cluster.replicas:
        assert replica.blocks.free == replica.blocks.total
    return turns


def stub(engine, replica, message):
    """The executor of COST; a copy takes no time but that of the link."""
    now_s = engine.loop.now_s
    if isinstance(message, Work):
        batch = engine.cluster.replicas[replica].in_flight
        due = [7 if piece.sample else None for piece in message.pieces]

        assert sum(len(piece.token_ids) for piece in message.pieces) == batch.tokens()
        engine.ran(replica, due, step_ends(COST, batch, now_s, now_s)[0])
    elif isinstance(message, Copy):
        engine.copied(message.number, now_s)


HARDEST = "apart, migrating"
LESS = [pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES if shape != HARDEST]


@pytest.mark.parametrize("blocks", [30, pytest.param(4000, marks=pytest.mark.nightly)])  # short of memory, and not
@pytest.mark.parametrize("shape", [HARDEST, *LESS])
def test_a_cluster_of_the_engine_is_the_simulated_one_under_another_clock(shape, blocks, each_policy, draw):
    """One batch of difference would mean that what is simulated of clusters is not what runs (E22)."""
    policy = each_policy + (",pad=false" if each_policy.startswith("static") else "")
    requests = draw(32, rate_rps=12.0, prompt=(1, 150), output=(1, 90))
    sim, served = (cluster_of(shape, policy=policy, kv_blocks=blocks) for _ in range(2))
    sim._link = served._link
    records = {r.request_id: r for r in sim.simulate(requests)}
    turns = serve(served.cluster, requests, stub)
    stamps = {}
    for turn in turns:
        for i in turn.tokens:
            stamps.setdefault(i, []).append(turn.at_s)
    ended = {e.request_id: e for turn in turns for e in turn.ended}

    for ours, theirs in zip(served.cluster.replicas, sim.cluster.replicas, strict=True):
        assert ours.journal.decisions == theirs.journal.decisions
    assert stamps == {i: list(r.token_s) for i, r in records.items() if r.token_s}
    for i, record in records.items():
        for name in ("status", "replica", "preemptions", "arrived_s", "prefill_start_s", "handoff_start_s",
                     "handoff_end_s", "decode_start_s"):  # fmt: skip
            assert getattr(ended[i], name) == getattr(record, name), name


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cluster_of_any_shape_is_the_simulated_one(shape, draw):
    """One batch of difference would mean that what is simulated of clusters is not what runs (E22)."""
    test_a_cluster_of_the_engine_is_the_simulated_one_under_another_clock(shape, 30, "vllm-v0", draw)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_that_ends_with_its_first_token_goes_nowhere_else(shape, draw):
    """The KV of an answer that is over would be handed on, and never be freed."""
    requests = draw(12, rate_rps=40.0, prompt=(1, 150), output=(2, 90))
    sim = cluster_of(shape, policy="vllm-v1", kv_blocks=60)
    ends = GenerationParams([1], frozenset([7]))
    turns = serve(sim.cluster, requests, stub, ends)

    assert sorted(r.id for r in requests) == sorted(i for turn in turns for i in turn.tokens)
    assert {"ok"} == {e.status for turn in turns for e in turn.ended}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_who_hangs_up_leaves_nothing_behind(shape, seed, draw):
    """People who hang up while their KV is under way must not keep the memory."""
    requests = draw(30, rate_rps=20.0, prompt=(1, 150), output=(1, 60), seed=seed)
    sim = cluster_of(shape, policy="vllm-v1", kv_blocks=30, preempt="swap:blocks=40")
    chance = np.random.default_rng(seed)
    turns = serve(sim.cluster, requests, stub, None, {})
    sim = cluster_of(shape, policy="vllm-v1", kv_blocks=30, preempt="swap:blocks=40")
    ends = {e.request_id: n for n, turn in enumerate(turns) for e in turn.ended}
    withdrawn = {i: int(chance.integers(0, ends[i] // 2 + 1)) for i in range(0, 30, 2)}
    turns = serve(sim.cluster, requests, stub, None, withdrawn)

    assert set(range(1, 30, 2)) <= {ended.request_id for turn in turns for ended in turn.ended}
    assert all(replica.blocks.free == replica.blocks.total for replica in sim.cluster.replicas)


class Replicating(Restless):
    """Copies some stored prefix to another replica, again and again."""

    def tick(self, now_s, view):  # noqa: ARG002  whatever is there
        yield Replicate(VisibleRequest(Request(0, 0.0, 9, 1)), 0, 1)


def test_an_engine_that_computes_refuses_to_copy_stored_prefixes(draw):
    """Blocks that were stored without what they stand for gave other answers, in silence."""
    sim = cluster_of("migrating", policy="vllm-v1", kv_blocks=30, prefix_cache="on")
    sim.cluster.router = Replicating()

    with pytest.raises(UsageError, match="copies no stored prefixes"):
        serve(sim.cluster, draw(5, rate_rps=20.0), stub)


class Models:
    """The executors of a cluster: a real model each, steps of 10 ms."""

    def __init__(self, replicas, blocks):
        models = [Llama(dtype="float64", vocab=512) for _ in range(replicas)]
        memories = [mmap(-1, model.kv_bytes(blocks, BLOCK)) for model in models]
        for model, memory in zip(models, memories, strict=True):
            model.allocate_in(memory, blocks, BLOCK)
        self._runners = [StepRunner(model, memories.__getitem__) for model in models]
        self.copies = self.loads = 0

    def __call__(self, engine, replica, message):
        answer = self._runners[replica].perform(message)
        if isinstance(answer, Ran):
            engine.ran(replica, answer.sampled, engine.loop.now_s + 0.01)
        elif answer is not None:
            self.copies += isinstance(message, Copy)
            self.loads += isinstance(message, Offload) and len(message.loaded)
            engine.copied(answer.number, engine.loop.now_s)


@pytest.fixture(scope="module")
def alone(draw):
    """Requests, and what one engine says to them, one after the other."""
    requests = draw(10, rate_rps=200.0, prompt=(1, 70), output=(12, 40), seed=3)
    model, core = Llama(dtype="float64", vocab=512), Core.of("vllm-v0:max_seqs=1", f"paged:block_tokens={BLOCK}")
    model.allocate(400, BLOCK)
    return requests, tokens_of(serve_alone(core.replica(core.memory(), 400), model, Tokens().token_ids, requests))


KV = f"paged:block_tokens={BLOCK},watermark=0"
COMBINED = [("vllm-v1:budget=32,max_seqs=16,long_prefill=20", "apart, migrating", {"preempt": "swap:blocks=40"}),
            ("orca:max_batch=4", "apart, migrating", {"preempt": "swap:blocks=40"}),
            ("sarathi:budget=64,max_seqs=16", "push", {"preempt": "swap:blocks=40"}),
            ("vllm-v0", "2p1d", {"prefix_cache": "on"}),
            ("vllm-v1:budget=32,max_seqs=16", "migrating", {"speculate": "k=3,alpha=0.6"}),
            ("fastgen:budget=64,max_seqs=16", "migrating", {"prefix_cache": "on"}),
            ("vllm-v0", "replicas", {"prefix_cache": "on", "tiers": "dram:size=70MB,write=back"})]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shape", "options"), [*((shape, {}) for shape in SHAPES), *((shape, options) for _, shape, options in COMBINED)]
)
def test_a_cluster_says_what_one_engine_says(shape, options, each_policy, alone):
    """KV that is copied into wrong blocks would corrupt answers in silence."""
    requests, expected = alone
    sim = cluster_of(shape, policy=each_policy, kv=KV, kv_blocks=18, **options)
    models = Models(len(sim.cluster.replicas), 18)
    turns = serve(sim.cluster, requests, models)

    assert expected == tokens_of(turns)
    assert (models.copies > 0) == (shape != "replicas")
    assert (models.loads > 0) == ("tiers" in options)


@pytest.mark.parametrize(("policy", "shape", "options"), COMBINED)
def test_a_cluster_that_also_swaps_or_drafts_says_what_one_engine_says(policy, shape, options, alone):
    """What landed beside what was swapped out blocked both, and a swap in a step without rows was never made."""
    test_a_cluster_says_what_one_engine_says(shape, options, policy, alone)
