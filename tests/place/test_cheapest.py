"""The order in which deployments are run at a rate: a safe one first, then cheaper ones, hopeless ones never."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.catalog import Shape
from harness.experiments.place.bound import served_rps
from harness.experiments.place.cheapest import Cheapest
from harness.experiments.place.questions import Judged
from harness.experiments.place.settings import PlaceOptions
from harness.experiments.place.systems import Algorithm, Cluster, Deployment, Group
from tests.place.test_execute import placement

RATES = {
    Group("mixed", "h100", Shape(2)): 4.0, Group("mixed", "h100", Shape(4)): 10.0,
    Group("mixed", "l40s", Shape(4)): 2.0, Group("mixed", "h100", Shape(2, 16)): 0.3,
    Group("prefill", "h100", Shape(2)): 10.0, Group("decode", "h100", Shape(2)): 14.0,
}  # fmt: skip


def searched(
    meets: Callable[[Deployment], bool | Judged | None], *algorithms: Algorithm, rate_rps: float = 20.0
) -> tuple[list[Deployment], Cheapest]:
    """What is run where `meets` is the truth, in its order."""
    options: PlaceOptions = replace(
        placement(), rate_rps=rate_rps, algorithms=algorithms or ("vllm++",), cluster=Cluster(8, 8),
        hardware=("h100", "l40s"),
    )  # fmt: skip
    rates = {group: rate for group, rate in RATES.items() if group.role == "mixed" or "high" in algorithms}
    search, order = Cheapest(options, rates), []
    while (chosen := search.next()) is not None:
        deployment, again = chosen
        order.append(deployment)
        side = meets(deployment)
        judged = side if isinstance(side, Judged) else Judged(side, 0.95 if side else 0.5, None, None, "joint", 1)
        search.learn(deployment, judged, again=again)
    return order, search


def load(deployment: Deployment) -> float:
    return 20.0 / served_rps(deployment, RATES)


@pytest.mark.parametrize("limit", [0.5, 0.7, 0.9])
def test_the_cheapest_is_found_and_what_is_dearer_or_hopeless_is_not_run(limit: float) -> None:
    """A search would end with its budget before the deployment that it is for."""
    order, search = searched(lambda one: load(one) <= limit)

    every = (Deployment((group,)).counted(n) for group in RATES for n in range(1, 17) if group.role == "mixed")
    least = min(one.gpus for one in every if load(one) <= limit)
    assert least == search.met[0].gpus
    assert len(order) <= 15
    assert not [one for one in order if load(one) > 1.3]
    met = [place for place, one in enumerate(order) if load(one) <= limit]
    assert met[0] <= 2
    for place, one in enumerate(order):  # no dearer one on a kind of GPU that has an answer
        before = [other.gpus for other in order[:place] if load(other) <= limit and other.hardware == one.hardware]
        assert one.gpus < min(before, default=10_000)


def test_a_pair_is_not_loaded_alike_on_both_sides() -> None:
    """Prompts may need twice the replicas that their rate asks for, and tokens just as many."""

    def meets(one: Deployment) -> bool:
        groups = {group.role: group.count for group in one.groups}
        return groups.get("prefill", 0) >= 4 and groups.get("decode", 0) >= 2

    _, search = searched(meets, "vllm++", "high")

    assert "4 x P(2,1) + 2 x D(2,1)" == search.met[0].name


def test_what_is_not_decided_is_run_again_and_only_once() -> None:
    """It would be run for ever, or a cheaper deployment be given up because a few runs did not tell."""
    order, search = searched(lambda one: None if one.counts == (3,) and one.gpus == 12 else load(one) <= 0.5)

    assert [2] == [order.count(one) for one in dict.fromkeys(order) if one.gpus == 12 and one.counts == (3,)]
    assert 16 == search.met[0].gpus


def test_a_deployment_that_misses_without_load_ends_its_kind() -> None:
    """Every number of its replicas would be run."""
    order, search = searched(lambda _: False)
    unloaded = replace(search.run[order[0]], binding="without load")
    search.learn(order[0], unloaded, again=False)

    assert search.run[order[0]].unloaded
    assert 0 == search.left


def test_other_kinds_of_gpu_stand_beside_the_cheapest() -> None:
    """The alternatives would be the same GPUs once more."""
    _, search = searched(lambda one: load(one) <= 0.7)

    assert {"h100", "l40s"} == {one.hardware for one in search.best}
    assert search.best[0] == search.met[0]


def test_the_same_gpus_for_more_money_are_no_alternative() -> None:
    """Where the cheapest meets with every request, more of the same GPUs would be offered beside it."""
    everything = Judged(True, 1.0, 1.0, 1.0, "joint", 1)
    _, search = searched(lambda one: everything if load(one) <= 0.7 else False)

    cheapest, *others = search.best
    assert not [one for one in others if one.hardware == cheapest.hardware and one.gpus > cheapest.gpus]


def test_the_cheapest_that_holds_with_the_error_of_the_step_times_is_looked_for() -> None:
    """A user who cannot trust the simulated times that far would not learn what to take instead."""

    def judged(one: Deployment) -> Judged:
        return Judged(load(one) <= 0.8, 0.9, None, None, "joint", 1, holds=load(one) <= 0.45, with_error=0.5)

    order, search = searched(judged)

    assert (12, 20) == (search.met[0].gpus, next(one.gpus for one in search.best if search.run[one].holds))
    assert len(order) <= 15
