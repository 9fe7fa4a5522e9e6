"""Routers that flip roles, plan again, scale and reject: when they act, and when they must not."""

from math import cos, pi
from random import Random
from types import SimpleNamespace

import pytest

from backends.serving.batch import VisibleRequest
from backends.serving.cluster import Cluster
from backends.serving.replica import Replica
from backends.serving.routing import ClusterView, Drain, FinishedRequest, Reject, Scale, Send, SetRole
from backends.sim import Sim
from backends.systems.distserve import differ
from harness.api import Extra, Request
from harness.errors import UsageError
from harness.registry import make

CLUSTER = {"policy": "vllm-v1", "latency": "linear:base_s=0.01,prefill_token_s=0.0002,decode_seq_s=0.0005",
           "kv_blocks": 4000, "log_steps": False}  # fmt: skip


def replica(index, role, **state):
    """A replica as a router sees it; a prompt takes 1 ms a token, a decode step 1 ms a sequence."""
    state = {"waiting": 0, "running": 0, "queued_tokens": 0, "context_tokens": 0, **state}
    return SimpleNamespace(
        index=index, role=role, alive=True, draining=False, open=True, total_blocks=1000, block_tokens=16,
        step_s=lambda prefills, seqs, context: sum(n for n, _ in prefills) * 1e-3 + seqs * 1e-3,  # noqa: ARG005
        prefix_tokens=lambda _: 0, tier_load=lambda _: (0, 0.0),
        sequences=list, requests=state["waiting"] + state["running"], **state,
    )  # fmt: skip


def view(*replicas):
    return ClusterView(list(replicas), [], {})


def request(number, prompt=100):
    return VisibleRequest(Request(number, 0.0, prompt, 10))


def ended(number, router, at_s=1.0):
    router.on_finish(FinishedRequest(request(number), 0, at_s, 10, 0.1, 0.01))


def traffic(seed, seconds, rate_rps, prompt=500, output=60, start_s=0.0, number=0):
    """Poisson arrivals; `rate_rps` is a number, or a function of time and the most that it reaches."""
    rate, most = (lambda _: rate_rps, rate_rps) if isinstance(rate_rps, float) else rate_rps
    draw, at_s, found = Random(seed), 0.0, []
    while (at_s := at_s + draw.expovariate(most)) < seconds:
        if draw.random() < rate(at_s) / most:
            lengths = (max(1, int(mean * draw.lognormvariate(-0.18, 0.6))) for mean in (prompt, output))
            found.append(Request(number + len(found), start_s + at_s, *lengths))
    return found


def met(record, ttft_s=1.0, tpot_s=0.05):
    stamps = record.token_s
    slow = len(stamps) > 1 and (stamps[-1] - stamps[0]) / (len(stamps) - 1) > tpot_s
    return record.status == "ok" and stamps[0] - record.scheduled_s <= ttft_s and not slow


# ---- slo-flip


def overloaded_decode(router, cluster, first, now_s):
    """Send requests until no decode replica meets its target."""
    for number in range(first, first + 200):
        router.decide(request(number, 1), now_s, cluster)


def test_a_role_flips_once_and_stays_for_a_while():
    """Two replicas that change places at every tick would serve no request."""
    router = make("routers", "slo-flip:settle_s=5,tpot_s=0.05")
    cluster = view(replica(0, "prefill"), replica(1, "prefill"), replica(2, "decode"))
    overloaded_decode(router, cluster, 0, 0.0)
    first = router.tick(1.0, cluster)

    assert [SetRole(first[0].replica, "decode")] == first
    flipped = first[0].replica
    for number in range(200):
        ended(number, router)
    after = view(*(replica(i, "prefill" if i == 1 - flipped else "decode") for i in range(3)))
    moves = [(now_s, router.tick(now_s, after)) for now_s in (2.0, 3.0, 4.0, 5.0)]

    assert all(action.replica != flipped for _, actions in moves for action in actions), "it has just got its role"
    assert [SetRole(flipped, "prefill")] == router.tick(6.0, view(replica(1 - flipped, "prefill"),
                                                                  replica(flipped, "decode"),
                                                                  replica(2, "decode", running=1)))  # fmt: skip


def test_the_last_replica_of_a_role_never_flips():
    """No replica would be left to compute prompts, or to decode."""
    router = make("routers", "slo-flip:settle_s=0")
    cluster = view(replica(0, "prefill"), replica(1, "decode"))

    assert [] == router.tick(0.0, cluster), "the only decode replica is idle"
    overloaded_decode(router, cluster, 0, 0.0)
    assert [] == router.tick(1.0, cluster), "the only prefill replica is not spared"


def test_no_role_flips_while_prompts_queue_and_decode_replicas_are_many():
    """A flip would help the target that is missed at the cost of the other."""
    router = make("routers", "slo-flip:ttft_s=0.5,settle_s=0")
    cluster = view(
        *(replica(i, "prefill", waiting=1) for i in (0, 1)), *(replica(i, "decode", running=60) for i in (2, 3))
    )
    for number in range(40):
        router.decide(request(number, 1000), 0.0, cluster)
    overloaded_decode(router, cluster, 100, 0.0)

    assert [] == router.tick(1.0, cluster)


def test_a_decode_replica_with_time_to_spare_computes_a_prompt():
    """Prompts would queue at one replica while another one is idle."""
    router = make("routers", "slo-flip:ttft_s=0.5")
    cluster = view(replica(0, "prefill", waiting=3), replica(1, "decode"), replica(2, "decode"))
    sent = [router.decide(request(number, 400), 0.0, cluster) for number in range(3)]

    assert [Send(0, 1), Send(2, 2)] == sent[:2]


def test_with_one_replica_of_each_role_nothing_differs_from_min_load():
    """K15.b: flips and targets decide among replicas, of which there are none."""
    requests = traffic(1, 30.0, 3.0)
    first, other = (
        sorted((r.request_id, list(r.token_s)) for r in sim.simulate(requests))
        for sim in (Sim(prefill="1", decode="1", router=name, **CLUSTER) for name in ("min-load", "slo-flip:ttft_s=99"))
    )

    assert first == other


def test_flips_follow_long_prompts():
    """Half of the replicas would idle: prompts need three of four."""
    requests = traffic(2, 60.0, 13.0, prompt=1000, output=8)
    shares = {}
    for router in ("min-load", "slo-flip"):
        sim = Sim(prefill="2", decode="2", router=router, **CLUSTER)
        records = list(sim.simulate(requests))
        sim.cluster.check()
        shares[router] = sum(map(met, records)) / len(records)
        roles = [r.role for r in sim.cluster.replicas]

    assert {"prefill", "decode"} == set(roles)
    assert shares["slo-flip"] > shares["min-load"] + 0.2


def test_a_request_can_be_served_whole_where_its_prompt_is_computed():
    """The relaxed side of co-location, and prompts on decode replicas, would need a role of their own."""

    class Whole:
        report_s = 0.0

        def decide(self, request, now_s, view):  # noqa: ARG002
            index = request.id % 2
            return Send(index, index if request.id < 4 else None) if request.id != 5 else Send(0, 1)

    sim = Sim(prefill="1", decode="1", journal=True, **CLUSTER)
    sim.cluster.router = Whole()
    records = {r.request_id: r for r in sim.simulate([Request(i, i / 8, 50, 9) for i in (0, 1, 2, 3, 5)])}
    sim.cluster.check()

    assert [0, 1, 0, 1, 1] == [records[i].replica for i in (0, 1, 2, 3, 5)]
    assert [None] * 4 == [records[i].handoff_start_s for i in range(4)]
    assert records[5].handoff_start_s is not None


# ---- replan


def test_the_kolmogorov_smirnov_test_agrees_with_tables():
    """A false alarm would reload the weights of a cluster for nothing."""
    even, odd = list(range(0, 200, 2)), list(range(1, 201, 2))

    assert differ(even, odd) > 0.99
    assert differ(even, [x + 400 for x in even]) < 1e-30
    assert differ(range(100), [x + 19.5 for x in range(100)]) == pytest.approx(0.0366, rel=0.15)  # D = 0.2
    assert differ([1.0], [1.0]) == 1.0


def windows(router, cluster, parts, window_s=60.0):
    """Feed a router with windows of traffic; the windows at whose end it acted."""
    acted = []
    for k, (rate_rps, prompt) in enumerate(parts):
        for one in traffic(k, window_s, rate_rps, prompt, start_s=k * window_s, number=10_000 * k):
            router.decide(VisibleRequest(one), one.scheduled_s, cluster)
            ended(one.id, router, one.scheduled_s)
        if router.tick((k + 1) * window_s, cluster):
            acted.append(k)
    return acted


@pytest.mark.parametrize("seed", range(5))
def test_stationary_traffic_raises_no_alarm_in_twenty_windows(seed):
    """Weights would be reloaded by chance."""
    router = make("routers", "replan")
    cluster = view(*(replica(i, role) for i, role in enumerate(["prefill", "prefill", "decode", "decode"])))
    for k in range(21):
        for one in traffic(100 * seed + k, 60.0, 4.0, start_s=60.0 * k, number=1000 * k):
            router.decide(VisibleRequest(one), one.scheduled_s, cluster)
            ended(one.id, router)
        router.tick(60.0 * (k + 1), cluster)

    assert [] == router.shifts_s


@pytest.mark.parametrize("after", [(12.0, 500), (4.0, 1500)], ids=["rate", "prompts"])
def test_a_shift_is_detected_at_the_end_of_its_first_window(after):
    """The cluster would serve traffic of yesterday."""
    router = make("routers", "replan")
    cluster = view(*(replica(i, "prefill" if i < 3 else "decode") for i in range(6)))
    windows(router, cluster, [(4.0, 500)] * 4 + [after] * 3)

    assert [300.0] == router.shifts_s


def test_a_plan_changes_no_more_roles_than_there_are():
    """The last decode replica would go."""
    router = make("routers", "replan:reload_s=7")
    cluster = view(*(replica(i, "prefill" if i < 2 else "decode") for i in range(4)))
    windows(router, cluster, [(4.0, 500)] * 2)
    for one in traffic(9, 60.0, 4.0, 5000, 1, start_s=120.0, number=90_000):
        router.decide(VisibleRequest(one), one.scheduled_s, cluster)
        router.on_finish(FinishedRequest(VisibleRequest(one), 2, one.scheduled_s, 1, 0.1, None))
    actions = router.tick(180.0, cluster)

    assert [("prefill", "drain", 7.0)] == [(a.role, a.after, a.cost_s) for a in actions]


# ---- autoscale


def test_the_queue_rule_waits_for_replicas_that_load_and_for_calm():
    """Each tick would order the same replicas once more, or give up what the next burst needs."""
    router = make("routers", "autoscale:requests=10,most=4,load_s=30,calm_s=20,tick_s=5")
    busy = view(replica(0, "mixed", waiting=25, running=4))

    assert [Scale("mixed", 30.0)] * 2 == router.tick(0.0, busy)
    assert [] == router.tick(5.0, busy)
    up = [replica(i, "mixed") for i in range(3)]
    assert [] == router.tick(22.0, view(*up)), "the wish of three is 17 s old"
    assert [Drain(2)] == router.tick(40.0, view(replica(0, "mixed", running=12), *up[1:])), "two are wished"
    assert [] == router.tick(45.0, view(replica(0, "mixed", running=21), up[1])), "three are wished within 10 %"


def test_the_slo_rule_adds_where_it_is_missed_and_gives_up_what_is_idle():
    """The cluster would grow for a queue that meets its SLO, or stay large for none."""
    router = make("routers", "autoscale:rule=slo,ttft_s=0.5,calm_s=10")
    for number in range(10):
        router.on_finish(FinishedRequest(request(number), 0, 1.0, 10, 0.4 if number else 0.6, 0.01))

    assert [Scale("mixed", 30.0)] == router.tick(5.0, view(replica(0, "mixed", running=3)))
    two = view(replica(0, "mixed", running=3), replica(1, "mixed"))
    assert [] == router.tick(34.0, two), "one is loading"
    assert [Drain(1)] == router.tick(55.0, two)


@pytest.mark.parametrize("rule", ["slo", pytest.param("queue,requests=6", marks=pytest.mark.nightly)])
def test_a_daily_load_costs_fewer_gpu_seconds_than_its_peak(rule):
    """Autoscaling would cost more than the size that it replaces."""
    day_s = 1500.0
    requests = traffic(3, day_s, (lambda at_s: 4.0 * (1 - cos(2 * pi * at_s / day_s)) + 0.5, 8.5), prompt=1000)

    def share_and_gpu_s(router, replicas):
        sim = Sim(replicas=replicas, router=router, **CLUSTER)
        records = list(sim.simulate(requests))
        end_s = max(r.token_s[-1] for r in records)
        return sum(met(r, 2.0, 0.2) for r in records) / len(records), sim._flow.loop.gpu_s(end_s)

    scaled, gpu_s = share_and_gpu_s(f"autoscale:rule={rule},load_s=20,calm_s=100,ttft_s=2,tpot_s=0.2", 1)
    for size in range(2, 9):  # the fewest that are as good all day
        share, fixed_gpu_s = share_and_gpu_s(f"autoscale:least={size},most={size}", size)
        if share >= scaled:
            break

    assert scaled >= 0.9
    assert share >= scaled
    assert gpu_s < fixed_gpu_s


# ---- early-reject


def test_each_rule_rejects_what_it_says():
    """Rejections of three rules would be compared that are one."""
    decide = {}
    for rule in ("none", "naive", "predicted"):
        router = make("routers", f"early-reject:rule={rule},tpot_s=0.01,ttft_s=5")
        busy = view(replica(0, "prefill"), replica(1, "decode", running=12))
        idle = view(replica(0, "prefill"), replica(1, "decode"))
        first = [router.decide(request(n, 1), 0.0, idle) for n in range(14)]
        decide[rule] = [isinstance(d, Reject) for d in (router.decide(request(90), 0.0, busy), *first[-2:])]
        late = router.decide(request(91, 6000), 0.0, idle)
        assert isinstance(late, Reject), "6 s for the first token"
        assert isinstance(router.hand_off(request(0), 1.0, busy), Reject), "all check when the prompt is computed"

    assert {"none": [False] * 3, "naive": [True, False, False], "predicted": [True, True, True]} == decide


def test_a_prompt_that_is_computed_for_nothing_ends_once_and_frees_its_memory():
    """A rejected answer would hold memory, or be counted twice."""
    requests = traffic(5, 20.0, 12.0, prompt=300, output=400)
    sim = Sim(prefill="1", decode="1", router="early-reject:rule=none,tpot_s=0.03", **CLUSTER)
    records = list(sim.simulate(requests))
    sim.cluster.check()

    assert len(requests) == len(records)
    assert {"ok", "error"} == {r.status for r in records}
    assert all(r.blocks.free == r.blocks.total for r in sim.cluster.replicas)


def test_offline_requests_are_visible_as_such():
    """A router could not tell who waits for an answer."""
    assert [False, True] == [
        VisibleRequest(Request(0, 0.0, 1, 1, extra=e)).offline for e in (None, Extra(offline=True))
    ]


# ---- what a router requires


APART = {"prefill": "1", "decode": "1", "policy": "vllm-v1"}


@pytest.mark.parametrize(
    ("router", "roles", "policy", "why"),
    [
        ("autoscale", ["mixed"], "vllm-v1", "cannot grow"),
        ("freeness:max_replicas=4", ["mixed"], "vllm-v1", "cannot grow"),
        ("replan:most=4", ["prefill", "decode"], "vllm-v1", "cannot grow"),
        ("min-load", ["mixed"], "vllm-v1", "The router must know how long steps take"),
        ("early-reject", ["mixed"], "vllm-v1", "The router must know how long steps take"),
        ("slo-flip", ["prefill", "decode"], "vllm-v1", "The router must know how long steps take"),
        ("round-robin", ["prefill", "decode"], "ooc", "The policy must know how long steps take"),
    ],
)
def test_a_cluster_of_real_models_refuses_what_would_fail_in_the_middle_of_a_run(router, roles, policy, why):
    """Requests would be lost when the router first adds a replica, or predicts a step."""
    replicas = [Replica(make("policies", policy), make("kv", "paged"), 50, i) for i in range(len(roles))]
    for one, role in zip(replicas, roles, strict=True):
        one.set_role(role, 0.0)
    with pytest.raises(UsageError, match=why):
        Cluster(replicas, make("routers", router))


def test_routers_that_can_do_without_go_with_any_cluster():
    """A refusal that is too broad would take clusters away that work."""
    replicas = [Replica(make("policies", "ooc"), make("kv", "paged"), 50)]
    for router in ("freeness", "reject-forward", "reported-queue", "round-robin"):
        Cluster(replicas, make("routers", router))
    Sim(router="freeness", **APART)
    Sim(router="min-load", replicas=2)
