"""A month of `burstgpt` arrivals by the hour (traces D1 to D4)."""

import csv
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.registry import make
from harness.stats import arrivals
from harness.stats.arrivals import Law, judged
from workloads.arrivals._services import read_figures
from workloads.catalog import load

SEEDS = range(20)
HOURS = 744  # of the published month
MONTH = {"D1", "D2", "D3"}


def by_hour(spec: str, hours: int, seed: int) -> np.ndarray:
    """(hours,) arrivals."""
    times, found = make("arrivals", spec).times(np.random.default_rng(seed)), np.zeros(hours)
    while True:
        hour = np.fromiter(islice(times, 65_536), float) // 3600
        found += np.bincount(hour[hour < hours].astype(int), minlength=hours)
        if hour[-1] >= hours:
            return found


def dispersion(values: np.ndarray) -> float:
    return float(values.var(ddof=1) / values.mean())


def share_of_busiest(hours: np.ndarray, share: float) -> float:
    return float(np.sort(hours)[::-1][: round(share * len(hours))].sum() / hours.sum())


def passed(months: Iterable[np.ndarray]) -> set[str]:
    """Which of D1 to D3 hold for the medians over months (hours,)."""
    rows = [
        (
            share_of_busiest(month, 0.01),
            share_of_busiest(month, 0.1),
            arrivals.autocorrelation(month, 1),
            arrivals.autocorrelation(month, 24),
            dispersion(month),
            dispersion(month.reshape(-1, 6).sum(axis=1)) / dispersion(month),
        )
        for month in months
    ]
    top, busy, after_1, after_24, spread, ratio = np.median(np.array(rows), axis=0)
    found = {
        "D1": 0.09 <= top <= 0.40 and 0.45 <= busy <= 0.88,
        "D2": 0.4 <= after_1 <= 0.9 and after_24 < 0.4,
        "D3": 1500 <= spread <= 35_000 and 2.0 <= ratio <= 4.9,
    }
    return {name for name, good in found.items() if good}


@pytest.fixture
def real(shared_data: Path) -> np.ndarray:
    with (shared_data / "traces/burstgpt/BurstGPT_1.hourly_days00-30.csv").open() as file:
        return np.array([float(row["requests"]) for row in csv.DictReader(file)])


@pytest.mark.nightly
def test_a_month_of_both_services_is_as_uneven_as_the_published_one() -> None:
    """If this failed, long runs would have no campaigns: neither quiet days nor hours that carry a week."""
    assert passed(by_hour("burstgpt", HOURS, seed) for seed in SEEDS) == MONTH


@pytest.mark.nightly
def test_hours_remember_the_day_before(real: np.ndarray) -> None:
    """If this failed, a month would have no quiet hours: roots of counts weigh campaigns less."""
    months = [by_hour("burstgpt:start_h=0", HOURS, seed) for seed in SEEDS]
    day_before = [arrivals.autocorrelation(np.log1p(month), 24) for month in months]
    low, high = np.quantile([arrivals.autocorrelation(np.sqrt(month), 24) for month in months], [0.05, 0.95])

    assert arrivals.autocorrelation(np.log1p(real), 24) == pytest.approx(np.median(day_before), abs=0.08)
    assert low < arrivals.autocorrelation(np.sqrt(real), 24) < high + 0.02


def test_conversation_has_the_daily_curve_of_figure_4() -> None:
    """Traces D4: if this failed, people who chat would not sleep, or not have lunch."""
    figure = np.array(read_figures()["conversation"]["requests_per_hour"])
    found = []
    for seed in range(5):
        days = by_hour("burstgpt:conversation,start_h=0", 24 * 28, seed).reshape(28, 24)
        medians = np.median(days, axis=0)
        found.append((stats.spearmanr(medians, figure).statistic, medians.max() / medians.min()))
    alike, ratio = np.median(found, axis=0)

    assert alike >= 0.95
    assert 15 <= ratio <= 60


@pytest.mark.parametrize(
    "spec", ["burstgpt:api", "burstgpt", "burstgpt:conversation,start_h=16", "burstgpt:api,mode=steady", "azure"]
)
def test_a_short_run_is_not_accused_of_another_rate(spec: str) -> None:
    """If this failed, every run of minutes would warn of a rate that is random by design, or no long one would."""
    made = make("arrivals", spec)
    law = Law(made.mean_rate_rps, settles_s=made.settles_s)
    short = np.fromiter(islice(made.times(np.random.default_rng(0)), 300), float)
    long = np.concatenate([short, short[-1] + made.settles_s + np.arange(1000.0)])

    assert judged(short, law).rate_z is None
    assert judged(long, law).rate_z is not None
    assert made.settles_s == load("chatbot", arrivals=spec).settles_s
