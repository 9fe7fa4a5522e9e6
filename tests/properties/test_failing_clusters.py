"""Failures where memory is short, decodes are alone, KV is under way or a role is changing: no request gets lost."""

import pytest

from backends.serving.routing import Drain, Hold, Migrate, Send, SetRole
from backends.sim import Sim
from harness.api import Request
from harness.registry import make


def burst(draw, count=120):
    return draw(count, rate_rps=60.0, prompt=(1, 300), output=(1, 60))


@pytest.mark.parametrize("requeue", ["", ",requeue"])
@pytest.mark.parametrize(
    "fields",
    [
        {"decode": "1", "fail": "0@1s"},
        {"decode": "2", "fail": "0@1s"},
        {"prefill": "1", "decode": "1", "fail": "1@1s"},
        {"prefill": "1", "decode": "1", "fail": "1@1s..2s"},
        {"prefill": "2", "decode": "1", "link": "100Mbps", "fail": "0@1s", "kv_blocks": 400},
        {"replicas": 1, "router": "reject-forward", "fail": "0@1s"},
        {"replicas": 2, "router": "reject-forward:retry_s=0,budget_s=3", "fail": "0@1s"},
        {"prefill": "1", "decode": "1", "router": "early-reject:report_s=0.2", "fail": "1@1.1s..1.25s"},
    ],
    ids=str,
)
def test_every_request_ends_once(fields, requeue, draw):
    """A record too few makes a run look better than it was; an assertion loses the whole run."""
    requests = burst(draw)
    sim = Sim(**{"kv_blocks": 100, "latency": "linear", **fields, "fail": fields["fail"] + requeue})
    records = list(sim.simulate(requests))

    assert sorted(r.id for r in requests) == sorted(record.request_id for record in records)
    sim.cluster.check()


@pytest.mark.parametrize("router", ["shortest-prefill-queue", "min-load", "conductor", "early-reject"])
def test_no_prompt_is_computed_by_a_prefill_side_that_is_down(router, draw):
    """A cluster without prefill replicas is one whose requests come with their prompts computed: TTFT was 0 then."""
    sim = Sim(prefill="1", decode="1", latency="linear", router=router, fail="0@1s")
    after = [record for record in sim.simulate(burst(draw)) if record.scheduled_s > 1]

    assert len(after) > 10
    assert {("rejected", "no replica is up that could take it")} == {(record.status, record.error) for record in after}


class Once:
    """Does `actions` at the tick of 0.5 s; sends to the first open replica."""

    report_s, tick_s = 0.0, 0.5

    def __init__(self, *actions, hold=None):
        self.actions, self.hold, self.ended = actions, hold, []

    def decide(self, request, now_s, view):  # noqa: ARG002
        if self.hold is not None and now_s < 1:
            return self.hold(now_s)
        open_ = view.open("prefill", "mixed")
        return Send(open_[0].index) if open_ else Hold()

    def tick(self, now_s, view):  # noqa: ARG002
        return self.actions if now_s == 0.5 else ()

    def on_finish(self, finished):
        self.ended.append((finished.request.id, finished.failed))


@pytest.fixture
def once(monkeypatch):
    """A simulated cluster under this router."""

    def build(router, **fields):
        monkeypatch.setattr(
            "backends.simulator.layout.make",
            lambda kind, spec, **given: router if spec == "once" else make(kind, spec, **given),
        )
        return Sim(**{"latency": "linear", "kv_blocks": 200, "policy": "vllm-v1", "router": "once", **fields})

    return build


def test_a_replica_that_failed_while_it_changed_its_role_runs_again(once, draw):
    """The pause of a role belongs to the process that went down."""
    sim = once(Once(SetRole(1, "prefill", cost_s=5.0)), prefill="1", decode="2", link="none", fail="1@1s..1.5s")
    records = list(sim.simulate(burst(draw, 40)))

    assert 40 == len(records)


def test_a_hold_until_now_waits_for_a_change(once):
    """A router that rounds a time would stop the clock."""
    records = list(once(Once(hold=lambda now_s: Hold(now_s)), replicas=1).simulate([Request(0, 0.0, 10, 2)]))

    assert ["ok"] == [record.status for record in records]


def test_a_draining_replica_is_given_up_after_a_migration_into_it_failed(once):
    """Its GPU would be paid for to the end of the run."""
    requests = [Request(0, 0.0, 1500, 60), Request(1, 20.0, 10, 200)]
    sim = once(Once(Migrate(0, 0, 1), Drain(1)), replicas=2, link="200Mbps")
    list(sim.simulate(requests))

    assert [1] == [action.replica for action in sim.actions() if action.kind == "down"]


def test_a_router_learns_of_failures(once, draw):
    """A router that counts what it sent would count those for ever."""
    router = Once()
    records = list(once(router, replicas=2, fail="0@1s").simulate(burst(draw, 60)))

    assert sorted((r.request_id, r.status != "ok") for r in records) == sorted(router.ended)
    assert any(failed for _, failed in router.ended)


def test_idle_time_costs_no_ticks(once):
    """A search leaves a day between two requests; at a tick each half second that were 200,000 of them."""
    router = Once()
    ticks = []
    router.tick = lambda now_s, _: ticks.append(now_s) or ()
    list(once(router, replicas=2).simulate([Request(0, 0.0, 10, 2), Request(1, 1e5, 10, 2)]))

    assert 1000 < len(ticks) < 1100
    assert 1e5 - 1 <= ticks[-1]


def test_a_failure_is_seen_in_idle_time(once):
    """A router that replaces what went down would hear of it a day later."""
    router = Once()
    ticks = []
    router.tick = lambda now_s, _: ticks.append(now_s) or ()
    sim = once(router, replicas=2, fail="1@50000.2s")
    list(sim.simulate([Request(0, 0.0, 10, 2), Request(1, 1e5, 10, 2)]))

    assert 50000.5 == min(at_s for at_s in ticks if at_s > 50000.2)
    assert len(ticks) < 2200
