"""Offline requests beside online ones (K15): what they may never change, and what is bounded where they run."""

from random import Random

import pytest

from backends.serving.cluster import give_model
from backends.serving.journal import Journal, replay
from backends.serving.replica import Replica
from backends.serving.routing import Fail, Up
from backends.sim import Sim
from backends.simulator.loop import EndedSequence, Flow
from harness.api import Extra, Request

OFFLINE = Extra(offline=True)
TPOT_S = 0.05
OOC = {"policy": f"ooc:tpot_s={TPOT_S}", "router": f"ooc:tpot_s={TPOT_S}"}
NODE = {"model": "qwen2.5-7b", "prefill": "1", "decode": "1", "journal": True}
SMALL = {
    "latency": "linear:base_s=0.02,prefill_token_s=0.0002,decode_seq_s=0.001,context_token_s=0.00002",
    "kv_blocks": 40,
}


def traffic(seed, online, offline, span_s=20.0, prompt=120, output=60, offline_prompt=None):
    """Requests in order of time; the offline ones are there from the start."""
    draw = Random(seed)
    rows = [(draw.uniform(0, span_s), None) for _ in range(online)] + [(0.0, OFFLINE)] * offline
    longest = [prompt if extra is None else offline_prompt or prompt for _, extra in rows]
    lengths = [(draw.randint(1, most), draw.randint(1, output)) for most in longest]
    both = sorted(zip(rows, lengths, strict=True), key=lambda one: one[0][0])
    return [Request(i, at, p, o, extra=extra) for i, ((at, extra), (p, o)) in enumerate(both)]


def seen(records):
    """What two simulations must agree on."""
    return sorted((r.request_id, list(r.token_s), r.status, r.replica, r.preemptions) for r in records)


@pytest.mark.parametrize("kv_blocks", [40, 400])
@pytest.mark.parametrize("system", [{"policy": "online-priority", "router": "min-load"}, OOC])
def test_without_offline_requests_online_ones_see_nothing(system, kv_blocks):
    """K15.c: a system for both would cost those who have online requests alone."""
    requests = traffic(1, 150, 0, prompt=200)
    plain = {"policy": "vllm-v1", "router": "min-load"}
    found = [
        seen(Sim(**NODE, **{**SMALL, "kv_blocks": kv_blocks}, **how).simulate(requests)) for how in (plain, system)
    ]

    assert found[0] == found[1]


def violations(requests, interrupt):
    """Online requests whose first token takes longer than 0.12 s."""
    policy = f"ooc:tpot_s={TPOT_S},interrupt={interrupt},chunk=400"
    sim = Sim(**NODE, **{**SMALL, "kv_blocks": 2000}, policy=policy, router=OOC["router"])
    late = [r.token_s[0] - r.scheduled_s > 0.12 for r in sim.simulate(requests) if requests[r.request_id].extra is None]
    return sum(late)


def test_interrupting_offline_prompts_lets_online_ones_through():
    """K15.d: an offline prompt that is computed again would buy nothing."""
    cases = [traffic(seed, 60, 100, offline_prompt=2000) for seed in range(5)]
    with_, without = ([violations(requests, interrupt) for requests in cases] for interrupt in ("true", "false"))

    assert all(a <= b for a, b in zip(with_, without, strict=True))
    assert sum(with_) < sum(without)


def offline_tokens(online):
    """Tokens of offline answers in the first 20 s."""
    online_requests = [r for r in traffic(3, 240, 0) if r.id % 240 < online]
    both = sorted([*online_requests, *(r for r in traffic(4, 0, 400))], key=lambda r: r.scheduled_s)
    requests = [Request(i, r.scheduled_s, r.prompt_tokens, r.output_tokens, extra=r.extra) for i, r in enumerate(both)]
    sim = Sim(**NODE, **{**SMALL, "kv_blocks": 400}, **OOC)
    return sum(
        sum(at_s <= 20.0 for at_s in r.token_s)
        for r in sim.simulate(requests) if requests[r.request_id].extra is not None
    )  # fmt: skip


def test_more_idle_capacity_serves_more_offline_requests():
    """K15.e: offline throughput that falls when online requests go away would mean that idle time is lost."""
    found = [offline_tokens(online) for online in (240, 120, 60, 0)]

    assert found[0] > 0
    assert sorted(found) == found


class Strict(Replica):
    """A replica that checks the predicted time of the steps in which offline sequences decode."""

    __slots__ = ()
    model = None
    checked = 0

    def schedule(self, now_s):
        batch = Replica.schedule(self, now_s)
        if batch is not None and not batch.prefills and any(seq.request.offline for seq in self.decoding):
            step_s = Strict.model.step_s((), batch.decode_seqs, batch.context_tokens)
            assert step_s <= 0.98 * TPOT_S or batch.decode_seqs == 1
            Strict.checked += 1
        return batch


@pytest.mark.parametrize("seed", range(3))
def test_offline_sequences_decode_where_the_step_is_predicted_in_time(seed, interpreted):
    """K15.f: online answers would be slower than their objective because of requests that no one waits for."""
    requests = traffic(seed, 150, 150, output=200)
    sim = Sim(**NODE, **{**SMALL, "kv_blocks": 400}, **OOC, leap=False)
    sim.cluster.replicas[1].__class__ = Strict
    Strict.model, Strict.checked = sim.cluster.members[1].model, 0
    list(sim.simulate(requests))

    assert Strict.checked > 100


NUMBERS = 60


@pytest.mark.parametrize(
    "number", [*range(20), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(20, NUMBERS))]
)
@pytest.mark.parametrize("system", [{"policy": "online-priority", "router": "min-load"}, OOC], ids=["priority", "ooc"])
def test_nothing_is_lost_and_journals_replay(number, system):
    """An offline request that is interrupted, evicted, pulled or lost with its replica must still be answered."""
    draw = Random(number)
    requests = traffic(number, draw.randint(0, 20), draw.randint(1, 20), span_s=4.0, output=90)
    fails = [(draw.randrange(48) / 8, draw.randrange(4)) for _ in range(draw.randrange(3))]
    fields = {
        **NODE, **SMALL, **system, "prefill": "2", "decode": "2", "kv_blocks": draw.choice([16, 40]),
        "link": draw.choice(["none", "1Gbps:latency=1ms"]), "preempt": draw.choice(["recompute", "swap:blocks=20"]),
        "prefix_cache": draw.choice(["off", "on"]),
    }  # fmt: skip

    def run(leap):
        sim = Sim(**fields, leap=leap)
        flow = Flow(sim.cluster, sim._steps, requests, None, leap=leap)
        for at_s, index in fails:
            flow.loop.plan(at_s, Fail(index, requeue=True))
            flow.loop.plan(at_s + 2.0, Up(index))
        return sim, list(map(EndedSequence.record, flow.ended()))

    sim, records = run(leap=True)

    assert [r.id for r in requests] == sorted(record.request_id for record in records)
    if not fails:
        assert {"ok"} == {record.status for record in records}
    sim.cluster.check()
    for replica in sim.cluster.replicas:
        assert replica.blocks.free == replica.blocks.total
        assert set() == replica.whole
    assert seen(records) == seen(run(leap=False)[1])

    for part, replica in zip((sim._parts[0],) * 2 + (sim._parts[1],) * 2, sim.cluster.replicas, strict=True):
        again = part.core.replica(part.core.memory(), fields["kv_blocks"], replica.index, Journal())
        give_model(again, sim.cluster.members[replica.index])
        replay(replica.journal.calls, {r.id: r for r in requests}, again)

        assert replica.journal.decisions == again.journal.decisions
