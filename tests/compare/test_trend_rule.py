"""The rule of the trend, the names of its changes and its step fit, against drawn series and by hand."""

import math

import numpy as np
import pytest

from harness.stats.shapes import Pattern, Shape, shape, weekly
from harness.stats.steps import PENALTY, SHORTEST, pieces
from harness.stats.watch import EXACT, Rule, scatter, watch

RUNS = 60


def series(count, sd, seed, level=1.0, correlation=0.0):
    """Drawn series of sixty runs."""
    rng = np.random.default_rng(seed)
    noise = sd * rng.standard_normal((count, RUNS))
    for night in range(1, RUNS):
        noise[:, night] = correlation * noise[:, night - 1] + math.sqrt(1 - correlation**2) * noise[:, night]
    return level * (1 + noise)


def worse(values):
    """Share of series with a change for the worse on some night."""
    found = [watch(one.tolist(), Rule(), higher=False).changes for one in values]
    return sum(any(change.side == "worse" for change in changes) for changes in found) / len(found)


@pytest.mark.parametrize("sd", [0.01, 0.04])
def test_flat_series_are_steady_every_night(sd):
    """A nightly job cries wolf: each night is another look."""
    assert 0.02 >= worse(series(100, sd, seed=11))


def test_single_bad_runs_are_no_change():
    """A shared machine is slow on every twentieth night, by a fifth."""
    values = series(100, 0.01, seed=12) + 0.2 * (np.random.default_rng(12).random((100, RUNS)) < 0.05)

    assert 0.03 >= worse(values)


def test_steps_are_found_within_a_week():
    """A step is overlooked for weeks."""
    step = 1 + 0.1 * (np.arange(RUNS) >= 40)
    found = [watch(one.tolist(), Rule(), higher=False).changes for one in series(50, 0.02, seed=13, level=step)]

    assert 44 <= sum(any(abs(change.first - 40) <= 1 and change.called < 47 for change in one) for one in found)


def test_a_slow_loss_is_found_and_never_forgotten():
    """A creep of a fifth in two months is steady every night, because the reference follows it."""
    creep = 1 + 0.19 * np.arange(RUNS) / (RUNS - 1)
    found = [watch(one.tolist(), Rule(), higher=False) for one in series(50, 0.02, seed=14, level=creep)]

    assert 50 == sum(one.open is not None and one.open.side == "worse" for one in found)


def test_correlated_runs_allow_more():
    """Slow waves of a machine are regressions, week after week."""
    waves, noise = (
        [watch(one.tolist(), Rule(), higher=False).judged[-1].threshold for one in series(50, 0.02, 15, 1.0, rho)]
        for rho in (0.8, 0.0)
    )

    assert np.median(waves) > 1.1 * np.median(noise)
    assert 0.6 < np.median([scatter(one.tolist()).correlation for one in series(100, 0.02, 16, 1.0, 0.9)])
    assert 0.0 == np.median([scatter(one.tolist()).correlation for one in series(100, 0.02, 17)])


def test_steps_and_drift_are_no_scatter():
    """The step that is looked for hides in the noise that it makes."""
    night = np.arange(RUNS)
    for level in (1 + 0.1 * (night >= 30), 1 + 0.19 * night / 59):
        found = [scatter(one.tolist()).sd for one in series(50, 0.01, seed=18, level=level)]

        assert pytest.approx(0.011, abs=0.003) == np.median(found)


def test_the_interval_of_a_change_holds_its_size():
    """A change is printed with an interval that misses it."""
    step, held = 1 + 0.1 * (np.arange(RUNS) >= 40), 0
    for one in series(200, 0.01, seed=19, level=step):
        found = watch(one.tolist(), Rule(), higher=False)
        held += abs(found.loss(np.median(one[40:]), found.level) - 0.1) <= found.margin(20)

    assert 0.9 <= held / 200 <= 0.995


def test_the_accepted_level_does_not_follow():
    """After a week at a new level it is the reference, and nothing is wrong any more."""
    judged = watch([1.0] * 10 + [1.1] * 40, Rule(), higher=False).judged

    assert ["few"] * 7 + ["steady"] * 3 + ["suspect"] * 3 + ["worse"] * 37 == [one.state for one in judged]
    assert {1.0} == {one.reference for one in judged[7:]}


def test_higher_values_can_be_the_better_ones():
    """A rise of throughput is called a loss."""
    up, down = (watch([10.0] * 7 + [v] * 4, Rule(), higher=True).changes[0].side for v in (12.0, 8.0))

    assert ("better", "worse") == (up, down)


def test_a_change_ends_where_the_level_returns():
    """A bad week that has passed is flagged for ever, or a fall after a gain is none."""
    passed = watch([10.0] * 10 + [12.0] * 5 + [10.0] * 5, Rule(), higher=False).changes
    crossed = watch([10.0] * 10 + [9.0] * 10 + [11.0] * 10, Rule(), higher=False).changes

    assert [("worse", 10, 13, 15)] == [(s.side, s.first, s.called, s.ended) for s in passed]
    assert [("better", 10, 20), ("worse", 20, None)] == [(s.side, s.first, s.ended) for s in crossed]


def test_a_series_that_is_always_overloaded_is_no_change():
    """Infinity beside infinity is worse or better by nothing that is known."""
    assert [] == watch([math.inf] * 12, Rule(), higher=False).changes
    assert ["better"] == [s.side for s in watch([math.inf] * 8 + [1.0] * 4, Rule(), higher=False).changes]
    assert ["worse"] == [s.side for s in watch([1.0] * 8 + [math.inf] * 4, Rule(), higher=False).changes]


def test_an_exact_series_changes_with_every_difference():
    """A simulator's change needs a week."""
    changes = watch([1.0, 1.0, 1.1, 1.1, 1.0, 1.2], EXACT, higher=False).changes

    assert [(2, 2, 4), (5, 5, None)] == [(one.first, one.called, one.ended) for one in changes]


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("step", 1 + 0.1 * (np.arange(RUNS) >= 30)),
        ("stairs", 1.04 ** np.searchsorted([12, 24, 36, 48], np.arange(RUNS), side="right")),
        ("ramp", 1 + 0.1 * np.clip((np.arange(RUNS) - 20) / 20, 0, 1)),
        ("creep", 1 + 0.19 * np.arange(RUNS) / 59),
    ],
)
def test_kinds_are_named(kind, level):
    """A creep is searched for its commit, or a step for its weather."""
    up = [shape(one.tolist(), "worse", 0.01, 1, higher=False) for one in series(20, 0.01, seed=20, level=level)]
    down = [shape(one.tolist(), "worse", 0.01, 1, higher=True) for one in series(20, 0.01, seed=20, level=1 / level)]

    assert 18 <= sum(one.kind == kind for one in up)
    assert 18 <= sum(one.kind == kind for one in down)


def test_what_cannot_be_fitted_is_a_step_where_it_was_found():
    """An overloaded night ends the report."""
    assert Shape("step", (8,)) == shape([1.0] * 8 + [math.inf] * 4, "worse", 0.01, 8, higher=False)
    assert Shape("step", (5,)) == shape([1.0] * 6, "worse", 0.01, 5, higher=False)


def test_patterns_of_the_week_are_named():
    """Slow weekends are noise, or noise is a weekend."""
    days = [(3 + night) % 7 for night in range(RUNS)]
    for named, name in (((5, 6), "weekend"), ((0,), "Monday")):
        level = 1 + 0.05 * np.isin(days, named)
        found = [weekly(one.tolist(), days) for one in series(20, 0.01, seed=21, level=level)]

        assert 19 <= sum(one is not None and one.name == name for one in found)
        assert pytest.approx(0.05, abs=0.01) == np.median([one.by for one in found if one is not None])
    assert [None] * 100 == [weekly(one.tolist(), days) for one in series(100, 0.04, seed=22)]
    assert weekly([0.0] * RUNS, days) is None
    assert [1.0, 1.5] == Pattern((5, 6), 0.5).removed([1.0, 2.0], [4, 5])


def test_pieces_are_those_of_the_best_partition():
    """A step is put into the night before or after."""
    assert [(0, 4, 1.0), (4, 8, 1.1)] == [(p.start, p.stop, p.level) for p in pieces([1.0] * 4 + [1.1] * 4)]
    assert [(0, 4, 0.0)] == [(p.start, p.stop, p.level) for p in pieces([0.0] * 4)]
    assert [] == pieces([])
    assert [(0, 1, 3.0)] == [(p.start, p.stop, p.level) for p in pieces([3.0])]


def test_pieces_equal_a_search_of_all_partitions():
    """The fit would be an approximation of unknown error."""
    from itertools import combinations

    rng = np.random.default_rng(3)
    for _ in range(20):
        values = np.concatenate([rng.normal(10, 0.3, 7), rng.normal(rng.choice([10, 12]), 0.3, 6)])
        n = len(values)

        def objective(starts, values=values, n=n):
            parts = np.split(values, starts)
            error = sum(np.abs(part - np.median(part)).sum() for part in parts)
            return PENALTY * np.log(n) / n * len(parts) + np.log(0.001 * np.median(values) + error / n)

        every = [
            starts
            for k in range(4)
            for starts in combinations(range(SHORTEST, n - SHORTEST + 1), k)
            if all(b - a >= SHORTEST for a, b in zip((0, *starts), (*starts, n), strict=True))
        ]

        assert list(min(every, key=objective)) == [piece.start for piece in pieces(values.tolist())[1:]]


def test_noise_alone_has_no_pieces():
    """Every long series has a step somewhere."""
    rng = np.random.default_rng(5)
    series = 100 * (1 + 0.02 * rng.standard_normal((50, 60)))

    assert 3 >= sum(len(pieces(one.tolist())) > 1 for one in series)


def test_a_step_of_five_percent_is_placed_within_a_night():
    """The commit that is named is not the one that did it."""
    rng = np.random.default_rng(6)
    series = 100 * (1 + 0.01 * rng.standard_normal((50, 60)))
    series[:, 40:] *= 1.05
    starts = [[piece.start for piece in pieces(one.tolist())[1:]] for one in series]

    assert 50 == sum(any(abs(start - 40) <= 1 for start in one) for one in starts)
