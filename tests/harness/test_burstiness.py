"""The statistics of arrivals are what their definitions say, by hand and against numpy and theory."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.stats import arrivals

TIMES = st.lists(st.floats(0, 1000, allow_nan=False), min_size=2, max_size=200).map(lambda t: np.sort(np.array(t)))


def poisson(rate_rps: float, requests: int, seed: int) -> np.ndarray:
    """Arrival times of a Poisson process."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_rps, requests))


def test_counts_by_hand() -> None:
    """An arrival on an edge would count twice, or the broken bin at the end as a whole one."""
    times_s = np.array(
        [10.0, 10.5, 11.0, 13.9, 14.5]
    )  # bins from 10 on: [10,11) [11,12) [12,13) [13,14), 14.5 left over

    assert [2, 1, 0, 1] == arrivals.counts(times_s, 1.0).filled().tolist()
    assert [3, 1] == arrivals.counts(times_s, 2.0).filled().tolist()
    assert [] == arrivals.counts(times_s, 5.0).filled().tolist()
    assert [] == arrivals.counts(np.zeros(0), 1.0).filled().tolist()


@given(TIMES, st.floats(0.1, 50))
def test_counts_lose_only_the_last_bin(times_s: np.ndarray, width_s: float) -> None:
    """Arrivals would be lost in the middle of a trace."""
    found = arrivals.counts(times_s, width_s).filled()
    index = ((times_s - times_s[0]) / width_s).astype(int)

    assert (index < len(found)).sum() == found.sum()
    assert int((times_s[-1] - times_s[0]) / width_s) == len(found)


def test_dispersion_by_hand() -> None:
    """Variance would be taken over n, not n - 1, or by the square of the mean."""
    per_bin = [3, 1, 0, 2, 4, 0, 1, 1, 2, 6]  # mean 2, sum of squares about it 32
    times_s = np.array([i + (k + 0.5) / 10 for i, n in enumerate(per_bin) for k in range(n)] + [10.2])
    times_s[0] = 0.0

    assert 32 / 9 / 2 == pytest.approx(arrivals.dispersion(times_s, 1.0))
    assert arrivals.dispersion(times_s, 2.0) is None
    assert np.var(per_bin, ddof=1) / 2 == pytest.approx(arrivals.spread(np.array(per_bin)))


def test_dispersion_of_nothing() -> None:
    """A trace with one stamp would divide by zero."""
    assert arrivals.dispersion(np.zeros(5), 1.0) is None
    assert arrivals.dispersion(np.zeros(0), 1.0) is None
    assert arrivals.spread(np.zeros(20)) is None


def test_poisson_has_dispersion_one_at_every_width() -> None:
    """The line called "Poisson 1" would not be where Poisson arrivals are; batches of two have dispersion 2."""
    times_s = poisson(20.0, 200_000, seed=1)
    twos = np.repeat(poisson(10.0, 100_000, seed=2), 2)

    assert np.ones(3) == pytest.approx(arrivals.dispersion_curve(times_s, [0.5, 1, 5]), rel=0.06)
    assert 2 * np.ones(3) == pytest.approx(arrivals.dispersion_curve(twos, [0.5, 1, 5]), rel=0.06)


def test_a_curve_says_what_it_does_not_know() -> None:
    """A width with too few bins would look like a regular stream."""
    curve = arrivals.dispersion_curve(np.arange(0, 101.0), [1.0, 10.0, 20.0])

    assert [0.0, 0.0] == curve[:2].tolist()
    assert math.isnan(curve[2])


def test_distance_of_curves_by_hand() -> None:
    """A factor of two everywhere would not be the distance 1."""
    curve = np.array([1.0, 2.0, 4.0])

    assert 1.0 == arrivals.curve_distance(2 * curve, curve)
    assert 1.0 == arrivals.curve_distance(curve / 2, curve)
    assert math.sqrt(2) == pytest.approx(arrivals.curve_distance(np.array([4.0, 2, 4]), np.array([1, 2, math.nan])))
    assert math.isnan(arrivals.curve_distance(np.array([math.nan, 0.0]), np.array([1.0, 1.0])))


def test_autocorrelation_by_hand() -> None:
    """The lag would be off by one, or the sum over fewer terms taken as the whole."""
    values = np.array([1.0, -1.0] * 6)

    assert -11 / 12 == pytest.approx(arrivals.autocorrelation(values))
    assert 10 / 12 == pytest.approx(arrivals.autocorrelation(values, 2))
    assert arrivals.autocorrelation(np.ones(50)) is None
    assert arrivals.autocorrelation(values[:10]) is None
    assert arrivals.autocorrelation(np.zeros(0)) is None


def test_cv_of_gaps_by_hand() -> None:
    """Gaps 1, 2 and 3 s have mean 2 and standard deviation 1."""
    assert 0.5 == arrivals.gap_cv(np.array([0.0, 1.0, 3.0, 6.0]))
    assert 0.0 == arrivals.gap_cv(np.arange(10.0))
    assert arrivals.gap_cv(np.array([1.0, 2.0])) is None
    assert arrivals.gap_cv(np.zeros(10)) is None


def test_cv_inside_windows_ignores_the_rate_between_them() -> None:
    """A rate that changes by the hour would look like a heavy-tailed gap law."""
    slow, fast = poisson(1.0, 1000, seed=3), poisson(20.0, 20_000, seed=4)
    times_s = np.concatenate((slow, slow[-1] + fast))
    inside = arrivals.window_cvs(times_s, 100.0)

    assert 2 < arrivals.gap_cv(times_s)
    assert 1.0 == pytest.approx(np.median(inside), abs=0.1)
    assert 20 == pytest.approx(len(inside), abs=1)
    assert 0 == len(arrivals.window_cvs(np.zeros(0), 1.0))
    assert 0 == len(arrivals.window_cvs(np.arange(20.0), 5.0))  # five gaps a window are too few


def test_distance_by_hand() -> None:
    """The distance of equal series would not be 0, that of disjoint ones not 1."""
    ones = np.ones(3)

    assert 0.0 == arrivals.distance(ones, ones)
    assert 1.0 == arrivals.distance(ones, 10 * ones)
    assert 1 / 3 == pytest.approx(arrivals.distance(ones, np.array([1.0, 1.0, 8.0])))


def ticks(step_s: float, count: int, each: int, seed: int = 5) -> np.ndarray:
    """About `each` arrivals on ticks that are up to a thousandth longer or shorter, some of them empty."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(step_s * (1 + rng.integers(-1, 2, count) / 1000))
    return np.repeat(at_s, rng.poisson(each, count))


@pytest.mark.parametrize("step_s", [0.5, 1.0, 3.0])
def test_ticks_are_found(step_s: float) -> None:
    """Stamps that were batched by the recorder would pass as bursts of traffic."""
    times_s = ticks(step_s, 400, 3)

    assert step_s == pytest.approx(arrivals.tick_s(times_s), rel=0.002)


@pytest.mark.parametrize("times_s", [poisson(5.0, 2000, seed=6), np.arange(500.0), np.zeros(100), np.zeros(0)])
def test_other_stamps_have_no_ticks(times_s: np.ndarray) -> None:
    """Exact stamps, or regular ones, would be called a grid and their gaps left out."""
    assert arrivals.tick_s(times_s) is None


def test_arrivals_per_tick_do_not_drift() -> None:
    """After an hour the counts of two ticks would run together."""
    times_s = ticks(3.0, 2000, 4)
    stamps, each = np.unique(times_s, return_counts=True)
    found = arrivals.per_tick(times_s, arrivals.tick_s(times_s))

    assert each.tolist() == found[found > 0].tolist()
    assert round((stamps[-1] - stamps[0]) / 3.0) + 1 == len(found)
    assert [2, 0, 1] == arrivals.per_tick(np.array([7.0, 7.0, 13.0]), 3.0).tolist()
    assert [] == arrivals.per_tick(np.zeros(0), 3.0).tolist()


def test_a_long_span_takes_no_memory_of_its_own() -> None:
    """Sixty rows whose stamps were nanoseconds taken for seconds took 162 GiB: a bin for every second."""
    times_s = np.arange(60) * 3.6e8

    assert 59 * 3.6e8 == arrivals.counts(times_s, 1.0).bins
    assert 1.0 == pytest.approx(arrivals.dispersion(times_s, 1.0))
    assert 0.0 == pytest.approx(arrivals.autocorrelation(arrivals.counts(times_s, 1.0)), abs=1e-6)
    assert 0 == len(arrivals.window_cvs(times_s, 300.0))


@given(st.lists(st.integers(0, 5), min_size=14, max_size=60), st.integers(1, 3))
def test_counts_of_occupied_bins_give_the_same_statistics_as_all_bins(per_bin: list[int], lag: int) -> None:
    """Empty bins would count for nothing, or twice."""
    values = np.array(per_bin)
    centred = values - values.mean()
    spread, memory = arrivals.spread(values), arrivals.autocorrelation(values, lag)

    assert spread == (pytest.approx(values.var(ddof=1) / values.mean()) if values.any() else None)
    if np.ptp(values):
        assert memory == pytest.approx(centred[:-lag] @ centred[lag:] / (centred @ centred), abs=1e-9)
    else:
        assert memory is None
