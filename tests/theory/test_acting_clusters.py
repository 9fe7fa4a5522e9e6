"""What routers with time see, decide and do, by hand: holds, stale views, roles, growth, failures, live migration."""

from dataclasses import dataclass, field

import pytest

from backends.serving.routing import Drain, Hold, Migrate, Reject, Scale, Send, SetRole
from backends.sim import Sim
from harness.api import Request
from harness.registry import make

STEP = "linear:base_s=1,prefill_token_s=0,decode_seq_s=0"


@dataclass(slots=True)
class Scripted:
    """`decisions(request, now_s, view)` and `plan`: {tick number: actions}; keeps what it has seen."""

    decisions: object
    plan: dict = field(default_factory=dict)
    report_s: float = 0.0
    tick_s: float = 1.0
    ended: list = field(default_factory=list)

    def decide(self, request, now_s, view):
        return self.decisions(request, now_s, view)

    def tick(self, now_s, view):  # noqa: ARG002  the plan is fixed
        return self.plan.get(round(now_s / self.tick_s), ())

    def on_finish(self, finished):
        self.ended.append((finished.request.id, finished.output_tokens, finished.ttft_s))


@pytest.fixture
def acting(monkeypatch):
    """A simulated cluster with this router."""

    def build(router, **fields):
        def made(kind, spec, **given):
            return router if spec == "scripted" else make(kind, spec, **given)

        monkeypatch.setattr("backends.simulator.layout.make", made)
        return Sim(**{"latency": STEP, "policy": "vllm-v1", "kv_blocks": 64, "router": "scripted", **fields})

    return build


def least(request, now_s, view):
    return Send(min(view.open("mixed", "prefill"), key=lambda r: r.waiting + r.running).index)


def ends(sim, requests):
    """Ends of the answers by request; None where one has none."""
    records = {r.request_id: r for r in sim.simulate(requests)}
    sim.cluster.check()
    return {i: (r.status, r.replica, list(r.token_s)) for i, r in sorted(records.items())}


def test_a_request_is_held_until_its_time(acting):
    """A gateway that waits for a window must not decide before, nor forget."""
    router = Scripted(lambda r, now_s, view: Hold(3.0) if now_s < 3 else Send(0))  # noqa: ARG005

    assert {0: ("ok", 0, [4.0, 5.0])} == ends(acting(router, replicas=2), [Request(0, 0.5, 10, 2)])


def test_a_request_is_held_until_a_replica_is_free(acting):
    """One at a time: the second starts the moment the first has ended."""

    def one_at_a_time(request, now_s, view):
        free = [r for r in view.replicas if not r.waiting and not r.running]
        return Send(free[0].index) if free else Hold()

    found = ends(acting(Scripted(one_at_a_time), replicas=1), [Request(0, 0.0, 10, 3), Request(1, 0.5, 10, 1)])

    assert {0: ("ok", 0, [1.0, 2.0, 3.0]), 1: ("ok", 0, [4.0])} == found


def test_who_is_held_forever_is_rejected(acting):
    """A run must end, and say what became of the request."""
    sim = acting(Scripted(lambda *_: Hold()), replicas=2)
    (record,) = sim.simulate([Request(0, 0.0, 10, 2)])

    assert "rejected" == record.status
    assert "held it until nothing could change" in record.error


def test_a_rejection_has_its_reason(acting):
    """The reason is the router's own."""
    (record,) = acting(Scripted(lambda *_: Reject("too late")), replicas=2).simulate([Request(0, 0.0, 10, 2)])

    assert ("rejected", "too late") == (record.status, record.error)


@pytest.mark.parametrize(("report_s", "replicas"), [(0.0, [0, 1, 0, 1]), (10.0, [0, 0, 0, 0])])
def test_views_are_as_old_as_reports(acting, report_s, replicas):
    """With reports every 10 s all of a burst go where it was empty before it: herding."""
    requests = [Request(i, 0.25 * (i + 1), 10, 2) for i in range(4)]
    found = ends(acting(Scripted(least, report_s=report_s), replicas=2), requests)

    assert replicas == [replica for _, replica, _ in found.values()]


def test_a_role_changes_while_a_cluster_runs(acting):
    """A second decode replica takes hand-offs from then on; a prefill replica whose side would be empty stays."""
    router = Scripted(
        lambda r, now_s, view: Send(view.open("prefill")[0].index),  # noqa: ARG005
        {2: [SetRole(0, "decode", cost_s=2.0), SetRole(1, "decode")]},
    )
    sim = acting(router, prefill="2", decode="1", link="none")
    found = ends(sim, [Request(0, 0.0, 10, 3), Request(1, 3.0, 10, 3), Request(2, 3.0, 10, 3)])

    assert [("role", 2.0, 4.0, 0, "decode")] == [(a.kind, a.at_s, a.end_s, a.replica, a.detail) for a in sim.actions()]
    assert ["decode", "prefill", "decode"] == [replica.role for replica in sim.cluster.replicas]
    assert {0, 2} == {found[1][1], found[2][1]}


def test_the_last_replica_of_a_role_keeps_it(acting):
    """Without a decode replica prefilled requests would have nowhere to go."""
    router = Scripted(lambda r, now_s, view: Send(0), {1: [SetRole(1, "prefill"), Drain(1), Drain(0)]})  # noqa: ARG005
    sim = acting(router, prefill="1", decode="1", link="none")

    assert {0: ("ok", 1, [1.0, 2.0, 3.0])} == ends(sim, [Request(0, 0.0, 10, 3)])
    assert [] == sim.actions()


def test_a_replica_more_is_up_when_its_weights_are_loaded(acting):
    """Requests that come before go to the old one; GPU time counts from the moment of the action."""
    router = Scripted(least, {1: [Scale("mixed", 2.0)]})
    sim = acting(router, replicas=1)
    found = ends(sim, [Request(0, 0.0, 10, 6), Request(1, 2.5, 10, 1), Request(2, 3.5, 10, 1)])

    assert [0, 0, 1] == [replica for _, replica, _ in found.values()]
    assert ["scale", "up"] == [action.kind for action in sim.actions()]
    assert 6.0 + 5.0 == sim.describe()["gpu_s"]


def test_a_drained_replica_is_given_up_when_it_is_empty(acting):
    """What waits there goes elsewhere at once, what runs ends there."""
    router = Scripted(
        lambda r, now_s, view: Send(0) if now_s < 1 else Send(view.open()[0].index),  # noqa: ARG005
        {1: [Drain(0)]},
    )
    sim = acting(router, replicas=2, policy="vllm-v1:max_seqs=1,budget=64")
    found = ends(sim, [Request(0, 0.0, 10, 4), Request(1, 0.5, 10, 2), Request(2, 1.5, 10, 1)])

    assert [0, 1, 1] == [replica for _, replica, _ in found.values()]
    assert [1.0, 2.0, 3.0, 4.0] == found[0][2]
    assert [("drain", 1.0), ("down", 4.0)] == [(action.kind, action.at_s) for action in sim.actions()]


@pytest.mark.parametrize("requeue", [False, True])
def test_a_failure_ends_requests_or_sends_them_back(requeue):
    """Tokens that were sent stay sent; nothing of the dead replica's memory is counted on."""
    fail = "replica:0@2500ms..5s" + (",requeue" if requeue else "")
    sim = Sim(replicas=2, latency=STEP, policy="vllm-v1", kv_blocks=64, fail=fail)
    found = ends(sim, [Request(0, 0.0, 10, 5), Request(1, 0.0, 10, 5), Request(2, 6.0, 10, 1)])

    assert ("ok", 1, [1.0, 2.0, 3.0, 4.0, 5.0]) == found[1]
    if requeue:  # computed again on the other replica: its prompt and two tokens, in the step that begins at 3 s
        assert ("ok", 1, [1.0, 2.0, 4.0, 5.0, 6.0]) == found[0]
    else:
        assert ("error", 0, [1.0, 2.0]) == found[0]
    assert ["down", "up"] == [action.kind for action in sim.actions()]
    assert "ok" == found[2][0]


def test_a_live_migration_stops_a_sequence_for_its_last_stage_only(acting):
    """At a token a ms: of 1,599 tokens at 3 s the 99 full blocks leave, which takes 1.584 s; the step under way ends at
    5 s with 1,601 tokens, and only then the sequence stands still, for the 17 that are left."""
    router = Scripted(lambda r, now_s, view: Send(0), {3: [Migrate(0, 0, 1, last_blocks=1)]})  # noqa: ARG005
    sim = acting(router, replicas=2, link=f"{819_200 * 1000}Bps", kv_blocks=400)  # KV of a token of opt-13b
    found = ends(sim, [Request(0, 0.0, 1597, 9)])
    (action,) = sim.actions()

    assert (3.0, 5.0, 0, 1, 1601) == (action.at_s, action.stop_s, action.replica, action.target, action.tokens)
    assert 5.017 == pytest.approx(action.end_s)
    assert ("ok", 1) == found[0][:2]
    assert [1, 2, 3, 4, 5, 6.017, 7.017, 8.017, 9.017] == pytest.approx(found[0][2])


def test_a_router_hears_what_ended(acting):
    """Autoscalers and planners learn from what users saw."""
    router = Scripted(least)
    ends(acting(router, replicas=2), [Request(0, 0.5, 10, 3), Request(1, 0.5, 10, 1)])

    assert [(1, 1, 1.0), (0, 3, 1.0)] == router.ended
