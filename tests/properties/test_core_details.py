"""Corners of the core: long lives, state as text, refused settings, cancelled requests."""

import numpy as np
import pytest

import backends.serving.decodes as decodes
from backends.serving.cluster import Cluster
from backends.serving.journal import Journal, replay
from backends.serving.replica import Replica
from backends.sim import Sim
from harness.api import Request
from harness.registry import make
from replay._alone import serve_alone, tokens_of


def replica(policy="sarathi:budget=32,max_seqs=8", blocks=64, journal=None):
    return Replica(make("policies", policy), make("kv", "paged"), blocks, journal=journal)


def test_forgetting_old_ticks_changes_no_stamp(draw, monkeypatch):
    """A run of days must not keep every step in memory, and must not lose the start of a long answer."""
    requests = draw(200, rate_rps=5.0, output=(1, 150))
    before = {r.request_id: list(r.token_s) for r in Sim().simulate(requests)}
    monkeypatch.setattr(decodes, "TRIM", 4)
    sim = Sim()
    after = {r.request_id: list(r.token_s) for r in sim.simulate(requests)}

    assert before == after
    assert sim.cluster.replicas[0].decoding._past > 1000, "ticks were forgotten"


def test_state_can_be_read():
    """A repr that shows state is what a developer reads first when something is wrong."""
    one = replica()
    one.add(Request(7, 0.0, 40, 5), 0.0)
    batch = one.schedule(0.0)

    assert "<Replica 0 waiting, 1 running, <Blocks 61/64 free of 16 tokens>>" == repr(one)
    assert "<Batch 0 decodes, prefills [7:32], up to 1 steps>" == repr(batch)
    one.commit(batch, [1.0])
    one.commit(one.schedule(1.0), [2.0])

    assert "<Decodes 1 at tick 0, 40 tokens of context>" == repr(one.decoding)
    assert "<Sequence 7 decode, 40 computed, 1 emitted>" == repr(next(reversed(one.decoding.members)))
    assert f"<Cluster [{one!r}]>" == repr(Cluster([one], make("routers", "round-robin")))


def test_a_journal_with_cancelled_requests_replays():
    """People hang up in real runs; replaying one must not get stuck."""
    journal = Journal()
    one = replica(journal=journal)
    requests = {i: Request(i, 0.0, 30 + i, 6) for i in range(5)}
    for request in requests.values():
        one.add(request, 0.0)
    for step in range(8):
        if step in (2, 4):
            one.cancel(step, float(step))
        one.commit(one.schedule(float(step)), (step + 0.5,))
    again = Journal()
    replay(journal.calls, requests, replica(journal=again))

    assert journal.decisions == again.decisions


def test_a_journal_that_does_not_fit_is_refused():
    """A commit without a batch means that the journal belongs to another replica."""
    journal = Journal()
    journal.call("commit", 1.0, end_s=[1.0])

    with pytest.raises(ValueError, match="did not form"):
        replay(journal.calls, {}, replica())


class Echo:
    """An executor that says 3 wherever a token is due."""

    vocab_size = 8
    max_tokens = 50

    def execute(self, pieces):
        return [3 if piece.sample else None for piece in pieces]


def test_the_engine_rejects_and_serves():
    """What the process does is this loop; here it runs where its every line can be watched."""
    requests = [Request(0, 0.0, 4, 9), Request(1, 0.0, 4, 3), Request(2, 0.0, 40, 20), Request(4, 0.0, 0, 4)]
    turns = serve_alone(replica(), Echo(), lambda r, _: np.ones(r.prompt_tokens, np.int64), requests)

    assert {0: "ok", 1: "ok", 2: "rejected", 4: "rejected"} == {e.request_id: e.status for t in turns for e in t.ended}
    assert {0: [3] * 9, 1: [3] * 3} == tokens_of(turns)
