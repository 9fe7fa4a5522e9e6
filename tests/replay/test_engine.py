"""One scheduler under two clocks: the engine's loop and the simulator form the same batches, at the same times."""

import pytest

from backends.serving.blocks import Swap
from backends.serving.journal import Journal
from backends.serving.replica import Replica
from backends.sim import Sim
from backends.simulator.core import Core
from harness.registry import make
from replay._alone import serve_alone, tokens_of
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
    """What the model says of each request, with the number of preemptions and of blocks that were swapped."""
    model = make("executors", executor, dtype="float64", vocab=512, device="cpu")
    model.allocate(blocks, 8)
    core = Core.of(policy, "paged:block_tokens=8,watermark=0", preempt=preempt)
    turns = serve_alone(core.replica(core.memory(), blocks), model, Tokens().token_ids, requests)
    moved = max(turn.facts.get("swapped_blocks", 0) for turn in turns)
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


@pytest.mark.parametrize("preempt", ["recompute", "swap:blocks=40"])
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
