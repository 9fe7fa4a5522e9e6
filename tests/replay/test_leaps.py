"""Leaping over equal steps gives what stepping gives, bit for bit, with and without shortage of memory."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Request
from replay._leaps import leapt

POLICIES = ["static:batch=4", "static:batch=4,pad=false", "orca:max_batch=4", "vllm-v0", "vllm-v0:max_seqs=3",
            "sarathi:budget=64,max_seqs=16", "sarathi:budget=64,max_seqs=8,low=32,stages=4,span_tokens=100",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=48,max_seqs=16", "fastgen:budget=64,max_seqs=16",
            "vllm-v1:budget=64,max_seqs=16", "vllm-v1:budget=32,max_seqs=16,long_prefill=20",
            "vllm-v1:budget=64,max_seqs=16,async_scheduling=true", "sglang:chunk=64,recv_interval=5",
            "gmax:budget=64,max_seqs=8,interval=20", "autellix:budget=64,max_seqs=8,quantum=40"]  # fmt: skip
LATENCIES = ["linear", "abc", "roofline"]


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("blocks", [60, 5000])
@pytest.mark.parametrize("policy", POLICIES)
def test_leaping_equals_stepping(policy, blocks, latency, draw):
    """The speed of the simulator must not cost a single bit of its answer."""
    requests = draw(70, rate_rps=3.0, prompt=(1, 400), output=(1, 300))
    records, _ = leapt(requests, policy=policy, kv_blocks=blocks, latency=latency)

    if blocks == 60 and policy == "vllm-v0":
        assert sum(r.preemptions for r in records) > 0, "this case is here for its preemptions"


SYSTEMS = [
    {"replicas": 4, "router": "round-robin", "kv_blocks": 80},
    {"replicas": 4, "router": "least-requests", "kv_blocks": 80},
    # pages of 51 and 102 tokens
    {"prefill": "1:tp=2", "decode": "1", "kv": "virtual:page_bytes=512KiB", "kv_blocks": 60},
    {"prefill": "2", "decode": "1", "kv_blocks": 80},
    {"prefill": "2", "decode": "1", "kv_blocks": 80, "handoff": "push", "link": "10Gbps:latency=100ms"},
    {"prefill": "2", "decode": "1", "kv_blocks": 3000, "link": "10Gbps:latency=100ms"},
    *(
        {"policy": policy, "kv_blocks": 60, "preempt": "swap", "prefix_cache": cache}
        for policy in ("vllm-v0", "sarathi:budget=64,max_seqs=16", "fastgen:budget=64,max_seqs=16")
        for cache in ("on", "off")
    ),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_leaping_equals_stepping_on_many_replicas_and_where_sequences_are_swapped(system, draw):
    """A replica must not leap past the moment in which a request could reach it, or memory run out."""
    records, sim = leapt(draw(100, rate_rps=4.0, prompt=(1, 400), output=(1, 300)), **system)
    preempted = sum(r.preemptions for r in records) > 0

    assert 100 == len(records)
    assert preempted or system.get("policy") != "vllm-v0", "this case is here for its preemptions"
    assert ("preempt" in system and preempted) == (sim.describe().get("swapped_blocks", 0) > 0)


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(0, 8)), min_size=2, max_size=12),
    replicas=st.integers(2, 4),
)
@settings(max_examples=100, deadline=None)
def test_replicas_that_start_at_one_instant_do_not_leap_past_one_anothers_follow_ups(rows, replicas):
    """A follow-up would wait behind a leap of many seconds that no real replica takes."""
    first = [Request(i, at / 4, 16, output, session=i) for i, (at, output, _) in enumerate(sorted(rows))]
    think_s = [think / 16 for _, _, think in sorted(rows)]

    def follow_ups(record):
        if record.turn < 2:
            at_s = record.token_s[-1] + think_s[record.session]
            yield Request(record.request_id + 100, at_s, 16, 20, session=record.session, turn=record.turn + 1)

    latency = "linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0"
    leapt(first, follow_ups, replicas=replicas, latency=latency)


@given(
    rows=st.lists(st.tuples(st.integers(0, 64), st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=20),
    policy=st.sampled_from(POLICIES),
    blocks=st.integers(11, 40),
)
@settings(max_examples=150, deadline=None)
def test_leaping_equals_stepping_whatever_arrives(rows, policy, blocks):
    """Arrivals at the very instant of a step's end, single tokens, full memory: no corner may differ."""
    requests = [Request(i, at / 16, p, o) for i, (at, p, o) in enumerate(sorted(rows))]
    leapt(requests, policy=policy, kv_blocks=blocks, latency="linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0")


def test_the_decode_replica_goes_on_until_it_gets_a_request_or_ends_one(draw, monkeypatch):
    """Each arrival, and each prompt that is computed elsewhere, would cost a batch as much as its end does."""
    batches, schedule = [], Replica.schedule

    def counted(replica, now_s):
        batch = schedule(replica, now_s)
        batches.extend([] if batch is None or replica.role != "decode" else [batch])
        return batch

    monkeypatch.setattr(Replica, "schedule", counted)
    records = list(Sim(prefill="2", decode="1").simulate(draw(100, rate_rps=4.0, prompt=(1, 400), output=(1, 300))))

    assert len(batches) < 2.2 * len(records)


@pytest.mark.parametrize("router", ["round-robin", "least-requests", "load"])
def test_an_arrival_ends_no_leap_of_another_replica(router, draw):
    """Each request of a large cluster would cost as much as there are replicas."""
    per_request = []
    for count in (2, 32):
        sim = Sim(replicas=count, router=router, journal=True)
        records = list(sim.simulate(draw(15 * count, rate_rps=3.0 * count, prompt=(1, 400), output=(100, 300))))
        calls = [call.kind for replica in sim.cluster.replicas for call in replica.journal.calls]
        per_request.append(calls.count("schedule") / len(records))

    assert per_request[1] < 1.5 * per_request[0]


def test_rows_of_steps_come_in_one_order_whether_read_at_once_or_in_parts(draw):
    """Steps of a leap in flight are known when it ends: rows read before must not be those that come later."""
    requests = draw(300, rate_rps=60.0, prompt=(1, 400), output=(1, 300))
    whole, sim = (Sim(replicas=8, router="load") for _ in range(2))
    list(whole.simulate(requests))
    parts = [sim.steps_table() for _ in sim.tables(requests, rows=20)] + [sim.steps_table()]

    assert sum(len(part) > 0 for part in parts) > 5
    assert whole.steps_table().equals(pa.concat_tables(parts).combine_chunks())


@pytest.mark.parametrize("router", ["round-robin", "load"])
def test_a_request_that_is_refused_as_a_step_ends_stops_nothing(router):
    """The leap that it cut was over, and its replica stood still until the next request."""
    first = [Request(i, 0.0, 16, 40) for i in range(2)]
    late = [Request(2 + i, 0.5, 9000, 1) for i in range(2)]  # more than memory holds, at the end of a step
    leapt(first + late, replicas=2, router=router, kv_blocks=20,
          latency="linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0")  # fmt: skip
