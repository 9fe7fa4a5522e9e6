"""Experts over GPUs: no tokens are lost, GPUs hold equal numbers, and balance is what it can be."""

import numpy as np
import pytest

from backends.systems.deepseek_v3 import ExpertUnit, chosen, imbalance, least_most, popularity
from harness import catalog
from harness.catalog import Shape
from harness.errors import UsageError

DEEPSEEK = catalog.model("deepseek-v3-fp8")
PREFILL, DECODE = Shape(4, dp=8, ep=32), Shape(4, dp=80, ep=320)


def test_published_units_fill_their_gpus():
    """The published deployment would be refused, or another accepted (S36)."""
    assert 9 == ExpertUnit(DEEPSEEK, PREFILL, 32).per_gpu
    assert 1 == ExpertUnit(DEEPSEEK, DECODE, 63, shared=True).per_gpu


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (ExpertUnit(DEEPSEEK, PREFILL, 5), "5 redundant ones do not fill 32 GPUs evenly; take 0 or 32"),
        (ExpertUnit(DEEPSEEK, DECODE), "do not fill 320 GPUs evenly"),
        (ExpertUnit(DEEPSEEK, DECODE, 64, shared=True), "64 redundant ones do not fill 320 GPUs evenly"),
        (ExpertUnit(DEEPSEEK, Shape(3, dp=8, ep=24)), "tp=3 does not divide the 128 attention heads"),
        (ExpertUnit(DEEPSEEK, Shape(4, dp=8, ep=16)), "ep=16 must be all 32 GPUs"),
        (ExpertUnit(catalog.model("opt-13b"), PREFILL), "opt-13b has no experts"),
        (ExpertUnit(catalog.model("mixtral-8x22b"), Shape(8, ep=8), shared=True), "has no shared expert"),
    ],
)
def test_wrong_units_are_refused(unit: ExpertUnit, message: str):
    """Numbers would be printed for GPUs that cannot hold the model."""
    with pytest.raises(UsageError) as error:
        assert unit.per_gpu

    assert message in str(error.value)


def test_every_token_chooses_its_experts_in_few_groups():
    """Tokens would be lost, or sent to more nodes than the router permits."""
    rng = np.random.default_rng(0)
    experts = DEEPSEEK.experts
    assert experts is not None
    wanted = popularity(experts, 5000, 1.01, rng)

    assert 5000 * 8 == chosen(experts, wanted, 5000, rng).sum()
    for seed in range(20):
        one = chosen(experts, wanted, 1, np.random.default_rng(seed))
        assert 1 == one.max()
        assert len({expert // 32 for expert in np.flatnonzero(one)}) <= 4


@pytest.mark.parametrize("redundant", [0, 32, 96])
def test_placement_loses_no_copy_and_fills_every_gpu(redundant: int):
    """An expert without a GPU would make the others look balanced."""
    unit = ExpertUnit(DEEPSEEK, PREFILL, redundant)
    load = np.random.default_rng(1).pareto(1.0, 256) + 1
    copies = unit.replicas(load)
    where = unit.place(load, copies)

    assert 256 + redundant == copies.sum()
    assert copies.tolist() == where.sum(axis=0).tolist()
    assert {unit.per_gpu} == set(where.sum(axis=1).tolist())
    assert (where / copies @ load).sum() == pytest.approx(load.sum())
    assert [8] * 32 == unit.in_order().sum(axis=1).tolist()


def test_redundant_experts_go_to_the_hottest():
    """A copy of a cold expert would help no GPU."""
    unit = ExpertUnit(DEEPSEEK, PREFILL, 32)
    load = np.ones(256)
    load[7] = 40.0
    load[9] = 3.0

    copies = unit.replicas(load)

    assert copies[7] > copies[9] >= 2
    assert load[7] / copies[7] >= 40 / 32


def test_redundancy_balances_and_seeds_repeat():
    """The effect of redundant experts would be that of the draw (S36)."""
    plain, more = (imbalance(ExpertUnit(DEEPSEEK, PREFILL, n), 8192, 1.01, seed=1) for n in (0, 32))

    assert plain.in_order > plain.placed > more.placed >= 1
    assert plain.in_order == more.in_order
    assert more == imbalance(ExpertUnit(DEEPSEEK, PREFILL, 32), 8192, 1.01, seed=1)
    assert plain.in_order > imbalance(ExpertUnit(DEEPSEEK, PREFILL), 8192, 0.0, seed=1).in_order


def test_the_most_loaded_gpu_has_least_by_hand():
    """A loss would be that of a bad split, not of the failure."""
    where = np.array([[True, True, False], [False, True, True], [False, False, True]])

    assert 4 == pytest.approx(least_most(where, np.array([4.0, 4.0, 4.0])))
    assert 6 == pytest.approx(least_most(where, np.array([6.0, 3.0, 3.0])))
    assert 6 == pytest.approx(least_most(where[:2], np.array([4.0, 4.0, 4.0])))


def test_two_copies_of_an_expert_are_on_two_gpus():
    """One failure would take both."""
    unit = ExpertUnit(DEEPSEEK, PREFILL, 256, copies=2)
    load = np.random.default_rng(2).pareto(1.0, 256) + 1
    where = unit.place(load, unit.replicas(load))

    assert 1 == where.max()
    assert {2} == set(where.sum(axis=0).tolist())
