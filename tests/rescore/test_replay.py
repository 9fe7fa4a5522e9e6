"""Requests counted over a grid of bounds: what a figure shows must be what `bench slo` finds."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from harness.api import Bound, Slo
from harness.experiments.rescore.scale import curve
from harness.metrics.objective import Seen, parse_slo, score
from reports._replay import AROUND, COARSE, FINE, Axis, Grid, cells, grid, series

SLOS = [
    "ttft=0.25,tpot=0.1", "ttft=0.25,ttft@long=0.4,tpot=0.05,e2e=3", "tpot=0.05,itl=0.2", "", "e2e=2",
    "p99:ttft=1,tpot=0.03", "ttft@long=0.4,tpot=0.05", "task=5,ttft=0.2",
]  # fmt: skip


def bounds_at(grid: Grid, places: tuple[int, int]) -> tuple[Bound, ...]:
    """The bounds at two positions; none at the end of an axis."""
    chosen = zip(grid.axes, places, strict=True)
    return tuple(Bound(axis.metric, axis.limits_s[i]) for axis, i in chosen if i < len(axis.limits_s))


@pytest.mark.parametrize("text", SLOS)
def test_every_position_is_what_scoring_finds(text: str, mixture: Callable[..., pa.Table]) -> None:
    """A plane would show other shares than bench slo prints for the same bounds."""
    seen = Seen(mixture(400))
    places = grid([seen], parse_slo(text))
    found = cells(seen, places)
    met = found.met()
    for i in [*range(0, len(places.axes[0].limits_s), 5), len(places.axes[0].limits_s)]:
        for j in [*range(0, len(places.axes[1].limits_s), 5), len(places.axes[1].limits_s)]:
            moved = bounds_at(places, (i, j))
            scored = score(seen.table, replace(places.rest, bounds=(*moved, *places.rest.bounds)), seen)

            assert int(scored.met.sum()) == met[i, j]


@pytest.mark.parametrize("text", ["ttft=0.25,tpot=0.1", "ttft=0.25,ttft@long=0.4,tpot=0.05,e2e=3", "e2e=2"])
def test_every_scale_is_what_the_curve_finds(text: str, mixture: Callable[..., pa.Table]) -> None:
    """The curve over scales would show other shares than bench slo --scale."""
    seen = Seen(mixture(400))
    places = grid([seen], parse_slo(text))
    found, scored = cells(seen, places), curve(seen, parse_slo(text), places.factors)

    assert scored.attainment.tolist() == (found.scaled / found.requests).tolist()
    for axis, one in zip(places.axes, found.alone, strict=True):
        shares = None if axis.own_s is None else scored.bounds.get(Bound(axis.metric, axis.own_s))
        assert (shares is None) == (one.scaled is None)
        if shares is not None and one.scaled is not None:
            assert shares.tolist() == (one.scaled / one.requests).tolist()


@pytest.mark.parametrize("limit_s", [0.001, 0.0333, 0.25, 7.0])
def test_the_bound_of_the_slo_is_a_position(limit_s: float, mixture: Callable[..., pa.Table]) -> None:
    """A plane could not show the SLO itself, nor what lies to both sides of it."""
    [ttft, _] = grid([Seen(mixture(200))], Slo((Bound("ttft", limit_s),))).axes

    assert limit_s == ttft.own_s
    assert sorted(set(ttft.limits_s)) == list(ttft.limits_s)
    assert ttft.limits_s[0] <= limit_s / 2
    assert ttft.limits_s[-1] >= limit_s * 2
    assert ttft.limits_s[-1] / ttft.limits_s[0] < 4 * AROUND**2


def test_without_a_bound_an_axis_starts_at_its_end(mixture: Callable[..., pa.Table]) -> None:
    """A run without an SLO would be shown under bounds that were never given."""
    found = grid([Seen(mixture(200))], Slo())

    assert [len(axis.limits_s) for axis in found.axes] == [axis.start for axis in found.axes]
    assert () == found.factors


def test_a_run_of_failures_has_no_positions(mixture: Callable[..., pa.Table]) -> None:
    """A page of a run in which nothing came back would break."""
    table = mixture(70)
    failed = table.filter(~np.isin(table["status"].to_numpy(zero_copy_only=False), ["ok"]))
    seen = Seen(failed)
    places = grid([seen], Slo())
    found = cells(seen, places)

    assert (Axis("ttft", (), 0), Axis("tpot", (), 0)) == places.axes
    assert int(found.met()[-1, -1]) == 0


def test_positions_are_readable() -> None:
    """An axis would have a bound of 0.2537 s."""
    assert [0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5] == series(0.1, 0.45, COARSE)
    assert [9, 10, 11, 12, 13] == series(9.5, 12.5, FINE)
    assert 0.28 in series(0.01, 1, FINE)
