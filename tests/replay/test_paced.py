"""The paced engine under a clock of its own is the simulator: same memory, same batches, same token times."""

from dataclasses import replace

import pytest

from backends.engine import Engine
from backends.engine_process import worker
from backends.engine_process.executor_processes import Build, OwnExecutor
from backends.engine_process.generation import GenerationParams, Work
from backends.engine_process.worker import Layout, Part
from backends.serving.journal import Journal
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request
from harness.validity.checks import late_steps
from replay._alone import turns_of


def cluster_of(executor, given, kv_blocks=None, **options):
    """What an engine of one replica consists of, and its executor."""
    part = Part("mixed", 1, options.get("policy", "sarathi"), "round-robin", given, Core.of(**options))
    message = worker.Open(executor, Layout((part,), pull=True, link="none"), kv_blocks, 0.0, 0, None)
    return worker.engine_cluster(message, OwnExecutor(Build(executor, given)))


def paced(requests, slow_s=0.0, latency="abc:vllm", given=None, params=None, **options):
    """The paced engine's loop over these requests, each step of which ends late by `slow_s`.

    Its replica, its facts, token times by request, all turns.
    """
    build, facts = cluster_of(f"paced:latency={latency}", given or {}, **options)

    def send(_, message):
        if isinstance(message, Work):
            engine.ran(0, [], message.end_s + slow_s)

    engine = build(send, 0.0)
    (replica,) = engine.cluster.replicas
    replica.journal = Journal()
    for request in requests:
        assert engine.arrive(request, (params or {}).get(request.id), request.scheduled_s) is None
    stamps, turns = {}, list(turns_of(engine))
    for turn in turns:
        for i in turn.tokens:
            stamps.setdefault(i, []).append(turn.at_s)
    return replica, facts, stamps, turns


def rounded(stamps):
    """Ends of steps are sums of start and time on both sides, but a stub clock adds up what it sleeps."""
    return {i: [round(at_s, 9) for at_s in sorted(times)] for i, times in stamps.items()}


def simulated(requests, **options):
    """The simulator's decisions, and its token times, one for each token."""
    sim = Sim(journal=True, leap=False, latency="abc:vllm", **options)
    records = list(sim.simulate(requests))
    times = {r.request_id: [s for s, n in zip(r.token_s, r.token_n or [1] * len(r.token_s), strict=True)
                            for _ in range(n)] for r in records}  # fmt: skip
    return sim, times, {r.request_id: r for r in records}


def shared(requests):
    """The same requests, half of which begin alike."""
    return [replace(r, prefix_ids=(r.id % 2, 7, 8), prefix_block_tokens=16) for r in requests]


@pytest.mark.parametrize(
    "options",
    [{"kv_blocks": 4000}, {"kv_blocks": 40}, {"kv_blocks": 40, "preempt": "swap:blocks=60"},
     {"kv_blocks": 60, "prefix_cache": "on"}, {"kv_blocks": 60, "speculate": "k=3,alpha=0.6"}],
    ids=["plain", "preempted", "swapped", "cached", "speculative"],
)  # fmt: skip
def test_a_paced_engine_is_the_simulator_under_another_clock(each_policy, options, draw):
    """Whatever a policy, a tight memory or drafts do under one clock only would be an error of the simulator."""
    requests = shared(draw(60, rate_rps=6.0, prompt=(1, 150), output=(1, 90)))
    replica, _, stamps, turns = paced(requests, policy=each_policy, **options)
    sim, times, records = simulated(requests, policy=each_policy, **options)

    assert replica.journal.decisions == sim.cluster.replicas[0].journal.decisions
    assert rounded(stamps) == rounded(times)
    assert {e.request_id: (e.preemptions, e.cached_tokens) for t in turns for e in t.ended} == {
        i: (r.preemptions, r.cached_tokens) for i, r in records.items()
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model": "llama3-70b", "tp": 4, "hardware": "h100"},
        {"model": "deepseek-v3", "tp": 16, "hardware": "h200"},
    ],
)
@pytest.mark.parametrize("kv", ["paged", "reserve-max", "virtual"])
def test_a_paced_engine_has_the_memory_of_the_simulator(kv, given):
    """More or fewer blocks would mean other preemptions at the same load."""
    ours, facts, _, _ = paced([], latency="roofline", given=given, kv=kv, preempt="swap")
    sim = Sim(kv=kv, preempt="swap", **given)
    theirs = sim.cluster.replicas[0]

    assert (ours.blocks.total, ours.blocks.size) == (theirs.blocks.total, theirs.blocks.size)
    assert (ours.swap.total, ours.swap.block_s) == (theirs.swap.total, theirs.swap.block_s)
    assert facts["max_tokens"] == sim.max_tokens
    assert facts["kv_tokens"] == sim.describe()["kv_tokens"]


def test_equal_prompts_have_equal_answers_and_their_blocks_are_found_again():
    """A client that sends the conversation so far must find it in the prefix cache, as with a real model."""
    prompt = [5, 6, 7] * 20
    requests = [Request(i, 3.0 * i, 60, 40) for i in range(2)]
    params = {i: GenerationParams(prompt) for i in range(2)}
    _, _, _, turns = paced(requests, params=params, prefix_cache="on")
    answers = {i: [k for t in turns for j, k in zip(t.tokens, t.token_ids, strict=True) if i == j] for i in range(2)}

    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 30


@pytest.mark.parametrize("slow_s", [0.0009, 0.0011])
def test_a_step_that_ends_late_is_counted_and_moves_those_after_it(slow_s, draw):
    """A machine that wakes up late measures itself; within the tolerance it must not move a single token."""
    requests = draw(20, rate_rps=1e6)
    _, _, stamps, turns = paced(requests, slow_s)
    _, times, _ = simulated(requests)
    facts = next(turn.facts for turn in reversed(turns) if turn.facts)
    last_s = {i: (s[-1], times[i][-1]) for i, s in stamps.items()}

    assert slow_s == pytest.approx(facts["latest_step_s"])
    if slow_s < 0.001:
        assert 0 == facts["late_steps"]
        assert rounded(stamps) == rounded(times)
    else:
        assert facts["late_steps"] == facts["paced_steps"] == len(turns)
        assert all(ours > theirs for ours, theirs in last_s.values())


@pytest.mark.parametrize(("late", "valid"), [(10, True), (11, False)])
def test_more_than_one_step_in_a_hundred_may_not_be_late(late, valid):
    """Times of a busy machine must not be passed off as those of a GPU."""
    backend = {"paced_steps": 1000, "late_steps": late, "late_after_s": 0.001, "latest_step_s": 0.0042}
    found = list(late_steps(backend))

    assert valid is (not found)
    assert valid or "11 of 1,000 steps (1.10%) more than 1 ms late, at most 4.2 ms" in found[0].message


@pytest.mark.parametrize("link", [None, "25Gbps:latency=1ms"])
@pytest.mark.parametrize("sides", [{}, {"prefill": "1:tp=2", "decode": "2"}])
def test_a_paced_cluster_has_the_link_of_the_simulator(link, sides):
    """Hand-offs of the one would take no time, and those of the other that of NVLink."""
    shape = {**(sides or {"replicas": 2, "router": "freeness"}), **({} if link is None else {"link": link})}
    engine = Engine(executor="paced", **shape)
    facts = {"late_after_s": 0.001, "model": "opt-13b", "hardware": "a100-80g"}

    assert Sim(**shape)._link == worker._link(engine._layout, facts)[0]
