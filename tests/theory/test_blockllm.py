"""Models that share blocks: memory in closed form, and queues where theory knows the answer."""

import pytest

from backends.systems.blockllm import blocks, footprint
from harness.catalog import active_parameters, model
from harness.errors import UsageError


@pytest.mark.parametrize(("share", "bases"), [(0.0, 21), (0.8, 5), (1.0, 1)])
def test_weights_are_the_base_and_what_each_tenant_has_of_its_own(share, bases):
    """Nothing shared is a model for each tenant beside the base, all shared is one model (K28.a to c)."""
    (row,) = footprint(tenants=20, share=share)

    assert row["shared_bytes"] == pytest.approx(bases * 2 * active_parameters(model("llama2-7b")), rel=1e-12)


def test_one_tenant_on_one_gpu_without_batches_waits_as_in_theory():
    """A network of queues that M/M/1 does not hold for would hold for nothing."""
    whole, _ = blocks(tenants=1, gpus=1, load=0.5, batch=1, requests=20000)

    assert whole["mean_s"] == pytest.approx(2.0 / (1 - 0.5), rel=0.05)
    assert whole["busy_share"] == pytest.approx(0.5, rel=0.03)


def test_without_shared_blocks_both_are_the_same_and_with_all_shared_no_tenant_matters():
    """What sharing gains must come from what is shared."""
    whole, nothing_shared = blocks(share=0.0, requests=500)
    _, all_shared = blocks(share=1.0, requests=500)
    _, one_tenant = blocks(tenants=1, share=1.0, requests=500)

    assert {**whole, "models": ""} == {**nothing_shared, "models": ""}
    assert all_shared == one_tenant


def test_models_that_do_not_fit_are_refused():
    """Tenants without a copy would seem to be served."""
    with pytest.raises(UsageError, match="2 GPUs hold 10 of 20 models"):
        blocks(gpus=2, memory_share=0.9)
