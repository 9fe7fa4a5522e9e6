"""The enumeration of DistServe's algorithms, and that nothing is left out in silence."""

from itertools import product

import pytest

from harness.catalog import Shape
from harness.errors import UsageError
from harness.experiments.place.systems import Cluster, Deployment, Group, label, shapes_in

A100 = Group("mixed", "a100-80g", Shape())


def kv_tokens(group: Group) -> int:
    """As on an A100: more than 4 stages are unknown to the latency model."""
    if group.shape.pp > 4:
        raise UsageError("no numbers for so many stages.")
    return 1000


def test_pairs_of_13b_on_four_gpus() -> None:
    """A pair of the published search would never be tried: 9 of them fit on one node with 4 GPUs."""
    cluster = Cluster(1, 4)
    shapes, _ = shapes_in(cluster, "opt-13b", A100, kv_tokens)

    assert {"(1,1) (1,1)", "(1,1) (1,2)", "(1,1) (2,1)", "(1,2) (1,1)", "(2,1) (1,1)", "(1,2) (1,2)", "(1,2) (2,1)",
            "(2,1) (1,2)", "(2,1) (2,1)"} == {
        f"{label(prefill)} {label(decode)}"
        for prefill, decode in product(shapes, shapes) if cluster.share_nodes(prefill, decode)
    }  # fmt: skip


def test_pipelines_over_nodes_keep_both_sides_on_each() -> None:
    """KV would have to leave its node, which algorithm 2 rules out; and the stages must still divide the layers."""
    cluster = Cluster(4, 8)
    assert {Shape(4, 4), Shape(2, 8)} <= shapes_in(cluster, "opt-66b", A100, lambda _: 1000)[0].keys()

    assert cluster.share_nodes(Shape(4, 1), Shape(2, 2))
    assert cluster.share_nodes(Shape(4, 4), Shape(2, 8))
    assert not cluster.share_nodes(Shape(8, 1), Shape(8, 1))  # 16 GPUs on one node
    pair = Deployment((Group("prefill", "a100-80g", Shape(4, 4)), Group("decode", "a100-80g", Shape(2, 8))))
    assert ("1:tp=4,pp=4", "1:tp=2,pp=8") == (pair.parts["prefill"], pair.parts["decode"])


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
    shapes, skipped = shapes_in(Cluster(1, 8), "opt-13b", A100, kv_tokens)

    printed = {one.name: one.reason for one in skipped}
    assert "3 does not divide the 40 attention heads of opt-13b" == printed["tp 3"]
    assert "does not divide the 40 layers of opt-13b" == printed["pp 3, 6, 7"]
    assert "no numbers for so many stages" == printed["(1,8)"]
    assert Shape(1, 8) not in shapes


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    """A slip of the finger must not end in a traceback."""
    with pytest.raises(UsageError, match="Did you mean 'opt-13b'"):
        shapes_in(Cluster(1, 4), "opt-31b", A100, kv_tokens)
