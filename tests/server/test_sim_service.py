"""The simulator in real time: the simulator's token times, whenever the driver polls, and no work for who has left."""

import asyncio
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.server.service import Sampling
from backends.server.sim_service import SimService, make
from backends.sim import Sim
from harness.api import Request
from harness.spec import parse
from server._received import Received, running

POLICIES = [
    "static:batch=4", "static:batch=4,pad=false", "orca:max_batch=4", "vllm-v0", "sarathi:budget=64,max_seqs=16",
]  # fmt: skip
MEMORIES = [
    {"kv_blocks": 40}, {"kv_blocks": 4000}, {"kv": "reserve-oracle:blocks=60"}, {"kv": "reserve-max:max_tokens=400"},
    {"replicas": 3, "router": "least-requests", "kv_blocks": 40}, {"replicas": 2, "router": "round-robin"},
    {"pp": 4, "kv_blocks": 60}, {"prefill": "2", "decode": "1:pp=2", "link": "25Gbps", "kv_blocks": 60},
    {"kv_blocks": 40, "prefix_cache": "on", "tiers": "dram:size=1GB,latency=30ms,write=back"},
]  # fmt: skip


def virtual(sim, requests):
    """Token times of each request under the virtual clock."""
    return {r.request_id: list(r.token_s) for r in sim.simulate(requests)}


def live(sim, requests, polls):
    """Token times of each request when the driver polls only at these times; what preemption there was."""
    driver, stamps, ended, preempted = sim.real_time(), {}, set(), 0
    left = list(requests)
    for look_s in [*polls, float("inf")]:
        while left and left[0].scheduled_s <= look_s:
            driver.arrive(left[0], left[0].scheduled_s)
            left.pop(0)
        for ran in driver.advance(look_s):
            assert ran.step.end_s <= look_s

            for request_id in ran.tokens:
                stamps.setdefault(request_id, []).append(ran.step.end_s)
            ended |= {one.request_id for one in ran.ended}
            preempted += len(ran.preempted)
        driver.check()

    assert {r.id for r in requests} == ended

    return stamps, preempted


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_token_times_are_those_of_the_virtual_simulator(policy, memory, draw):
    """A stand-in for a policy that keeps other times is a stand-in for nothing. Equal to the last bit."""
    requests = draw(60, rate_rps=8.0, prompt=(1, 150), output=(1, 90))
    stamps, preempted = live(Sim(policy=policy, **memory), requests, [r.scheduled_s + 0.003 for r in requests])

    assert virtual(Sim(policy=policy, **memory), requests) == stamps
    if memory == {"kv_blocks": 40} and policy.startswith(("vllm", "sarathi")):
        assert preempted > 0, "this case is here for its preemptions"


@given(st.lists(st.floats(0.0, 12.0), max_size=30), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_the_time_of_polling_does_not_matter(polls, seed):
    """A server on a busy machine is late; it must not slow the simulated system down (no drift)."""
    rng = random.Random(seed)
    requests = [Request(i, i * 0.2, rng.randint(1, 200), rng.randint(1, 60)) for i in range(40)]
    make_sim = lambda: Sim(policy="sarathi:budget=64,max_seqs=16", kv_blocks=60)  # noqa: E731
    stamps, _ = live(make_sim(), requests, sorted(polls))

    assert virtual(make_sim(), requests) == stamps


def test_a_clock_that_began_long_ago_is_no_matter(draw):
    """A monotonic clock counts from the start of the machine."""
    requests = draw(20)
    late = [replace(r, scheduled_s=r.scheduled_s + 2.0**20) for r in requests]

    assert virtual(Sim(), late) == live(Sim(), late, [])[0]


@pytest.mark.parametrize(
    "fields",
    [
        *({"policy": policy} for policy in POLICIES),
        {"pp": 4},
        {"prefill": "1", "decode": "2", "link": "25Gbps"},
        {"prefill": "1:pp=2", "decode": "1:pp=2", "handoff": "push", "link": "none"},
    ],
    ids=str,
)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_who_leaves_gives_back_his_memory_before_the_next_step(fields, data):
    """Memory kept for clients who hung up would make the stand-in slower than the system it stands for."""
    sim = Sim(**fields, kv_blocks=60)
    driver, received = sim.real_time(), set()
    requests = [Request(i, i * 0.05, 1 + 13 * i % 200, 1 + 17 * i % 60) for i in range(25)]
    leaves = {i: data.draw(st.floats(i * 0.05, 6.0)) for i in data.draw(st.sets(st.integers(0, 24)))}
    events = sorted([(r.scheduled_s, 0, r.id) for r in requests] + [(at_s, 1, i) for i, at_s in leaves.items()])
    gone = set()
    for at_s, kind, i in events:
        for ran in driver.advance(at_s - 1e-9):
            assert not gone & set(ran.tokens)

            received |= {one.request_id for one in ran.ended}
        if kind == 0:
            driver.arrive(requests[i], at_s)
        else:
            driver.withdraw(i)
            gone.add(i)
        driver.check()
    for ran in driver.advance(float("inf")):
        assert not gone & set(ran.tokens)

        received |= {one.request_id for one in ran.ended}
    driver.check()

    assert received >= set(range(25)) - gone
    assert all(r.blocks.free == r.blocks.total and not r.running and not r.waiting for r in sim.cluster.replicas)


def test_withdrawn_in_flight_means_out_of_the_next_step():
    """The step under way cannot be stopped; the one after it must be smaller."""
    sim = Sim(latency="linear:base_s=0.1")
    driver = sim.real_time()
    for i in range(2):
        driver.arrive(Request(i, 0.0, 10, 10), 0.0)
    first, second = list(driver.advance(0.2))[:2]
    driver.withdraw(0)
    third, fourth = list(driver.advance(0.4))[:2]

    assert ([0, 1], [0, 1], [1], [1]) == (first.tokens, second.tokens, third.tokens, fourth.tokens)
    assert (2, 1) == (third.step.decode_seqs, fourth.step.decode_seqs)


@pytest.mark.parametrize("policy", ["sarathi", "vllm-v0", "orca", "static:4"])
async def test_a_served_answer_is_due_when_the_simulator_says(policy):
    """What a client measures here must be the policy, not this server. Equal to the last bit for its own arrivals."""
    spec = f"sim:policy={policy},kv_blocks=60,latency=linear:base_s=0.002"
    arrived = []

    async with running(make(parse(spec))) as service:
        keep, received = service._live.arrive, [Received() for _ in range(12)]

        def noting(request, at_s):
            arrived.append(replace(request, scheduled_s=at_s))
            keep(request, at_s)

        service._live.arrive = noting
        for i, one in enumerate(received):
            service.submit([1 + i] * (1 + 20 * i), Sampling(5 + 3 * i), one)
            await received[max(0, i - 3)].first.wait()
        await asyncio.gather(*(one.ended.wait() for one in received))
        stats, steps = service.stats(), service.steps()
    expected = virtual(make(parse(spec)).sim, arrived)

    assert [expected[r.id] for r in arrived] == [one.due_s for one in received]
    assert [5 + 3 * i for i in range(12)] == [len(one.tokens) for one in received]
    assert {"length"} == {one.end for one in received}
    assert all(at_s >= due_s for one in received for at_s, due_s in zip(one.at_s, one.due_s, strict=True))
    assert (0, 0, 0.0) == (stats.running, stats.waiting, stats.kv_usage)
    assert steps[-1].end_s == max(one.due_s[-1] for one in received)


async def test_a_listener_may_abort_others_and_itself_while_it_hears():
    """A stop text is seen in the middle of a step."""
    async with running(make(parse("sim:latency=linear:base_s=0.002"))) as service:
        received, last = [Received() for _ in range(3)], Received()
        tickets = []
        original_step = received[0].step

        def step(*given):
            original_step(*given)
            for ticket in tickets:
                ticket.abort()

        received[0].step = step
        tickets += [service.submit([1] * 5, Sampling(10), one) for one in received]
        service.submit([1] * 5, Sampling(10), last)
        await last.ended.wait()
        tokens, stats = [len(one.tokens) for one in received], service.stats()

    assert [1, 0, 0] == tokens
    assert 0.0 == stats.kv_usage


async def test_equal_prompts_have_equal_answers_that_can_be_read():
    """Greedy text that changes from one request to the next would look like a broken server."""
    async with running(make(parse("sim:latency=linear:base_s=0.001"))) as service:
        received = [Received() for _ in range(4)]
        samplings = [Sampling(6), Sampling(6), Sampling(6, temperature=1.0, seed=3), Sampling(6)]
        for one, prompt, sampling in zip(received, [[1, 2], [1, 2], [1, 2], [1, 3]], samplings, strict=True):
            service.submit(prompt, sampling, one)
        await asyncio.gather(*(one.ended.wait() for one in received))
        first, again, seeded, other = [service.tokenizer.stream().add(one.tokens) for one in received]

    assert first == again
    assert len({first, seeded, other}) == 3
    assert first.replace(" ", "").isalpha()


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ("sim", 2048),
        ("sim:kv=reserve-max:max_tokens=400", 400),
        ("sim:kv=reserve-oracle:blocks=10", 160),
        ("sim:kv=reserve-pow2:blocks=10", 129),
        ("sim:model=llama3-8b,policy=vllm-v0", 8192),
        ("sim:max_model_len=300", 300),
        ("sim:kv_blocks=1,kv=paged:block_tokens=1", 2),
    ],
)
def test_the_context_is_what_memory_and_policy_allow(spec, tokens):
    """Clients that name no max_tokens ask for the whole context: it must be served."""
    service = make(parse(spec))

    assert tokens == service.max_model_len
    assert service.sim.cluster.replicas[0].refusal(Request(0, 0.0, 1, tokens - 1)) is None


def test_the_clock_of_the_service_is_the_monotonic_clock():
    """The truth file and the clients of this machine read the same clock."""
    assert make(parse("sim")).clock is time.monotonic


async def test_a_service_without_a_replica_is_not_up():
    """A load balancer would send requests to a server that can only reject them."""
    now = [0.0]

    service = SimService(Sim(replicas=2, fail="replica:0@1s;replica:1@2s..4s"), clock=lambda: now[0])
    await service.start()
    service.submit([1] * 5, Sampling(2), Received())  # time begins
    seen = []
    for now[0] in (0.5, 1.5, 2.5, 4.5):
        service._ring()
        seen.append(service.stats().up)
    await service.close()

    assert [True, True, False, True] == seen
