"""Requests counted over a plane of bounds: what a figure shows must be what `bench slo` finds."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.api import Bound
from harness.experiments.rescore.scale import plane
from harness.metrics.objective import Seen, parse_slo, score
from reports._replay import AROUND, COARSE, FINE, Axis, axis, series

SLOS = [
    "ttft=0.25,tpot=0.1", "ttft=0.25,ttft@long=0.4,tpot=0.05,e2e=3", "tpot=0.05,itl=0.2", "", "e2e=2",
    "p99:ttft=1,tpot=0.03", "ttft@long=0.4,tpot=0.05", "task=5,ttft=0.2",
]  # fmt: skip


@pytest.mark.parametrize("text", SLOS)
def test_every_position_is_what_scoring_finds(text: str, mixture: Callable[..., pa.Table]) -> None:
    """A plane would show other shares than bench slo prints for the same bounds."""
    seen = Seen(mixture(400))
    slo = parse_slo(text)
    bounds = tuple(b for b in slo.bounds if b.percentile is None and (b.tag or b.metric not in ("ttft", "tpot")))
    held = replace(slo, bounds=bounds)
    limits = {metric: axis(seen, metric, None).limits_s for metric in ("ttft", "tpot")}
    found = plane(seen, limits, held)
    # beside a bound of a class alone, a score leaves out what requests bring along themselves
    ends = [(*values[::5], *([] if any(b.metric == m and b.tag for b in bounds) else [None]))
            for m, values in limits.items()]  # fmt: skip
    for i, ttft in enumerate(ends[0]):
        for j, tpot in enumerate(ends[1]):
            moved = tuple(Bound(m, at) for m, at in (("ttft", ttft), ("tpot", tpot)) if at is not None)
            scored = score(seen.table, replace(held, bounds=(*moved, *bounds)), seen)
            place = -1 if ttft is None else 5 * i, -1 if tpot is None else 5 * j

            assert int(scored.met.sum()) == found.met[place]


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
