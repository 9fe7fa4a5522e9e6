"""Capacity and interval from trials."""

import math

import numpy as np
import pytest
from scipy import stats

from harness.experiments.capacity.conditions import JOINT, Condition
from harness.experiments.capacity.estimate import Shares, estimate, mean_interval, measured_shares
from harness.experiments.capacity.trials import Key

WANTED = (Condition(JOINT, 0.9),)


def _trials(system, seeds, rates=(9.7, 10.3)):
    return [system.trial(Key(seed, rate, 2000)) for seed in seeds for rate in rates]


@pytest.mark.nightly
def test_intervals_hold_the_truth_as_often_as_they_say(system):
    """Every capacity would be printed with a certainty that it does not have."""
    true_rps = _pooled_capacity(system())
    inside = 0
    for number in range(100):
        found = estimate(_trials(system(), range(1000 * number, 1000 * number + 8)), WANTED, measured_shares)
        inside += found.low_rps <= true_rps <= found.high_rps

    assert stats.binomtest(inside, 100, 0.95).pvalue > 0.001


def _pooled_capacity(system):
    """Where the mean over 20,000 seeds is 90%: not where the mean of their knees is."""
    shifts = system.scatter * np.random.default_rng(0).standard_normal(20_000)

    def mean(rate_rps):
        away = math.log(rate_rps / system.knee_rps) + shifts
        return float((1 / (1 + np.exp(-(math.log(9) - system.slope * away)))).mean())

    rates = np.linspace(9, 11, 400)
    return float(rates[np.argmin([abs(mean(rate) - 0.9) for rate in rates])])


def test_the_knees_of_the_seeds_are_the_capacity_and_its_error(system):
    """A comparison by seeds would contradict the capacities that it compares."""
    found = estimate(_trials(system(), range(10)), WANTED, measured_shares)
    capacity_by_seed = np.array(list(found.capacity_by_seed.values()))

    assert pytest.approx(found.rate_rps) == math.exp(capacity_by_seed.mean())
    assert pytest.approx((math.log(found.low_rps), math.log(found.high_rps))) == mean_interval(
        Shares(tuple(capacity_by_seed))
    )


def test_few_seeds_give_no_interval(system):
    """Four seeds would be printed with an interval that is luck."""
    found = estimate(_trials(system(), range(4)), WANTED, measured_shares)

    assert found.low_rps is None
    assert math.inf == found.half_width


def test_the_lowest_crossing_counts_and_binds(system):
    """A system would be reported to sustain a rate at which one of its conditions is broken."""
    trials = _trials(system(), range(6), rates=(9.0, 10.0, 11.0))
    wanted = (Condition(JOINT, 0.9), Condition("ttft=0.25", 0.97))

    assert "ttft=0.25" == estimate(trials, wanted, measured_shares).binding


def test_the_error_that_all_trials_share_widens_the_interval():
    """A long-run mean known from a short draw would count as exact."""
    low, high = mean_interval(Shares((1.0, 1.1, 0.9, 1.05, 0.95, 1.0), error=0.1))
    narrow = mean_interval(Shares((1.0, 1.1, 0.9, 1.05, 0.95, 1.0)))

    assert high - low > 2 * (narrow[1] - narrow[0])


def test_cliff_far_from_the_curve_through_all_trials_is_found(system):
    """An SLO that breaks at once would have a capacity far below rates that were seen to be sustained."""
    plateau = {3.139: 0.993, 3.403: 0.999, 3.922: 0.686, 4.706: 0.147, 5.132: 0.287, 6.158: 0.242}
    trials = []
    for rate_rps, share in plateau.items():
        flat = system(ceiling=share, slope=0.0, scatter=0.0)
        flat.attainment = lambda *_, share=share: share
        trials += [flat.trial(Key(seed, rate_rps, 600)) for seed in range(8)]

    found = estimate(trials, (Condition(JOINT, 0.99),), measured_shares)

    assert 3.139 < found.rate_rps < 3.922
    assert found.low_rps is None or found.high_rps > 3.3


def test_guess_beyond_all_trials_has_no_interval(system):
    """A rate that was never tried near would be reported with certainty."""
    trials = _trials(system(), range(8), rates=(2.0, 2.2))

    found = estimate(trials, WANTED, measured_shares)

    assert found is None or found.low_rps is None
