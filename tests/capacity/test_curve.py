"""The curve of attainment over the rate."""

import math

import pytest

from harness.stats.curves import Curve, falling, fit, logit


def test_a_curve_is_found_again_from_its_own_shares():
    """A biased fit would move every capacity, whatever its interval says."""
    true = Curve(10.0, logit(0.9), 25.0)
    rates = [9.0, 9.8, 10.4, 11.0]

    found = fit(rates, [true.at(rate) for rate in rates], [1e9] * 4)

    assert pytest.approx(10.0, rel=1e-6) == found.crossing(0.9)
    assert pytest.approx(25.0, rel=1e-4) == found.slope


def test_the_crossing_of_any_goal_lies_on_the_curve():
    """Two goals of one search would contradict one another."""
    curve = Curve(10.0, 2.0, 12.0)

    assert [pytest.approx(goal) for goal in (0.5, 0.9, 0.99)] == [
        curve.at(curve.crossing(goal)) for goal in (0.5, 0.9, 0.99)
    ]


@pytest.mark.parametrize("shares", [[0.9, 0.9, 0.9], [0.8, 0.9, 0.95]])
def test_a_curve_that_does_not_fall_has_no_crossing(shares):
    """A capacity would be read off noise, far away from every trial."""
    found = fit([9.0, 10.0, 11.0], shares, [2000] * 3)

    assert found.crossing(0.9) is None


def test_one_rate_makes_no_curve():
    """A slope of one point is anything."""
    assert fit([10.0, 10.0], [0.9, 0.8], [100, 100]) is None


def test_rates_at_which_no_request_missed_leave_the_slope_finite():
    """A perfect separation would send the capacity to whichever rate happened to be tried."""
    found = fit([8.0, 9.0, 12.0], [1.0, 1.0, 0.0], [2000] * 3)

    assert 9.0 < found.crossing(0.9) < 12.0
    assert math.isfinite(found.slope)


def test_shares_above_one_are_taken_as_they_are():
    """An adjusted share may lie above 1; clipping it would bias the mean."""
    curve = fit([9.0, 9.0, 11.0, 11.0], [1.03, 0.93, 0.84, 0.80], [1e9] * 4)

    assert pytest.approx(0.82, abs=1e-6) == curve.at(11.0)


def test_points_are_pooled_until_they_fall():
    """A drawn curve that rises with the load would make a reader doubt the system, not the noise."""
    assert pytest.approx([0.95, 0.85, 0.85, 0.5]) == falling([0.95, 0.8, 0.9, 0.5], [1, 1, 1, 1])
