"""Memory pooled over replicas: how long a context may be, the ledger, and what attention elsewhere costs."""

from random import Random

import pytest

from backends.serving.journal import Journal, replay
from backends.sim import Sim
from backends.systems.infinite_llm import pooled_context
from harness.api import Request
from harness.errors import UsageError

COST = "linear:base_s=0.02,prefill_token_s=0.0001,decode_seq_s=0.0001"


def cluster(replicas, router="pooled:answer_tokens=64", blocks=100, **fields):
    return Sim(replicas=replicas, router=router, kv_blocks=blocks, policy="vllm-v1", latency=COST,
               kv="paged:watermark=0", **fields)  # fmt: skip


@pytest.mark.parametrize(("replicas", "lends"), [(2, 0.9), (4, 0.5), (8, 0.9)])
def test_the_longest_context_is_that_of_the_closed_form(replicas, lends):
    """1 + (N - 1) u times its own memory, to the block; one token more is rejected."""
    factor = pooled_context(replicas, lends)[0]["factor"]
    longest = round(100 * factor) * 16 - 64
    for prompt, status in ((longest, "ok"), (longest + 1, "rejected")):
        sim = cluster(replicas, f"pooled:answer_tokens=64,lends={lends}")
        (record,) = sim.simulate([Request(0, 0.0, prompt, 64)])
        sim.cluster.check()

        assert status == record.status


@pytest.mark.parametrize("number", range(8))
def test_the_ledger_balances_and_nothing_is_lost(number):
    """K09.b, c, d: what is lent is owed, no debtor lends, none lends more than its share; journals replay."""
    draw = Random(number)
    requests = [
        Request(i, s, draw.choice([30, 200, 500, 1700, 3000]), draw.randint(1, 60))
        for i, s in enumerate(sorted(draw.uniform(0, 10) for _ in range(25)))
    ]
    ended, owed_blocks = {}, 0
    for leap in (True, False):
        sim = cluster(3, journal=True, leap=leap)
        replicas = sim.cluster.replicas
        for record in sim.simulate(requests):
            ended[leap, record.request_id] = list(record.token_s), record.status
            sim.cluster.check()
            owed = {replica.index: sum(replica.debts.values()) for replica in replicas}
            lent = {i: sum(replica.debts.get(i, 0) for replica in replicas) for i in owed}
            owed_blocks = max(owed_blocks, *owed.values())

            assert all(r.blocks.total == 100 + owed[r.index] - lent[r.index] for r in replicas)
            assert not any(owed[i] and lent[i] for i in owed)
            assert max(lent.values()) <= 90

    assert {"ok"} == {status for _, status in ended.values()}
    assert all(ended[True, r.id] == ended[False, r.id] for r in requests)
    assert owed_blocks > 0
    core = sim._parts[0].core
    for replica in replicas:
        again = core.replica(core.memory(), 100, replica.index, Journal())
        replay(replica.journal.calls, {r.id: r for r in requests}, again)

        assert replica.journal.decisions == again.journal.decisions


def test_without_long_requests_it_is_plain_paging():
    """K09.e."""
    requests = [Request(i, i * 0.3, 100, 20) for i in range(40)]
    pooled, plain = (
        sorted((r.request_id, list(r.token_s)) for r in cluster(3, router).simulate(requests))
        for router in ("pooled:answer_tokens=64", "least-requests")
    )

    assert plain == pooled


def test_a_request_that_a_replica_refuses_keeps_no_memory_borrowed():
    """The lender would wait for ever, because the router did not learn that the request is over."""
    requests = [Request(0, 0.0, 2400, 10), Request(1, 0.1, 1590, 4000), Request(2, 9.0, 1500, 80)]
    sim = cluster(2)
    records = sorted(sim.simulate(requests), key=lambda record: record.request_id)

    assert ["ok", "rejected", "ok"] == [record.status for record in records]
    assert not any(sum(replica.debts.values()) for replica in sim.cluster.replicas)


def test_attention_elsewhere_waits_for_the_link():
    """A step of a debtor costs a latency a layer, and a row its share of queries and results."""
    (near,) = cluster(2, link="none").simulate([Request(0, 0.0, 2400, 10)])
    (far,) = cluster(2, link="10GBps:latency=1ms").simulate([Request(0, 0.0, 2400, 10)])
    row_s = 40 * 40 * (4 * 128 + 8) / 10e9  # opt-13b: 40 layers of 40 heads of 128
    step_s = 40 * 1e-3 + row_s * 51 / 151  # 151 blocks, of which 100 are its own
    gaps = [[b - a for a, b in zip(r.token_s, list(r.token_s)[1:], strict=False)] for r in (near, far)]

    assert [step_s] * 9 == pytest.approx([b - a for a, b in zip(*gaps, strict=True)], rel=1e-3)


def test_a_prefix_cache_is_refused():
    with pytest.raises(UsageError, match="give prefix_cache=off"):
        cluster(2, prefix_cache="on")
