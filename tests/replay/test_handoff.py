"""Prefill and decode on replicas of their own: leaps, journals, memory and stamps of what is handed on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.serving.journal import replay
from backends.sim import Sim
from backends.simulator.core import Core
from harness.api import Request
from replay._leaps import leapt

LINKS = ["none", "nvlink", "25Gbps:latency=1ms"]


@given(
    rows=st.lists(st.tuples(st.integers(0, 64), st.integers(1, 90), st.integers(1, 70)), min_size=1, max_size=16),
    link=st.sampled_from(LINKS),
    handoff=st.sampled_from(["pull", "push"]),
    sides=st.sampled_from([("1", "1"), ("2", "1"), ("1", "2"), ("2", "3")]),
    blocks=st.integers(11, 30),
)
@settings(max_examples=60, deadline=None)
def test_leaping_equals_stepping_whatever_arrives(rows, link, handoff, sides, blocks):
    """Arrivals and hand-offs at the very instant of a step's end, single tokens, full memory: no corner may differ."""
    requests = [Request(i, at / 16, p, o) for i, (at, p, o) in enumerate(sorted(rows))]
    records, sim = leapt(
        requests, prefill=sides[0], decode=sides[1], handoff=handoff, link=link, kv_blocks=blocks,
        latency="linear:base_s=0.0625,prefill_token_s=0,decode_seq_s=0",
    )  # fmt: skip

    assert {"ok"} == {r.status for r in records}
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas), "memory was lost"


@pytest.mark.parametrize("handoff", ["pull", "push"])
def test_the_journal_of_each_side_replays(handoff, draw):
    """A prefill or decode replica that depended on more than its calls could not be trusted under another clock."""
    requests = draw(60, rate_rps=20.0, prompt=(1, 300), output=(1, 60))
    sim = Sim(prefill="1", decode="1", handoff=handoff, kv_blocks=60, journal=True, latency="linear")
    list(sim.simulate(requests))
    for replica, policy in zip(sim.cluster.replicas, ["distserve-prefill", "distserve-decode"], strict=True):
        core = Core.of(policy)
        again = core.replica(core.memory(), 60)
        again.journal = type(replica.journal)()
        replay(replica.journal.calls, {r.id: r for r in requests}, again)
        again.check()

        assert replica.journal.decisions == again.journal.decisions


def test_five_stages_sum_to_the_whole(draw):
    """E13: queue, prefill, hand-off, decode queue and decode must cover all time; no sequence emits while KV moves."""
    sim = Sim(prefill="2", decode="1", link="25Gbps")
    for r in sim.simulate(draw(80, rate_rps=4.0, prompt=(1, 900), output=(2, 60))):
        queue, prefill = r.prefill_start_s - r.scheduled_s, r.prefill_end_s - r.prefill_start_s
        handoff = r.handoff_end_s - r.handoff_start_s
        decode_queue = (r.handoff_start_s - r.prefill_end_s) + (r.decode_start_s - r.handoff_end_s)
        decode = r.token_s[-1] - r.decode_start_s

        assert r.token_s[-1] - r.scheduled_s == pytest.approx(queue + prefill + handoff + decode_queue + decode)
        assert r.token_s[0] - r.scheduled_s == pytest.approx(queue + prefill)
        assert r.token_s[0] == r.prefill_end_s <= r.handoff_start_s
        assert r.handoff_end_s <= r.decode_start_s < r.token_s[1]


@pytest.mark.parametrize("decode", ["1", "2:pp=2"])
def test_an_answer_of_one_token_needs_no_decode_replica(decode):
    """Its token came with its prompt: a decode replica that ran it would say one more, or never end."""
    requests = [Request(0, 0.0, 20, 1), Request(1, 0.0, 20, 3), Request(2, 0.5, 20, 1), Request(3, 1.0, 9000, 1)]
    records, _ = leapt(requests, decode=decode, kv_blocks=40, latency="linear")
    found = {r.request_id: (r.status, len(r.token_s)) for r in records}

    assert {0: ("ok", 1), 1: ("ok", 3), 2: ("ok", 1), 3: ("rejected", 0)} == found
    assert [[0.5]] == [list(r.token_s) for r in records if r.request_id == 2]
