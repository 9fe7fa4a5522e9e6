"""Requests counted over a plane of bounds: what a figure shows must be what `bench slo` finds."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from harness.experiments.rescore.scale import plane
from harness.metrics.objective import Seen
from reports._replay import AROUND, COARSE, FINE, Axis, axis, series


@pytest.mark.parametrize("limit_s", [0.001, 0.0333, 0.25, 7.0])
def test_the_bound_of_the_slo_is_a_position(limit_s: float, mixture: Callable[..., pa.Table]) -> None:
    """A plane could not show the SLO itself, nor what lies to both sides of it."""
    ttft = axis(Seen(mixture(200)), "ttft", limit_s)

    assert limit_s == ttft.limits_s[ttft.place]
    assert sorted(set(ttft.limits_s)) == list(ttft.limits_s)
    assert ttft.limits_s[0] <= limit_s / 2
    assert ttft.limits_s[-1] >= limit_s * 2
    assert ttft.limits_s[-1] / ttft.limits_s[0] < 4 * AROUND**2


def test_without_a_bound_an_axis_starts_at_its_end(mixture: Callable[..., pa.Table]) -> None:
    """A run without an SLO would be shown under bounds that were never given."""
    found = axis(Seen(mixture(200)), "ttft", None)

    assert len(found.limits_s) == found.place


def test_a_run_of_failures_has_no_positions(mixture: Callable[..., pa.Table]) -> None:
    """A page of a run in which nothing came back would break."""
    table = mixture(70)
    failed = table.filter(~np.isin(table["status"].to_numpy(zero_copy_only=False), ["ok"]))

    assert Axis("ttft", ()) == axis(Seen(failed), "ttft", None)
    assert 0 == plane(Seen(failed), {"ttft": [], "tpot": []}).met[-1, -1]


def test_positions_are_readable() -> None:
    """An axis would have a bound of 0.2537 s."""
    assert [0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5] == series(0.1, 0.45, COARSE)
    assert [9, 10, 11, 12, 13] == series(9.5, 12.5, FINE)
    assert 0.28 in series(0.01, 1, FINE)
