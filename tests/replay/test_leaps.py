"""Leaping over equal steps gives what stepping gives, bit for bit, with and without shortage of memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.sim import Sim
from harness.api import Request

POLICIES = ["static:batch=4", "static:batch=4,pad=false", "orca:max_batch=4", "vllm-v0", "vllm-v0:max_seqs=3",
            "sarathi:budget=64,max_seqs=16", "sarathi:budget=64,max_seqs=8,low=32,stages=4,span_tokens=100",
            "tgi:max_waiting_tokens=3", "chunk-only:budget=48,max_seqs=16", "fastgen:budget=64,max_seqs=16",
            "vllm-v1:budget=64,max_seqs=16", "vllm-v1:budget=32,max_seqs=16,long_prefill=20",
            "vllm-v1:budget=64,max_seqs=16,async_scheduling=true", "sglang:chunk=64,recv_interval=5",
            "gmax:budget=64,max_seqs=8,interval=20", "autellix:budget=64,max_seqs=8,quantum=40"]  # fmt: skip
LATENCIES = ["linear", "abc", "roofline"]


def tables(requests, **fields):
    """Everything that two simulations must agree on: all stamps in the order of ending, and the steps."""
    sim = Sim(**fields)
    records = [(r.request_id, list(r.token_s), r.prefill_start_s, r.decode_start_s, r.preemptions, r.replica, r.status)
               for r in sim.simulate(requests)]  # fmt: skip
    sim.cluster.check()
    return records, sim.steps_table()


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("blocks", [60, 5000])
@pytest.mark.parametrize("policy", POLICIES)
def test_leaping_equals_stepping(policy, blocks, latency, draw):
    """The speed of the simulator must not cost a single bit of its answer."""
    requests = draw(70, rate_rps=3.0, prompt=(1, 400), output=(1, 300))
    leaps = tables(requests, policy=policy, kv_blocks=blocks, latency=latency)
    steps = tables(requests, policy=policy, kv_blocks=blocks, latency=latency, leap=False)

    assert steps[0] == leaps[0]
    assert steps[1].equals(leaps[1])
    if blocks == 60 and policy == "vllm-v0":
        assert sum(r[4] for r in leaps[0]) > 0, "this case is here for its preemptions"


@pytest.mark.parametrize("router", ["round-robin", "least-requests"])
def test_leaping_equals_stepping_on_many_replicas(router, draw):
    """A replica must not leap past the moment in which a request could reach it."""
    requests = draw(200, rate_rps=10.0)
    fields = {"replicas": 4, "router": router, "kv_blocks": 80}
    leaps, steps = tables(requests, **fields), tables(requests, **fields, leap=False)

    assert sorted(steps[0]) == sorted(leaps[0])
    assert (
        steps[1]
        .sort_by([("replica", "ascending"), ("start_s", "ascending")])
        .equals(leaps[1].sort_by([("replica", "ascending"), ("start_s", "ascending")]))
    )


def test_leaping_equals_stepping_where_blocks_differ_in_size(draw):
    """With prefill and decode on one and two GPUs a page holds 51 and 102 tokens of OPT-13B."""
    requests = draw(60, rate_rps=3.0, prompt=(1, 400), output=(1, 300))
    fields = {"prefill": "1:tp=2", "decode": "1", "kv": "virtual:page_bytes=512KiB", "kv_blocks": 60}
    leaps, steps = tables(requests, **fields), tables(requests, **fields, leap=False)
    order = [("replica", "ascending"), ("start_s", "ascending")]

    assert sorted(steps[0]) == sorted(leaps[0])
    assert steps[1].sort_by(order).equals(leaps[1].sort_by(order))
    assert 200 < len(leaps[1])


def test_leaping_equals_stepping_with_follow_up_turns():
    """A session's next turn arrives when the answer ends, perhaps in the middle of another replica's leap."""
    first = [Request(i, i * 0.3, 50, 40 + 7 * i, session=i) for i in range(6)]

    def run(leap):
        def follow_ups(record):
            if record.turn < 3:
                at_s = record.token_s[-1] + 0.05 * (record.session % 3)
                yield Request(record.request_id + 100, at_s, 60, 30, session=record.session, turn=record.turn + 1)

        sim = Sim(replicas=3, router="least-requests", kv_blocks=200, leap=leap)
        return sorted((r.request_id, list(r.token_s), r.replica) for r in sim.simulate(first, follow_ups))

    assert len(run(leap=True)) == 24
    assert run(leap=False) == run(leap=True)


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(0, 8)), min_size=2, max_size=12),
    replicas=st.integers(2, 4),
)
@settings(max_examples=100, deadline=None)
def test_replicas_that_start_at_one_instant_do_not_leap_past_one_anothers_follow_ups(rows, replicas):
    """A follow-up would wait behind a leap of many seconds that no real replica takes."""
    first = [Request(i, at / 4, 16, output, session=i) for i, (at, output, _) in enumerate(sorted(rows))]
    think_s = [think / 16 for _, _, think in sorted(rows)]

    def run(leap):
        def follow_ups(record):
            if record.turn < 2:
                at_s = record.token_s[-1] + think_s[record.session]
                yield Request(record.request_id + 100, at_s, 16, 20, session=record.session, turn=record.turn + 1)

        sim = Sim(replicas=replicas, latency="linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0", leap=leap)
        return sorted((r.request_id, list(r.token_s), r.replica) for r in sim.simulate(first, follow_ups))

    assert run(leap=False) == run(leap=True)


@given(
    rows=st.lists(st.tuples(st.integers(0, 64), st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=20),
    policy=st.sampled_from(POLICIES),
    blocks=st.integers(11, 40),
)
@settings(max_examples=150, deadline=None)
def test_leaping_equals_stepping_whatever_arrives(rows, policy, blocks):
    """Arrivals at the very instant of a step's end, single tokens, full memory: no corner may differ."""
    requests = [Request(i, at / 16, p, o) for i, (at, p, o) in enumerate(sorted(rows))]
    fields = {"policy": policy, "kv_blocks": blocks, "latency": "linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0"}
    leaps, steps = tables(requests, **fields), tables(requests, **fields, leap=False)

    assert steps[0] == leaps[0]
    assert steps[1].equals(leaps[1])
