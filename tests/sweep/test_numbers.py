"""The numbers of a curve: spread over seeds, crossing of a goal, guess of the time left."""

import math

import numpy as np
import pytest
from scipy import special, stats

from harness.experiments.sweep.execute import Progress, duration
from harness.experiments.trial import at_rate
from harness.options import Given, run_spec
from harness.runner.plan import plan
from harness.stats.crossing import crossing
from harness.stats.seeds import spread


def test_interval_over_seeds_is_students_t() -> None:
    """The interval of every point would be too narrow, or too wide."""
    values = [0.91, 0.93, 0.88, 0.90, 0.95, 0.92]
    mean, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, 5, math.log(mean), error / mean)  # delta method
    odds = stats.t.interval(0.95, 5, special.logit(mean), error / (mean * (1 - mean)))

    found, of_share = spread(values), spread(values, most=1.0)

    assert found is not None
    assert of_share is not None
    assert (6, 0.88, 0.95, pytest.approx(mean)) == (found.n, found.least, found.most, found.mean)
    assert (pytest.approx(math.exp(low)), pytest.approx(math.exp(high))) == (found.low, found.high)
    assert pytest.approx(special.expit(odds)) == [of_share.low, of_share.high]


def test_interval_holds_the_mean_as_often_as_it_says() -> None:
    """Every 95% on the screen would be another number."""
    rng = np.random.default_rng(7)
    found = [spread(row) for row in rng.normal(10.0, 2.0, (2000, 5)).tolist()]
    held = sum(one.low <= 10.0 <= one.high for one in found if one is not None)

    assert 0.935 < held / 2000 < 0.965  # 95% +- three standard deviations of 2,000 draws


@pytest.mark.parametrize("values", [[0.9], [0.9, 0.8, 0.7, 0.9], [1.0] * 8])
def test_few_or_equal_seeds_have_no_interval(values: list[float]) -> None:
    """Four seeds, or eight of which none missed, would look as if they decided something."""
    found = spread(values)

    assert found is not None
    assert (None, None) == (found.low, found.high)


def test_interval_of_a_share_stays_within_0_and_1() -> None:
    """A share of 103% would stand in a report."""
    found = spread([1.0, 1.0, 1.0, 0.9, 1.0], most=1.0)

    assert found is not None
    assert 0.5 < found.low < 0.98 < found.high < 1.0
    assert spread([None, None]) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_interval_over_seeds_is_negative_or_cut_at_0(seed: int) -> None:
    """'TTFT p50 0 to 26 s' or '0.0 .. 12.1%': one bad seed of five, and the interval ends where nothing can be."""
    rng = np.random.default_rng(seed)
    times_s = rng.lognormal(0, 0.3, 5) * np.where(np.arange(5) == 0, 10.0 ** rng.uniform(0, 4), 1.0)
    shares = 1 / (1 + times_s)

    for found, most in ((spread(times_s.tolist()), math.inf), (spread(shares.tolist(), most=1.0), 1.0)):
        assert found is not None
        assert 0.0 < found.low < found.mean < found.high < most


def test_crossing_of_a_logistic_curve_is_exact() -> None:
    """The rate at which the goal is crossed would be off where the curve is just what the method assumes."""
    rates = [1.0, 1.6, 2.4, 4.0]
    attainment = [1 / (1 + (rate / 2) ** 6) for rate in rates]  # logit falls with 6 ln(rate / 2)
    wanted = 2 * math.exp(-math.log(9) / 6)

    found = crossing(rates, attainment, [10**6] * 4, 0.9)

    assert pytest.approx(wanted) == found.at
    assert (1.0, 1.6) == found.between


def test_point_on_the_goal_keeps_it() -> None:
    """A system that reaches 90% exactly would count as one that does not."""
    assert 2.0 == crossing([1, 2, 4], [0.99, 0.9, 0.5], [100] * 3, 0.9).at


@pytest.mark.parametrize(("attainment", "side"), [([0.99, 0.95], "above"), ([0.5, 0.1], "below")])
def test_goal_outside_the_curve_is_not_crossed(attainment: list[float], side: str) -> None:
    """A crossing would be made up where none was measured."""
    found = crossing([1, 2], attainment, [100, 100], 0.9)

    assert (None, None, side) == (found.at, found.between, found.side)


def test_wiggle_is_no_second_crossing() -> None:
    """Noise of one point would move the crossing to its left."""
    found = crossing([1, 2, 3, 4], [0.99, 0.89, 0.93, 0.5], [100] * 4, 0.9)

    assert (3, 4) == found.between


def test_rising_curve_is_crossed_upwards() -> None:
    """The SLO scale at which a goal is reached would be missing."""
    found = crossing([0.5, 1, 2], [0.2, 0.8, 1.0], [100] * 3, 0.9, rising=True)

    assert (1, 2) == found.between
    assert found.at is not None
    assert 1 < found.at < 2


def test_runs_without_a_miss_leave_the_crossing_finite() -> None:
    """logit(1) is infinite: the crossing would stick to the next point."""
    found = crossing([1, 2], [1.0, 0.8], [1000, 1000], 0.9).at

    assert found is not None
    assert 1.5 < found < 2


def test_time_left_follows_the_pace() -> None:
    """Runs that are kept cost nothing; counting them would promise far too early an end."""
    now = [0.0]
    progress = Progress(total=12, done=2, work=10.0, clock=lambda: now[0])

    assert "2 of 12 runs" == progress.line()

    now[0] = 30.0
    for _ in range(5):
        progress.add(1.0)

    assert "7 of 12 runs, about 30 s left" == progress.line()


def test_time_left_is_known_before_the_first_run_in_real_time() -> None:
    """Who starts an hour of load would learn it an hour later."""
    assert "0 of 2 runs, about 20 min left" == Progress(total=2, work=1200.0, timed=True).line()


@pytest.mark.parametrize(("seconds", "text"), [(8.4, "8 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations_are_as_exact_as_a_guess(seconds: float, text: str) -> None:
    """A guess with four digits would look like a promise."""
    assert text == duration(seconds)


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma:cv=2"])
def test_seed_at_another_rate_is_the_same_schedule_closer_together(arrivals: str) -> None:
    """Two points of a curve would differ by their traffic, not by their rate alone."""
    spec = run_spec(Given({"backend": "sim", "requests": 300, "arrivals": arrivals, "seed": 3}))
    slow, fast = (plan(at_rate(spec, rate)).schedule.table for rate in (1.0, 4.0))

    assert slow["prompt_tokens"].to_pylist() == fast["prompt_tokens"].to_pylist()
    assert slow["output_tokens"].to_pylist() == fast["output_tokens"].to_pylist()
    np.testing.assert_allclose(slow["scheduled_s"].to_numpy() / 4, fast["scheduled_s"].to_numpy(), rtol=1e-12)
