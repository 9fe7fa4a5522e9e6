"""Experts in operation: loads drawn for each step, copies, servers that fail and come back."""

from random import Random

import numpy as np
import pytest

from backends.serving.routing import Fail, Up
from backends.sim import Sim
from backends.systems.deepseek_v3 import EpLatency, ExpertLoads, ExpertUnit
from backends.systems.megascale_infer import AfLatency
from harness import catalog
from harness.api import Request
from harness.catalog import Shape
from harness.errors import UsageError

MIXTRAL = catalog.model("mixtral-8x7b")
APART = {"model": "mixtral-8x7b", "hardware": "h100", "kv": "paged:blocks=600"}
UNITS = (
    {"model": "mixtral-8x7b", "hardware": "h100", "tp": 2, "dp": 2, "latency": "ep:redundant=4,skew=1.2"},
    {**APART, "latency": "af:experts=4,copies=2,skew=1.01"},
    {**APART, "latency": "af:experts=8,copies=2", "fail": "expert:3@2s..3s;expert:1@3s..5s"},
    {**APART, "replicas": 2, "latency": "af:experts=4,copies=2,skew=0.8", "fail": "expert:5@2s..4s"},
    {**APART, "replicas": 2, "latency": "af:experts=4", "fail": "expert:6@2s..4s,requeue"},
)


def traffic(seed: int, count: int = 60) -> list[Request]:
    random = Random(seed)
    return [Request(i, i / 10, random.randint(1, 400), random.randint(1, 90)) for i in range(count)]


@pytest.mark.parametrize("number", range(len(UNITS)))
def test_leaps_over_steps_equal_single_ones(number: int) -> None:
    """Loads would depend on how the simulator works out the time of steps."""
    one, other = (
        list(Sim(**UNITS[number], leap=leap, seed=number).simulate(iter(traffic(number)))) for leap in (True, False)
    )

    assert one == other
    assert 60 == len(one) == sum(record.status == "ok" for record in one)


def test_a_replica_halts_where_an_expert_has_no_other_copy() -> None:
    """Requests would be answered without some of the experts (S39)."""
    alone, double = (Sim(**APART, latency=f"af:experts=4,copies={copies}", fail="expert:1@2s") for copies in (1, 2))
    halted, going = (list(sim.simulate(iter(traffic(0)))) for sim in (alone, double))

    assert all(record.status == ("ok" if record.ended_s is None else "error") or record.status == "rejected"
               for record in halted)  # fmt: skip
    assert max(record.token_s[-1] for record in halted if record.status == "ok") <= 2.0
    assert {"ok"} == {record.status for record in going}
    assert ["retime"] == [action.kind for action in double.actions()]
    assert ["down"] == [action.kind for action in alone.actions()]


def test_a_server_that_comes_back_brings_back_the_time_of_steps() -> None:
    """Its loss would last for ever, or never count."""
    sim = Sim(**APART, latency="af:experts=4,copies=2,skew=1.2", fail="expert:1@2s..5s")
    intact = sim.cluster.members[0].model
    (down_s, down), (up_s, up) = sim._changes

    assert (2.0, 5.0) == (down_s, up_s)
    assert up.model == intact
    assert np.mean([down.model.decode_s(n, 0) for n in range(500, 600)]) > np.mean(
        [intact.decode_s(n, 0) for n in range(500, 600)]
    )
    halts = Sim(**APART, latency="af:experts=4", fail="expert:1@2s..5s")._changes
    assert [Fail, Up] == [type(change) for _, change in halts]


def test_a_replica_stays_down_until_all_that_it_needs_is_back() -> None:
    """A server of experts that comes back would bring up a replica that has failed itself."""
    planned = "replica:0@2s..9s;expert:1@1s..4s;expert:0@6s..8s,requeue"
    changes = Sim(**APART, replicas=2, latency="af:experts=4,copies=2", fail=planned)._changes

    assert [(1.0, Up), (2.0, Fail), (4.0, Fail), (6.0, Fail), (8.0, Fail), (9.0, Up)] == [
        (at_s, type(change)) for at_s, change in changes
    ]
    assert changes[-1][1].model.failed == ""


@pytest.mark.parametrize("least", [False, True])
def test_the_fullest_gpu_is_that_of_the_stored_loads(least: bool) -> None:
    """A step would be timed by a load that no placement gives."""
    unit = ExpertUnit(MIXTRAL, Shape(2, dp=4, ep=8), 8, copies=2)
    loads = ExpertLoads(unit, 1.2, 3, least)
    again, other = ExpertLoads(unit, 1.2, 3, least), ExpertLoads(unit, 1.2, 4, least)
    ratios = [loads.fullest(1000, number) for number in range(8)]

    assert ratios == [again.fullest(1000, number) for number in range(8)]
    assert ratios != [other.fullest(1000, number) for number in range(8)]
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 8
    assert loads.fullest(1000, 0) == loads.fullest(1024, 0)


def test_the_least_loaded_copy_is_no_worse_than_an_even_split_and_failures_cost() -> None:
    """A service would choose its servers worse than chance, or fail at no cost."""
    unit = ExpertUnit(MIXTRAL, Shape(1, dp=4, ep=4), 8, copies=2)
    for seed in range(5):
        even, least = (ExpertLoads(unit, 1.2, seed, rule).fullest(4096, 0) for rule in (False, True))
        lost = ExpertLoads(unit, 1.2, seed, True, frozenset({1})).fullest(4096, 0)

        assert least <= even + 1e-9
        assert lost >= max(least, 4 / 3 - 1e-9)


def test_redundant_experts_shorten_steps_of_skewed_loads() -> None:
    """The deployment's redundancy would be without effect (S36)."""
    some, more = (EpLatency(n, 1.2, False, model="mixtral-8x7b", hardware="h100", tp=1, dp=16) for n in (8, 24))

    assert np.mean([more.decode_s(4096, n) for n in range(20)]) < np.mean([some.decode_s(4096, n) for n in range(20)])
    assert 1 == some._loads.unit.per_gpu  # more GPUs than experts


@pytest.mark.parametrize(
    ("fail", "latency", "message"),
    [
        ("expert:4@1s", "af:experts=4", "the cluster has the servers of experts 0 to 3"),
        ("expert:0@1s", "roofline", "the cluster has no servers of experts"),
        ("expert:0@5s..2s", "af:experts=4", "comes up after it went down"),
        ("experts:0@1s", "af:experts=4", "fail must be like"),
        ("replica:1@1s", "af:experts=4,copies=3", "do not fill|servers of experts|replicas 0 to 0"),
    ],
)
def test_wrong_failures_are_refused(fail: str, latency: str, message: str) -> None:
    """A run would seem to survive a failure that it never had."""
    with pytest.raises(UsageError, match=message):
        Sim(**APART, latency=latency, fail=fail)


def test_a_unit_that_does_not_hold_its_experts_is_refused() -> None:
    """GPUs would have unequal numbers of experts, or a server none."""
    with pytest.raises(UsageError, match="do not fill 32 GPUs evenly; take 0 or 32"):
        EpLatency(redundant=5)
    with pytest.raises(UsageError, match="no experts"):
        EpLatency(model="opt-13b", tp=1, dp=1)
    with pytest.raises(UsageError, match="do not fill 3 GPUs evenly"):
        AfLatency(experts=3, copies=2, model="mixtral-8x7b", hardware="h100")
