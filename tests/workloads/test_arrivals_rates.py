"""Arrivals with a changing rate against what they state: rate, gap law, dispersion."""

import math
from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest
from scipy import stats

from harness.api import GapLaw
from harness.registry import make
from harness.spec import seconds
from harness.stats.arrivals import autocorrelation, counts, dispersion, window_cvs


def times(spec: str, count: int, seed: int = 1) -> np.ndarray:
    return np.fromiter(islice(make("arrivals", spec).times(np.random.default_rng(seed)), count), float)


def until(spec: str, end_s: float, seed: int = 1) -> np.ndarray:
    stream = make("arrivals", spec).times(np.random.default_rng(seed))
    return np.fromiter(takewhile(lambda t: t < end_s, stream), float)


def rate_at(member: Any, time_s: float, over_s: float = 1e-3) -> float:
    """Requests per second around `time_s`, by the stated operational time."""
    before, after = member.operational_time(np.array([time_s - over_s / 2, time_s + over_s / 2]))
    return float((after - before) / over_s)


KNOWN = [
    "ramp:from=0,to=40,over=10min",
    "ramp:from=30,to=3,over=5min,cv=2",
    "steps:levels=5/0/20,every=30s,cv=0.5",
    "spike:rate=5,factor=8,every=60s,for=5s,cv=1.5",
    "diurnal:rate=10,period=10min,weekend=0.5,start_day=4,start_h=20",
    "diurnal:rate=10,period=10min,hours=46/28/16/7/20/158/92/188/77/118/94/75,cv=0.8",
    "spike:rate=5,factor=0,at=10s,for=20s,every=30s,cv=1.3",
]


@pytest.mark.parametrize("spec", KNOWN)
def test_gaps_in_operational_time_follow_the_declared_law(spec: str) -> None:
    """If this failed, the fidelity line would accuse a schedule that is right, or pass one that is wrong."""
    member = make("arrivals", spec)
    gaps = np.diff(member.operational_time(times(spec, 20_001, seed=11)))

    assert stats.kstest(gaps, member.gap_cdf).pvalue > 0.01


@pytest.mark.parametrize("spec", ["steps:levels=1/3,every=10min,cv=0.6", "mmpp:levels=1/3,dwells=10min/10min,cv=0.6"])
def test_scaling_the_rate_keeps_the_local_gap_law(spec: str) -> None:
    """If this failed, a sweep over rates would be a sweep over burstiness too."""
    spreads = [np.median(window_cvs(until(f"{spec},rate={rate}", 40 / rate * 3600), 600 / rate)) for rate in (2, 20)]

    assert pytest.approx([0.6, 0.6], abs=0.03) == spreads


def test_bursts_come_at_the_same_times_at_every_rate() -> None:
    """If this failed, two rates of a sweep would be compared on two different stories."""
    slow, fast = (until(f"mmpp:rate={rate},levels=1/0,dwells=20s/20s", 4000) for rate in (5, 500))
    silent = np.setdiff1d(np.arange(4000), fast.astype(int))

    assert 1000 < len(silent)
    assert not np.isin(slow.astype(int), silent).any()


def mmpp_dispersion(member, width_s: float) -> float:
    """Index of dispersion of counts in bins of `width_s` seconds (`math.inf`: its limit), for cv = 1.

    The chain is reversible, so its generator has real eigenvalues -1/tau_k; c(u) is a sum of exp(-u / tau_k).
    """
    dwells_s = np.array([seconds(part, "dwells") for part in member.dwells.split("/")])
    generator = np.ones((len(dwells_s), len(dwells_s))) / (dwells_s[:, None] * (len(dwells_s) - 1))
    np.fill_diagonal(generator, -1 / dwells_s)
    root = np.sqrt(member.shares)
    falls, modes = np.linalg.eigh(root[:, None] * generator / root)
    weights = ((root * member.rates_rps) @ modes)[:-1] ** 2  # the last mode, of eigenvalue 0, is the mean
    taus_s = -1 / falls[:-1]
    seen = 1.0 if math.isinf(width_s) else 1 + taus_s / width_s * np.expm1(-width_s / taus_s)
    return float(1 + 2 / member.rate_rps * np.sum(weights * taus_s * seen))


@pytest.mark.parametrize("spec", ["mmpp:rate=20,levels=1/5,dwells=4s/2s", "mmpp:rate=30,levels=1/0/9,dwells=3s/2s/1s"])
def test_mmpp_counts_are_dispersed_as_the_formula_says(spec: str) -> None:
    """If this failed, the burstiness of such arrivals would not be the one that is sent."""
    member, at_s = make("arrivals", spec), times(spec, 800_000, seed=3)
    for width_s in (0.1, 1.0, 10.0, 60.0):
        expected, bins = mmpp_dispersion(member, width_s), at_s[-1] / width_s

        assert expected == pytest.approx(dispersion(at_s, width_s), rel=0.03 + 5 * math.sqrt(2 / bins))


def test_two_states_have_the_textbook_dispersion() -> None:
    """If this failed, the general formula would disagree with Fischer and Meier-Hellstern's."""
    member = make("arrivals", "mmpp:rate=7,levels=1/10,dwells=90s/10s")
    (low, high), (p, q), tau_s = member.rates_rps, member.shares, 9.0
    limit = 2 * (high - low) ** 2 * p * q * tau_s / 7
    for width_s in (1.0, 30.0, 1000.0):
        seen = 1 - (1 - math.exp(-width_s / tau_s)) * tau_s / width_s

        assert 1 + limit * seen == pytest.approx(mmpp_dispersion(member, width_s))
    assert 1 + limit == pytest.approx(mmpp_dispersion(member, math.inf))
    assert 7 == pytest.approx(p * low + q * high)


def test_mmpp_starts_in_any_state() -> None:
    """If this failed, every run would begin quiet, and short runs would be too quiet."""
    first_s = [until("mmpp:rate=10,levels=0/1,dwells=50s/50s", 1.0, seed).size for seed in range(200)]

    assert 0.5 == pytest.approx(np.mean(np.array(first_s) > 0), abs=0.14)


def test_bursts_of_random_length_are_dispersed_as_stated() -> None:
    """If this failed, on/off traffic would be burstier or calmer than its docstring says."""
    at_s = times("mmpp:rate=10,levels=1/0,dwells=1s/3s", 600_000, seed=4)

    assert 1 + 2 * 10 * 9 / 4 == pytest.approx(dispersion(at_s, 100.0), rel=0.2)
    assert 0.25 == pytest.approx(len(np.unique(at_s // 0.1)) / (at_s[-1] / 0.1), abs=0.05)
    assert autocorrelation(counts(at_s, 0.5)) > 0.4  # type: ignore[operator]  # there are bins enough


def test_a_gap_law_is_stated_only_where_the_rate_is_known() -> None:
    """If this failed, a correct schedule with a random rate would be reported to break its law."""
    assert not isinstance(make("arrivals", "mmpp"), GapLaw)


def test_fixed_bursts_leave_the_silence_silent() -> None:
    """If this failed, 'off' would not be off."""
    at_s = times("spike:rate=50,factor=0,at=1s,for=3s,every=4s", 20_000)

    assert np.all(at_s % 4 <= 1)
    assert 200.0 == make("arrivals", "spike:rate=50,factor=0,at=1s,for=3s,every=4s").base_rps


def test_a_ramp_climbs_in_a_line_and_stays() -> None:
    """If this failed, the rate at which a system gave in would be read off the wrong line."""
    ramp = make("arrivals", "ramp:from=1,to=21,over=100s")

    for time_s, rate_rps in ((0.5, 1.1), (50, 11), (99, 20.8), (101, 21), (1e5, 21)):
        assert rate_rps == pytest.approx(rate_at(ramp, time_s), rel=1e-6)
    assert 21 == ramp.mean_rate_rps


def test_a_ramp_to_nothing_ends() -> None:
    """If this failed, a run down to 0 requests per second would wait forever for the next."""
    at_s = times("ramp:from=50,to=0,over=60s", 10_000)

    assert len(at_s) == pytest.approx(1500, abs=4 * math.sqrt(1500))
    assert at_s[-1] <= 60
    assert 25 == make("arrivals", "ramp:from=50,to=0,over=60s").mean_rate_rps


@pytest.mark.parametrize(("then", "later_rps", "mean_rps"), [("repeat", 2, 5), ("hold", 8, 8), ("stop", 0, 5)])
def test_stairs_have_their_levels_and_what_comes_then(then: str, later_rps: float, mean_rps: float) -> None:
    """If this failed, the levels of a staircase test would not be the requested ones."""
    steps = make("arrivals", f"steps:levels=2/5/8,every=10s,then={then}")

    assert pytest.approx([2, 5, 8, later_rps]) == [rate_at(steps, t) for t in (5, 15, 25, 35)]
    assert mean_rps == steps.mean_rate_rps
    assert (len(times(f"steps:levels=2/5/8,every=10s,then={then}", 5000)) < 5000) == (then == "stop")


@pytest.mark.parametrize(("every", "base_rps"), [("", 6.0), (",every=40s", 4.0)])
def test_a_spike_multiplies_the_base_rate_and_ends(every: str, base_rps: float) -> None:
    """If this failed, recovery would be measured after a spike of another height or length."""
    spike = make("arrivals", f"spike:rate=6,factor=3,at=15s,for=10s{every}")
    at_60 = 3 * base_rps if every else base_rps

    assert base_rps == pytest.approx(spike.base_rps)
    assert pytest.approx([base_rps, 3 * base_rps, base_rps, at_60]) == [rate_at(spike, t) for t in (14, 20, 26, 60)]


@pytest.mark.parametrize("hour", [0, 3.7, 8, 16, 23])
def test_the_daily_curve_has_its_peak_its_trough_and_its_mean(hour: float) -> None:
    """If this failed, a day would be flatter or steeper than requested."""
    curve = make("arrivals", "diurnal:rate=5,ratio=9,peak_h=16")
    expected = 5 * (1 + 0.8 * math.cos(2 * math.pi * (hour - 16) / 24))

    assert expected == pytest.approx(rate_at(curve, 86400 + hour * 3600), rel=1e-3)
    assert 5 * 86400 == pytest.approx(curve.operational_time(np.array([86400.0]))[0])


def test_given_hours_stand_at_the_middle_of_their_hour() -> None:
    """If this failed, a curve read from a figure would be shifted by half an hour."""
    hours = [46, 28, 16, 7, 6.5, 5, 6.5, 5, 20, 106, 157, 158, 68, 92, 155, 184, 188, 132, 77, 101, 118, 107, 94, 75]
    curve = make("arrivals", f"diurnal:rate={np.mean(hours)},hours={'/'.join(map(str, hours))}")

    assert pytest.approx(hours, rel=1e-5) == [rate_at(curve, (h + 0.5) * 3600, 1e-2) for h in range(24)]


def test_weekends_and_the_first_day_are_where_the_calendar_says() -> None:
    """If this failed, a run that starts on Friday evening would be busy on Saturday."""
    week = make("arrivals", "diurnal:rate=6,ratio=1,weekend=0.25,start_day=4,start_h=18")
    evening, night = (rate_at(week, hour * 3600) for hour in (5, 7))
    monday_s = (6 + 48 + 1) * 3600

    assert 0.25 == pytest.approx(night / evening)
    assert evening == pytest.approx(rate_at(week, monday_s))
    assert 6 == pytest.approx(week.operational_time(np.array([7 * 86400.0]))[0] / (7 * 86400))
