"""The rule of the trend and its step fit, against simulated nights and by hand."""

import numpy as np
import pytest

from harness.stats.steps import pieces
from harness.stats.watch import EXACT, Rule, watch

NIGHTS, BEFORE = 365, 30


def years(sd, count, rule):
    """False alarms a year of nights without a step."""
    rng = np.random.default_rng(11)
    series = 1 + sd * rng.standard_normal((count, 14 + NIGHTS))
    steps = [step for one in series for step in watch(one.tolist(), rule, higher=False).steps]
    return sum(step.side == "worse" and step.called >= 14 for step in steps) / count


def found(sd, count, rule):
    """Share of steps of 10 % that are called within 7 nights."""
    rng = np.random.default_rng(12)
    series = 1 + sd * rng.standard_normal((count, BEFORE + 7))
    series[:, BEFORE:] *= 1.1
    watched = [watch(one.tolist(), rule, higher=False).steps for one in series]
    return sum(any(s.side == "worse" and s.called >= BEFORE for s in steps) for steps in watched) / count


@pytest.mark.nightly
@pytest.mark.parametrize(("sd", "one", "two", "mad"), [(0.01, 0, 0, 0), (0.02, 4.3, 0.16, 0.03), (0.03, 24, 2.7, 0.35)])
def test_false_alarms_a_year_are_those_of_the_table(sd, one, two, mad):
    """A nightly job cries wolf more often than its documentation says."""
    assert one == pytest.approx(years(sd, 60, Rule(in_a_row=1, sds=0)), rel=0.2, abs=0.3)
    assert two == pytest.approx(years(sd, 100, Rule(sds=0)), rel=0.2, abs=0.15)
    assert mad == pytest.approx(years(sd, 100, Rule()), rel=0.2, abs=0.15)


@pytest.mark.parametrize(("sd", "two", "mad"), [(0.01, 1.0, 1.0), (0.02, 1.0, 0.97), (0.03, 1.0, 0.63)])
def test_steps_of_ten_percent_are_found_as_often_as_the_table_says(sd, two, mad):
    """A step is overlooked for weeks, although it was promised to be found in one."""
    assert two == pytest.approx(found(sd, 500, Rule(sds=0)), abs=0.06)
    assert mad == pytest.approx(found(sd, 500, Rule()), abs=0.08)


def test_the_reference_is_frozen_while_a_step_is_suspected():
    """The first bad night raises the reference by which the second one is judged."""
    flat = [1.0] * 4 + [1.02] * 3
    judged = watch([*flat, 1.08, 1.08], Rule(), higher=False).judged

    assert [(1.0, "suspect"), (1.0, "worse")] == [(one.reference, one.state) for one in judged[-2:]]


def test_higher_values_can_be_the_better_ones():
    """A rise of throughput is called a loss."""
    up, down = (watch([10.0] * 7 + [value] * 2, Rule(), higher=True).steps[0].side for value in (12.0, 8.0))

    assert ("better", "worse") == (up, down)


def test_a_fall_after_a_gain_counts_from_the_old_level():
    """A gain of two nights hides the loss that follows."""
    steps = watch([10.0] * 7 + [9.0] * 3 + [11.0] * 3, Rule(), higher=False).steps

    assert [("better", 7, 10), ("worse", 10, None)] == [(s.side, s.first, s.ended) for s in steps]


def test_a_series_that_is_always_overloaded_is_no_step():
    """Infinity beside infinity is worse or better by nothing that is known."""
    inf = float("inf")

    assert [] == watch([inf] * 12, Rule(), higher=False).steps
    assert ["better"] == [s.side for s in watch([inf] * 8 + [1.0] * 2, Rule(), higher=False).steps]


def test_an_exact_series_steps_with_every_difference():
    """A simulator's change needs two nights, or two changes in a row are one."""
    steps = watch([1.0, 1.0, 1.1, 1.2, 1.2], EXACT, higher=False).steps

    assert [2, 3] == [step.first for step in steps]


def test_pieces_are_those_of_the_best_partition():
    """A step is put into the night before or after."""
    assert [(0, 3, 1.0), (3, 6, 1.1)] == [(p.start, p.stop, p.level) for p in pieces([1, 1, 1, 1.1, 1.1, 1.1])]
    assert [(0, 4, 0.0)] == [(p.start, p.stop, p.level) for p in pieces([0.0] * 4)]
    assert [] == pieces([])
    assert [(0, 1, 3.0)] == [(p.start, p.stop, p.level) for p in pieces([3.0])]


def test_pieces_equal_a_search_of_all_partitions():
    """The fit is an approximation that nobody knows the error of."""
    from itertools import combinations

    rng = np.random.default_rng(3)
    for _ in range(20):
        values = np.concatenate([rng.normal(10, 0.3, 5), rng.normal(rng.choice([10, 12]), 0.3, 4)])
        n = len(values)

        def objective(starts, values=values, n=n):
            parts = np.split(values, starts)
            error = sum(np.abs(part - np.median(part)).sum() for part in parts)
            return 4 * np.log(n) / n * len(parts) + np.log(0.001 * np.median(values) + error / n)

        every = [
            starts
            for k in range(4)
            for starts in combinations(range(2, n - 1), k)
            if all(b - a >= 2 for a, b in zip((0, *starts), (*starts, n), strict=True))
        ]

        assert list(min(every, key=objective)) == [piece.start for piece in pieces(values.tolist())[1:]]


def test_noise_alone_has_no_pieces():
    """Every long series has a step somewhere."""
    rng = np.random.default_rng(5)
    series = 100 * (1 + 0.02 * rng.standard_normal((50, 60)))

    assert 0 == sum(len(pieces(one.tolist())) > 1 for one in series)


def test_a_step_of_five_percent_is_placed_within_a_night():
    """The commit that is named is not the one that did it."""
    rng = np.random.default_rng(6)
    series = 100 * (1 + 0.01 * rng.standard_normal((50, 60)))
    series[:, 40:] *= 1.05
    starts = [[piece.start for piece in pieces(one.tolist())[1:]] for one in series]

    assert 50 == sum(any(abs(start - 40) <= 1 for start in one) for one in starts)
