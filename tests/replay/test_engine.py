"""One scheduler under two clocks: the engine's loop and the simulator form the same batches, at the same times."""

import zlib
from math import inf

import numpy as np
import pytest

from backends.serving.blocks import Swap
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request
from harness.registry import make, names
from replay._alone import serve_alone, tokens_of
from replay._drawn import HALVES, LIMITS
from workloads.content.tokens import Tokens

POLICIES = ["static:batch=4", "orca:max_batch=4", "vllm-v0", "sarathi:budget=64,max_seqs=16",
            "sarathi:budget=64,max_seqs=8,low=32,stages=4,span_tokens=100", "chunk-only:budget=48,max_seqs=16",
            "tgi:max_waiting_tokens=5", "fastgen:budget=64,max_seqs=16", "vllm-v1:budget=64,max_seqs=16",
            "vllm-v1:budget=32,max_seqs=16,long_prefill=20"]  # fmt: skip
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize("blocks", [40, pytest.param(4000, marks=NIGHTLY)])  # short of memory, and not
@pytest.mark.parametrize("policy", POLICIES)
def test_engine_loop_and_simulator_form_the_same_batches(policy, blocks, draw, engine_loop):
    """The simulator must not have a scheduler of its own (E22, S63)."""
    requests = draw(80, rate_rps=6.0, prompt=(1, 150), output=(1, 90))
    replica = Replica(make("policies", policy), make("kv", "paged"), blocks, journal=Journal())
    ran = engine_loop(requests, replica)
    sim = Sim(policy=policy + (",pad=false" if "static" in policy else ""), kv_blocks=blocks, journal=True, leap=False,
              latency=engine_loop.latency)  # fmt: skip
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}

    assert replica.journal.decisions == sim.cluster.replicas[0].journal.decisions
    assert ran.stamps == records
    if policy in ("vllm-v0", "sarathi:budget=64,max_seqs=16", "vllm-v1:budget=64,max_seqs=16") and blocks == 40:
        assert any(end.preemptions for end in ran.ended), "this case is here for its preemptions"


@pytest.mark.parametrize("policy", POLICIES[2:])
def test_engine_loop_and_simulator_swap_the_same_sequences(policy, draw, engine_loop):
    """A swap decided under one clock only would make simulated and real preemptions two things (E22)."""
    requests = draw(60, rate_rps=6.0, prompt=(1, 60), output=(30, 120))
    sim = Sim(policy=policy, kv_blocks=40, preempt="swap:blocks=60", journal=True, leap=False,
              latency=engine_loop.latency)  # fmt: skip
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}
    real = sim.cluster.replicas[0]
    swap = Swap(60, real.swap.block_s)
    replica = Replica(make("policies", policy), make("kv", "paged"), 40, journal=Journal(), swap=swap)
    ran = engine_loop(requests, replica)

    assert replica.journal.decisions == real.journal.decisions
    assert ran.stamps == records
    if not policy.startswith(("chunk", "fastgen")):
        assert any(end.preemptions for end in ran.ended)
        assert any(decision.swapped for decision in replica.journal.decisions), "this case is here for its swaps"


def tokens(requests, policy, preempt, blocks, executor="llama"):
    """What the model says of each request; how many were preempted; blocks swapped, or loads from host memory."""
    model = make("executors", executor, dtype="float64", vocab=512, device="cpu")
    model.allocate(blocks, 8)
    how = {"preempt": preempt} if preempt != "tiers" else {"prefix_cache": "on", "tiers": "dram:write=back"}
    core = Core.of(policy, "paged:block_tokens=8,watermark=0", **how)
    hierarchy = core.hierarchy([(8, 1.0, inf)])
    replica = core.replica(core.memory(), blocks)
    turns = serve_alone(replica, model, Tokens().token_ids, requests, hierarchy=hierarchy)
    moved = max(turn.facts.get("swapped_blocks", 0) for turn in turns)
    if hierarchy is not None:
        moved = hierarchy.facts()[0]["loads"]
    return tokens_of(turns), sum(len(turn.preempted) for turn in turns), moved


@pytest.fixture(scope="module")
def alone(draw):
    """Requests, and what the model says of each when it runs by itself."""
    requests = draw(10, rate_rps=1e6, prompt=(1, 70), output=(12, 40), seed=3)
    spoken, preempted, _ = tokens(requests, "vllm-v0:max_seqs=1", "recompute", 400)

    assert preempted == 0
    return requests, spoken


@pytest.fixture(params=["llama", "torch"])
def executor(request):
    """The name of an executor that computes."""
    if request.param == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed; make nightly installs it")
    return request.param


@pytest.mark.parametrize("preempt", ["recompute", "swap:blocks=40", "tiers"])
@pytest.mark.parametrize(
    "policy",
    ["orca:max_batch=8", "vllm-v0", "sarathi:budget=24,max_seqs=16", "vllm-v1:budget=24,max_seqs=16,long_prefill=10",
     *(pytest.param(policy, marks=NIGHTLY) for policy in (
         "static:batch=6", "sarathi:budget=48,max_seqs=8,low=8,stages=4,span_tokens=60",
         "chunk-only:budget=20,max_seqs=16", "fastgen:budget=32,max_seqs=16"))],
)  # fmt: skip
def test_the_engine_says_the_same_under_every_policy_and_preemption(policy, preempt, alone, executor):
    """A policy, a chunk or a swap that changed what the model says would corrupt answers in silence."""
    requests, expected = alone  # of NumPy, for either executor
    spoken, preempted, moved = tokens(requests, policy, preempt, 16, executor)

    assert expected == spoken
    if policy.startswith(("vllm", "sarathi")):
        assert preempted > 0, "this case is here for its preemptions"
        assert (moved > 0) == (preempt != "recompute")


BLOCK = 8


class Remembering:
    """An executor whose KV are the tokens themselves: the next one is a hash of all that the blocks before it hold."""

    vocab_size, max_tokens = 8, 10_000

    def __init__(self, blocks):
        self._pages = np.zeros((blocks, BLOCK), np.int64)

    def execute(self, pieces):
        for piece in pieces:
            places = np.arange(piece.position, piece.position + len(piece.token_ids))
            self._pages[np.array(piece.blocks)[places // BLOCK], places % BLOCK] = piece.token_ids
        return [self._next(piece) if piece.sample else None for piece in pieces]

    def _next(self, piece):
        held = self._pages[piece.blocks].ravel()[: piece.position + len(piece.token_ids)]
        return zlib.crc32(held.tobytes()) % self.vocab_size

    def copy_out(self, blocks):
        return [self._pages[block].copy() for block in blocks]

    def copy_in(self, kept, blocks):
        for page, block in zip(kept, blocks, strict=True):
            self._pages[block] = page


def drawn(number):
    """Requests that begin alike, the options of an engine with tiers, and its blocks."""
    rng = np.random.default_rng([47, number])

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    requests, at_s = [], 0.0
    for i in range(10):
        at_s += float(rng.exponential(pick(0.01, 0.2)))
        family, shared = int(rng.integers(3)), int(rng.integers(8))
        prompt, output = BLOCK * shared + int(rng.integers(1, 20)), int(rng.integers(2, 30))
        requests.append(Request(i, at_s, prompt, output, tuple(100 * family + b for b in range(shared)), BLOCK))
    policy = pick(*(name for name in names("policies") if name not in (*HALVES, "ooc")))
    options = {
        "policy": f"{policy}:{LIMITS[policy]}" if policy in LIMITS else policy,
        "kv": f"{pick('paged', 'paged', 'reserve-oracle', 'reserve-pow2')}:block_tokens={BLOCK}",
        "admission": pick("fcfs", *names("admission")),
        "preempt": pick("recompute", "recompute", "swap:blocks=20"),
        "speculate": pick(None, None, "k=2", "k=4,max_rows=24"),
        "tiers": f"dram:size={pick(3, 10, 30, 1000)},write={pick('through', 'back')}",  # blocks, of a byte each
    }
    return requests, options, pick(16, 20, 30)


def with_tiers(number, model):
    """What an executor says of the requests of that number alone and with tiers; loads, blocks evicted."""
    requests, options, blocks = drawn(number)
    core, big = Core.of(prefix_cache="on", **options), Core.of("vllm-v0:max_seqs=1", f"paged:block_tokens={BLOCK}")
    hierarchy, content = core.hierarchy([(BLOCK, 1.0, inf)]), Tokens().token_ids
    expected = tokens_of(serve_alone(big.replica(big.memory(), 400), model, content, requests))
    replica = core.replica(core.memory(), blocks)
    spoken = tokens_of(serve_alone(replica, model, content, requests, hierarchy=hierarchy))
    hierarchy.check()

    stored, forgotten = [*replica.levels[0].memory.keys], []
    hierarchy.carry = forgotten.extend
    hierarchy.forget(replica, 0.0)

    assert replica.blocks.free == blocks
    assert expected == spoken, (number, options, blocks)
    assert [stored] == [transit.evicted for transit in forgotten], "the executor would hold it for ever"
    assert not replica.levels[0].memory.keys
    return hierarchy.facts()[0]["loads"], hierarchy.facts()[0]["evicted_blocks"]


def test_blocks_come_back_from_host_memory_as_they_were():
    """A block that came back to another place, too late, or from another request would corrupt answers in silence."""
    counts = [with_tiers(number, Remembering(400)) for number in range(60)]

    assert min(np.sum(counts, axis=0)) > 60, "these cases are here for their loads"


@pytest.mark.nightly
def test_the_engine_says_the_same_with_blocks_from_host_memory():
    """As above, of a transformer in float64."""
    model = make("executors", "llama", dtype="float64", vocab=512)
    model.allocate(400, BLOCK)
    counts = [with_tiers(number, model) for number in range(100)]

    assert min(np.sum(counts, axis=0)) > 100, "these cases are here for their loads"
