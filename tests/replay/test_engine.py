"""One scheduler under two clocks: the engine's loop and the simulator form the same batches, at the same times."""

import asyncio
import time

import numpy as np
import pytest

from backends.engine import Engine
from backends.engine_process.core import EngineCore
from backends.latency.linear import Linear
from backends.latency.recorded import Recorded
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from backends.serving.swap import Swap
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Ended, Request, RequestRecord, TokenEvent
from harness.data.records import steps_table, to_table
from harness.registry import make

POLICIES = ["static:batch=4", "orca:max_batch=4", "vllm-v0", "sarathi:budget=64,max_seqs=16",
            "sarathi:budget=64,max_seqs=8,low=32,stages=4,span_tokens=100", "chunk-only:budget=48,max_seqs=16",
            "tgi:max_waiting_tokens=5", "fastgen:budget=64,max_seqs=16", "vllm-v1:budget=64,max_seqs=16",
            "vllm-v1:budget=32,max_seqs=16,long_prefill=20"]  # fmt: skip
REAL = ["static:batch=4", "orca:max_batch=4", "vllm-v0", "sarathi:budget=64,max_seqs=16",
        "vllm-v1:budget=32,max_seqs=16,long_prefill=20"]  # fmt: skip
COST = Linear(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=3e-4, context_token_s=1e-7)


class Stub:
    """An executor whose work takes what a latency model says, on a clock of its own."""

    vocab_size = 10
    max_tokens = 10_000

    def __init__(self) -> None:
        self.now_s = 0.0
        self.moved = 0

    def copy_out(self, blocks):
        self.moved += len(blocks)
        return blocks

    def copy_in(self, _, blocks):
        self.moved += len(blocks)

    def execute(self, pieces):
        if self.moved:
            self.now_s += self.moved * self.replica.swap.block_s
            self.moved = 0
        decoding = {seq.request.id for seq in self.replica.decoding}
        prefills = [(len(p.token_ids), p.position) for p in pieces if p.request_id not in decoding]
        decodes = [p for p in pieces if p.request_id in decoding]
        self.now_s += COST.step_s(prefills, len(decodes), sum(p.position for p in decodes))
        return [7 if p.sample else None for p in pieces]


def run_core(requests, policy, blocks, swap=None):
    """The engine's loop under the stub's clock; turns, sequences of decisions."""
    stub, journal = Stub(), Journal()
    replica = stub.replica = Replica(make("policies", policy), make("kv", "paged"), blocks, journal=journal, swap=swap)
    core = EngineCore(replica, stub, lambda r, _: np.ones(r.prompt_tokens, np.int64), lambda: stub.now_s)
    left, stamps, preempted = list(requests), {}, 0
    while left or replica.waiting or replica.running or swap:
        if not replica.waiting and not replica.running and not swap:
            stub.now_s = max(stub.now_s, left[0].scheduled_s)
        arrived = [r for r in left if r.scheduled_s <= stub.now_s]
        left = left[len(arrived) :]
        turn = core.turn(arrived)
        replica.check()
        for i in turn.tokens:
            stamps.setdefault(i, []).append(turn.at_s)
        preempted += sum(e.preemptions or 0 for e in turn.ended)
    return journal.decisions, stamps, preempted


@pytest.mark.parametrize("blocks", [40, 4000])
@pytest.mark.parametrize("policy", POLICIES)
def test_engine_loop_and_simulator_form_the_same_batches(policy, blocks, draw):
    """The simulator must not have a scheduler of its own (E22, S63)."""
    requests = draw(80, rate_rps=6.0, prompt=(1, 150), output=(1, 90))
    decisions, stamps, preempted = run_core(requests, policy, blocks)
    latency = ",".join(
        f"{f}={getattr(COST, f)!r}" for f in ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s")
    )
    sim = Sim(policy=policy + (",pad=false" if "static" in policy else ""), kv_blocks=blocks, journal=True, leap=False,
              latency=f"linear:{latency}")  # fmt: skip
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}

    assert decisions == sim.cluster.replicas[0].journal.decisions
    assert stamps == records
    if policy in ("vllm-v0", "sarathi:budget=64,max_seqs=16", "vllm-v1:budget=64,max_seqs=16") and blocks == 40:
        assert preempted > 0, "this case is here for its preemptions"


@pytest.mark.parametrize("policy", POLICIES[2:])
def test_engine_loop_and_simulator_swap_the_same_sequences(policy, draw):
    """A swap decided under one clock only would make simulated and real preemptions two things (E22)."""
    requests = draw(60, rate_rps=6.0, prompt=(1, 60), output=(30, 120))
    latency = ",".join(
        f"{f}={getattr(COST, f)!r}" for f in ("base_s", "prefill_token_s", "decode_seq_s", "context_token_s")
    )
    sim = Sim(policy=policy, kv_blocks=40, preempt="swap:blocks=60", journal=True, leap=False,
              latency=f"linear:{latency}")  # fmt: skip
    records = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}
    real = sim.cluster.replicas[0]
    decisions, stamps, preempted = run_core(requests, policy, 40, Swap(60, real.swap.block_s))

    assert decisions == real.journal.decisions
    assert stamps == records
    if not policy.startswith(("chunk", "fastgen")):
        assert preempted > 0
        assert any(decision.swapped for decision in decisions), "this case is here for its swaps"


async def serve(engine: Engine, requests: list[Request]) -> list[RequestRecord]:
    """Send every request at its time and note what comes back."""
    await engine.open(Drawn())
    epoch_s = time.monotonic()
    engine.start_clock(epoch_s)

    async def one(request: Request) -> RequestRecord:
        await asyncio.sleep(request.scheduled_s - (time.monotonic() - epoch_s))
        sent_s = time.monotonic() - epoch_s
        stamps = []
        async for event in engine.submit(request):
            if isinstance(event, TokenEvent):
                stamps.append(event.at_s)
            else:
                ended: Ended = event
        return RequestRecord(
            request.id, request.scheduled_s, sent_s, stamps, None, request.prompt_tokens, len(stamps),
            request.output_tokens, ended.status, ended.error, replica=ended.replica, preemptions=ended.preemptions,
            prefill_start_s=ended.prefill_start_s, arrived_s=ended.arrived_s,
        )  # fmt: skip

    try:
        return list(await asyncio.gather(*(one(request) for request in requests)))
    finally:
        await engine.close()


class Drawn:
    """Prompts that the engine's process can make by itself."""

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        return np.random.default_rng(request.id).integers(0, vocab_size, request.prompt_tokens)


def tokens(requests, policy, preempt, blocks, executor="llama"):
    """What the model says of each request, with the number of preemptions and of blocks that were swapped."""
    model = make("executors", executor, dtype="float64", vocab=512, device="cpu")
    model.allocate(blocks, 8)
    core = Core.of(policy, "paged:block_tokens=8,watermark=0", preempt=preempt)
    engine = EngineCore(core.replica(core.memory(), blocks), model, Drawn().token_ids, lambda: 0.0)
    tokens_of, turn = {r.id: [] for r in requests}, engine.turn(requests)
    moved = preempted = 0
    while turn.step is not None:
        for request_id, token in zip(turn.tokens, turn.token_ids, strict=True):
            tokens_of[request_id].append(token)
        engine.replica.check()
        preempted += len(turn.preempted)
        moved += len(engine._host)
        turn = engine.turn()
    return tokens_of, preempted, moved


@pytest.fixture(scope="module")
def alone(draw):
    """Requests, and what the model says of each when it runs by itself."""
    requests = draw(10, rate_rps=1e6, prompt=(1, 70), output=(12, 40), seed=3)
    tokens_of, preempted, _ = tokens(requests, "vllm-v0:max_seqs=1", "recompute", 400)

    assert preempted == 0
    return requests, tokens_of


@pytest.fixture(params=["llama", "torch"])
def executor(request):
    """The name of an executor that computes."""
    if request.param == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed; make nightly installs it")
    return request.param


@pytest.mark.parametrize("preempt", ["recompute", "swap:blocks=40"])
@pytest.mark.parametrize(
    "policy",
    ["static:batch=6", "orca:max_batch=8", "vllm-v0", "sarathi:budget=24,max_seqs=16",
     "sarathi:budget=48,max_seqs=8,low=8,stages=4,span_tokens=60", "chunk-only:budget=20,max_seqs=16",
     "fastgen:budget=32,max_seqs=16", "vllm-v1:budget=24,max_seqs=16,long_prefill=10"],
)  # fmt: skip
def test_the_engine_says_the_same_under_every_policy_and_preemption(policy, preempt, alone, executor):
    """A policy, a chunk or a swap that changed what the model says would corrupt answers in silence."""
    requests, expected = alone  # of NumPy, for either executor
    tokens_of, preempted, moved = tokens(requests, policy, preempt, 16, executor)

    assert expected == tokens_of
    if policy.startswith(("vllm", "sarathi")):
        assert preempted > 0, "this case is here for its preemptions"
        assert (moved > 0) == (preempt != "recompute")


@pytest.mark.parametrize("blocks", [16, pytest.param(2000, marks=pytest.mark.nightly)])  # short of memory, and not
@pytest.mark.parametrize("policy", REAL)
def test_simulator_on_recorded_step_times_gives_the_engines_token_times(policy, blocks, draw):
    """One bit of difference would mean that the simulator is not the engine under another clock."""
    requests = draw(24, rate_rps=400.0, prompt=(1, 120), output=(1, 60))
    engine = Engine(policy=policy, kv_blocks=blocks)
    records = asyncio.run(serve(engine, requests))
    sim = Sim(policy=policy, kv_blocks=blocks)
    sim._model = object.__new__(Recorded)
    sim._model.run = "this run"
    sim._model._next = {}
    sim._model.load(steps_table(engine.steps()), to_table(records))
    simulated = {r.request_id: r for r in sim.simulate(requests)}

    assert all(record.status == "ok" for record in records)
    for record in records:
        assert list(record.token_s) == list(simulated[record.request_id].token_s)
        assert record.preemptions == simulated[record.request_id].preemptions
    if policy.startswith(("vllm", "sarathi")) and blocks == 16:
        assert sum(record.preemptions for record in records) > 0, "this case is here for its preemptions"
