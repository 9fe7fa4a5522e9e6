"""The enumeration of DistServe's algorithms, and that nothing is left out in silence."""

import pytest

from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments.place.systems import Cluster, Deployment, Group, space


def refused(shape: Shape) -> str | None:
    """As on an A100: more than 4 stages are unknown to the latency model."""
    return "no numbers for so many stages" if shape.pp > 4 else None


def test_pairs_of_13b_on_four_gpus() -> None:
    """A pair of the published search would never be tried: 9 of them fit on one node with 4 GPUs."""
    here = space("opt-13b", "a100-80g", Cluster(1, 4), refused)

    found = {system.name for system in here.of("low", Cluster(1, 4))}

    assert {f"P{p} D{d}" for p, d in (
        ("(1,1)", "(1,1)"), ("(1,1)", "(1,2)"), ("(1,1)", "(2,1)"), ("(1,2)", "(1,1)"), ("(2,1)", "(1,1)"),
        ("(1,2)", "(1,2)"), ("(1,2)", "(2,1)"), ("(2,1)", "(1,2)"), ("(2,1)", "(2,1)"),
    )} == found  # fmt: skip


def test_pipelines_over_nodes_keep_both_sides_on_each() -> None:
    """KV would have to leave its node, which algorithm 2 rules out; and the stages must still divide the layers."""
    cluster = Cluster(4, 8)
    here = space("opt-66b", "a100-80g", cluster, lambda _: None)

    found = {system.name: system for system in here.of("low", cluster)}

    assert "P(4,1) D(2,2)" in found
    assert 32 == found["P(4,4) D(2,8)"].gpus
    assert "P(8,1) D(8,1)" not in found  # 16 GPUs on one node
    parts = found["P(4,4) D(2,8)"].parts
    assert ("1:tp=4,pp=4", "1:tp=2,pp=8") == (parts["prefill"], parts["decode"])


@pytest.mark.parametrize(
    ("prefill", "decode", "link"),
    [
        (Group("prefill", "h100", Shape(2), 1), Group("decode", "h100", Shape(2), 3), "nvlink"),
        (Group("prefill", "l40s", Shape(2), 1), Group("decode", "l40s", Shape(2), 3), "pcie"),
        (Group("prefill", "h100", Shape(4), 3), Group("decode", "h100", Shape(4), 3), "nvlink"),
        (Group("prefill", "h100", Shape(4), 3), Group("decode", "h100", Shape(4), 2), "400Gbps"),
        (Group("prefill", "h100", Shape(2), 1), Group("decode", "l40s", Shape(2), 1), "400Gbps"),
    ],
)
def test_the_link_is_that_of_the_place(prefill: Group, decode: Group, link: str) -> None:
    """KV would move between nodes, or GPUs without NVLink, as fast as within one node."""
    assert link == Deployment((prefill, decode)).link(Cluster(4, 8))


def test_what_is_left_out_is_reported_with_its_reason() -> None:
    """A user would take the best of what was tried for the best there is."""
    here = space("opt-13b", "a100-80g", Cluster(1, 8), refused)

    printed = {one.name: one.reason for one in here.skipped}
    assert "3 does not divide the 40 attention heads of opt-13b" == printed["tp 3"]
    assert "does not divide the 40 layers of opt-13b" == printed["pp 3, 6, 7"]
    assert "no numbers for so many stages" == printed["(1,8)"]
    assert Shape(1, 8) not in here.shapes


def test_sides_apart_are_one_replica_each() -> None:
    """Algorithm 1 would mix up the sides: a prefill replica alone needs no decode replica beside it."""
    here = space("opt-13b", "a100-80g", Cluster(1, 2), refused)

    found = {system.name: dict(system.parts) for system in here.of("high", Cluster(1, 2))}

    assert {"P(1,1)", "P(1,2)", "P(2,1)", "D(1,1)", "D(1,2)", "D(2,1)"} == set(found)
    assert "1:tp=2,pp=1" == found["P(2,1)"]["prefill"]
    assert "1:tp=1,pp=2" == found["D(1,2)"]["decode"]


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    """A slip of the finger must not end in a traceback."""
    with pytest.raises(UsageError, match="Did you mean 'opt-13b'"):
        space("opt-31b", "a100-80g", Cluster(1, 4), refused)


def test_mii_is_another_system_than_vllm_of_the_same_shape() -> None:
    """What is known of one would be taken for the other, which runs another policy."""
    here = space("opt-13b", "a100-80g", Cluster(1, 2), refused)
    vllm, mii = (next(iter(here.of(name, Cluster(1, 2)))) for name in ("vllm++", "mii"))

    assert vllm.key != mii.key
    assert "(1,1) fastgen" == mii.name
    assert ("fastgen", None) == (mii.parts.get("policy"), vllm.parts.get("policy"))
