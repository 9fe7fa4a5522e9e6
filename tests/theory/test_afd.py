"""Attention and experts on different GPUs: steps meet the SLO, memory suffices, and the search finds the best."""

from dataclasses import replace

import pytest

from backends.systems.megascale_infer import MEMORY_SHARE, Decode, colocated, deployments, disaggregated
from harness import catalog
from harness.errors import UsageError

A100, MIXTRAL = catalog.hardware("a100-80g"), catalog.model("mixtral-8x22b")
DECODE = Decode(MIXTRAL, A100, 650, 0.15, 25e9)


def test_every_deployment_meets_the_slo_and_hides_its_transfers():
    """A rate would be promised by a formula that does not hold, or with steps that are too long (K12.a)."""
    found = [*deployments(DECODE)]

    assert found
    for one in found:
        assert one.step.least <= one.m
        assert one.step.simulated_s(one.m) == pytest.approx(one.step.formula_s(one.m))
        assert one.step.formula_s(one.m) <= DECODE.itl_s


def test_tokens_are_conserved_between_both_sides():
    """Experts would serve other tokens than attention sends (K12.c)."""
    one = disaggregated(DECODE, 2, 4, 7)
    assert one is not None
    k3, k4 = DECODE.expert(4)
    per_expert = (one.step.experts_s - k4) / k3

    assert 8 * per_expert == pytest.approx(2 * one.batch * one.nodes)


def test_sequences_fit_the_memory():
    """KV would be counted on GPUs that have no room for it."""
    one = disaggregated(DECODE, 8, 4, 2)
    assert one is not None
    kv = one.batch * one.m * 650 * MIXTRAL.kv_elements_per_gpu(8) * 2 * 56
    weights = 2 * 56 * MIXTRAL.attention_matrix(8)

    assert kv + weights <= MEMORY_SHARE * A100.memory_bytes
    assert disaggregated(DECODE, 8, 1, 2) is not None
    assert disaggregated(replace(DECODE, gpu=catalog.hardware("l4")), 8, 1, 2) is None


def test_a_stage_of_the_colocated_replica_fits_and_meets_the_slo():
    """The baseline would be weaker or stronger than it can be."""
    best = colocated(DECODE)

    assert best is not None
    assert best.step_s <= 0.15
    assert colocated(replace(DECODE, itl_s=0.001)) is None
    assert best.rate == pytest.approx(best.batch / best.step_s / best.tp)


def test_attention_by_hand():
    """Two matrices of 6,144 x 6,144 and two of 6,144 x 1,024, and KV of 8 heads of 128 (K12)."""
    k1, k2 = DECODE.attention(1)
    matrix = 2 * 6144 * 6144 + 2 * 6144 * 1024

    assert k2 == pytest.approx(2 * matrix / 2.039e12)
    assert k1 == pytest.approx(2 * matrix / 312e12 + 650 * 2 * 8 * 128 * 2 / 2.039e12)


def test_more_experts_favour_different_gpus():
    """The gain would not come from sparsity (S38)."""
    ratios = []
    for routed in (8, 32):
        assert MIXTRAL.experts is not None
        one = replace(DECODE, model=replace(MIXTRAL, experts=replace(MIXTRAL.experts, routed=routed)))
        together = colocated(one)
        assert together is not None
        ratios.append(max(each.rate for each in deployments(one)) / together.rate)

    assert ratios[0] < ratios[1]


def test_a_dense_model_is_refused():
    """A model without experts has nothing to put on other GPUs."""
    with pytest.raises(UsageError, match="has no experts"):
        [*deployments(replace(DECODE, model=catalog.model("llama2-7b")))]
