"""Arrivals against renewal theory."""

import math
from itertools import islice

import numpy as np
import pytest
from scipy import stats

from harness.api import Arrivals
from workloads.arrivals import _operational
from workloads.arrivals.builtin import Constant, Gamma, Poisson


def times(arrivals: Arrivals, count: int, seed: int = 1) -> np.ndarray:
    return np.array(list(islice(arrivals.times(np.random.default_rng(seed)), count)))


@pytest.mark.parametrize(("rate_rps", "cv"), [(4.0, 0.3), (4.0, 1.0), (0.5, 2.0), (20.0, 4.0)])
def test_gamma_gaps_have_the_requested_mean_and_spread(rate_rps: float, cv: float) -> None:
    """If this failed, a run at 'cv=2' would be a run at another burstiness, or at another rate."""
    gaps = np.diff(times(Gamma(rate_rps, cv), 200_001))
    mean_error = cv / rate_rps / math.sqrt(len(gaps))
    spread_error = math.sqrt((2 + 6 * cv**2) / len(gaps)) * cv**2 / 2  # of a gamma law's sample variance

    assert abs(gaps.mean() - 1 / rate_rps) < 4 * mean_error
    assert abs((gaps.std() * rate_rps) ** 2 - cv**2) < 8 * spread_error


@pytest.mark.parametrize("arrivals", [Poisson(3.0), Gamma(3.0, 0.5), Gamma(3.0, 3.0)])
def test_gaps_follow_the_declared_law(arrivals: Poisson | Gamma) -> None:
    """If this failed, the KS line of a report would accuse a client that did nothing wrong."""
    gaps = np.diff(times(arrivals, 20_001, seed=3))
    grain_s = 1e-9  # sums of float64 seconds hold no finer gaps, and bursts have many of them
    below = float(arrivals.gap_cdf(np.array([grain_s]))[0])

    assert abs(np.mean(gaps <= grain_s) - below) <= 4 * math.sqrt(below * (1 - below) / len(gaps))
    law = stats.kstest(gaps[gaps > grain_s], lambda g: (arrivals.gap_cdf(g) - below) / (1 - below))
    assert law.pvalue > 0.01


def test_gamma_with_cv_one_is_poisson() -> None:
    """If this failed, the same traffic would have two laws under two names."""
    gaps = np.linspace(0, 5, 100)

    np.testing.assert_allclose(Poisson(2.0).gap_cdf(gaps), Gamma(2.0, 1.0).gap_cdf(gaps), atol=1e-12)


def test_constant_arrivals_do_not_drift() -> None:
    """If this failed, a metronome at 3 per second would be late by the sum of a million roundings."""
    at_s = times(Constant(3.0), 300_001)

    assert at_s[0] == 0
    assert at_s[-1] == 100_000


def test_no_gap_is_repeated_or_lost_where_chunks_meet() -> None:
    """If this failed, the tail of the gaps would be cut or doubled every few thousand requests."""
    rng = np.random.default_rng(9)
    expected = np.cumsum(rng.exponential(0.5, 3 * _operational.CHUNK))

    np.testing.assert_allclose(expected, times(Poisson(2.0), 3 * _operational.CHUNK, seed=9), rtol=1e-12)


def test_extreme_burstiness_still_moves_forward() -> None:
    """If this failed, gaps that underflow to 0 would make time stand still or fall."""
    at_s = times(Gamma(10.0, 100.0), 200_000)

    assert np.all(np.diff(at_s) >= 0)
    assert at_s[-1] > 0
