"""The `burstgpt` arrivals within a day (traces C1 to C4), and what their options mean."""

import json
import math
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
from scipy import special

import fit_burstgpt
from harness.api import Arrivals
from harness.registry import make
from harness.stats import arrivals as stats_arrivals
from workloads.arrivals import _operational
from workloads.arrivals._services import Api, read_figures

SEEDS = range(20)
FIGURE_S = 54 * 1200.0  # what figure 6 shows of a day
WINDOW_S = 1200.0
API = {"C1", "C2", "C3"}
PUBLISHED = {10.0: 6.1, 60.0: 15.1, 1200.0: 198.0}  # index of dispersion of the API service


def until(arrivals: Arrivals, end_s: float, seed: int) -> np.ndarray:
    """(N,) arrival times before `end_s`."""
    times = arrivals.times(np.random.default_rng(seed))
    return np.fromiter(takewhile(lambda at_s: at_s < end_s, times), float)


def api_passed(spec: str, factor: float) -> set[str]:
    """Which of C1 to C3 arrivals pass, over 20 days of different seeds; C1 within `factor`."""
    drawn = [until(make("arrivals", spec), FIGURE_S, seed) for seed in SEEDS]
    per_minute = [stats_arrivals.counts(times, 60.0).filled() for times in drawn]
    spreads = np.concatenate([stats_arrivals.window_cvs(times, WINDOW_S) for times in drawn])
    low, middle, high = np.quantile(spreads, [0.1, 0.5, 0.9])
    dispersions = {width: np.median([stats_arrivals.dispersion(t, width) for t in drawn]) for width in PUBLISHED}
    after_1, after_5 = (np.median([stats_arrivals.autocorrelation(c, lag) for c in per_minute]) for lag in (1, 5))
    found = {
        "C1": all(1 / factor <= dispersions[width] / real <= factor for width, real in PUBLISHED.items()),
        "C2": 0.9 <= low <= 1.15 and 1.3 <= middle <= 1.9 and 3.0 <= high <= 5.5,
        "C3": 0.45 <= after_1 <= 0.8 and 0.3 <= after_5 <= 0.65,
    }
    return {name for name, good in found.items() if good}


def conversation_passed(spec: str) -> bool:
    """Whether arrivals pass C4, over 20 days of different seeds."""
    drawn = [until(make("arrivals", spec), FIGURE_S, seed) for seed in SEEDS]
    minute, window = (
        np.median([stats_arrivals.dispersion(times, width) for times in drawn]) for width in (60.0, 1200.0)
    )
    spread = np.median([np.median(stats_arrivals.window_cvs(times, WINDOW_S)) for times in drawn])
    return bool(1.2 <= minute <= 1.9 and 4 <= window <= 10 and 0.95 <= spread <= 1.15)


@pytest.mark.parametrize(
    ("spec", "factor"), [("burstgpt:api,mode=figure6", 1.5), ("burstgpt:api,mode=steady,rate=0.557", 2)]
)
def test_api_arrivals_are_as_bursty_as_the_day_of_figure_6(spec: str, factor: float) -> None:
    """If this failed, neither the replayed table nor the process made from it would have the bursts of the service."""
    assert api_passed(spec, factor) == API


def test_gaps_inside_campaigns_spread_as_in_figure_6() -> None:
    """If this failed, the month would come at the price of the day: one process has to have both."""
    days = [until(make("arrivals", "burstgpt:api"), 5 * 86_400.0, seed) for seed in SEEDS]
    low, middle, high = np.quantile(
        np.concatenate([stats_arrivals.window_cvs(t, WINDOW_S) for t in days]), [0.1, 0.5, 0.9]
    )

    assert 0.9 <= low <= 1.15
    assert 1.3 <= middle <= 1.9
    assert 3.0 <= high <= 5.5


def test_conversation_arrivals_are_nearly_poisson_along_a_daily_curve() -> None:
    """Traces C4: if this failed, people who chat would come in bursts, or without a day."""
    assert conversation_passed("burstgpt:conversation,mode=figure6")
    assert conversation_passed("burstgpt:conversation,start_h=8,rate=0.0192")  # as many as the figure's day has


def test_shipped_figures_are_what_the_tables_give(shared_data: Path) -> None:
    """If this failed, it would be unknown where the parameters come from."""
    shipped = json.loads((fit_burstgpt.FIGURES / "burstgpt.json").read_text())

    assert shipped == json.loads(json.dumps(fit_burstgpt.figures(shared_data)))


@pytest.mark.nightly
def test_campaigns_carry_the_stated_mean_over_the_years() -> None:
    """If this failed, --rate would not be the long-run rate of the service."""
    api = Api(**read_figures()["api"])
    levels = list(islice(api.levels(2.0, 12.0, np.random.default_rng(4)), 200_000))
    seconds, rates = np.array(levels).T
    factors = np.array(list(islice(api.windows(np.random.default_rng(5)), 100_000)))

    assert 2.0 == pytest.approx(seconds @ rates / seconds.sum(), rel=0.04)
    assert 1.0 == pytest.approx(factors[:, 0].mean(), rel=0.01)
    active = api.campaigns_per_day * api.campaign_h / 24  # on average, with a swing that durations smooth
    swing = api.begin_swing / math.hypot(1, 2 * math.pi * api.campaign_h / 24)
    assert seconds[rates == 0].sum() / seconds.sum() == pytest.approx(
        math.exp(-active) * special.i0(active * swing), rel=0.05
    )


def test_campaigns_begin_by_day() -> None:
    """A month would have no hour of the day but that of its chats, a tenth of its requests."""
    api = Api(**read_figures()["api"])
    seconds, rates = np.array(list(islice(api.levels(1.0, 0.0, np.random.default_rng(7)), 40_000))).T
    at_h = np.concatenate([[0.0], np.cumsum(seconds[:-1])]) / 3600
    begins_h = at_h[1:][np.diff(rates) > 0] % 24
    turn = np.exp(2j * np.pi * begins_h / 24).mean()

    assert api.begin_swing == pytest.approx(2 * abs(turn), abs=0.04)
    assert api.begin_peak_h == pytest.approx(np.angle(turn) * 24 / (2 * np.pi) % 24, abs=0.3)


def test_windows_have_the_law_and_the_memory_of_the_figure() -> None:
    """If this failed, bursts would come and go faster or slower than in the figure, or be others."""
    api = Api(**read_figures()["api"])
    factors, shapes = np.log(np.array(list(islice(api.windows(np.random.default_rng(6)), 30_000)))).T
    shown = np.log(np.quantile(api.shapes, [0.1, 0.5, 0.9]))

    np.testing.assert_allclose(shown, np.quantile(shapes, [0.1, 0.5, 0.9]), atol=0.15)
    assert 0.795 == pytest.approx(stats_arrivals.autocorrelation(shapes), abs=0.02)
    assert 0.37 == pytest.approx(np.corrcoef(shapes, factors)[0, 1], abs=0.03)


@pytest.mark.parametrize("spec", ["burstgpt", "burstgpt:api", "burstgpt:conversation", "burstgpt:api,mode=steady"])
def test_a_run_of_minutes_has_about_the_requested_rate(spec: str) -> None:
    """If this failed, a short run would replay the idle head of the trace, or a flood."""
    made = make("arrivals", spec, rate_rps=4.0)
    counts = [len(until(made, 600.0, seed)) for seed in range(30)]

    assert 0.6 < np.median(counts) / 2400 < 1.5
    assert min(counts) > 0


def test_the_night_is_quiet_and_the_weekend_quieter() -> None:
    """If this failed, the start of a run would not be the hour and day that was requested."""

    def drawn(text: str) -> int:
        return len(until(make("arrivals", f"burstgpt:conversation,rate=1,{text}"), 3600.0, seed=1))

    assert drawn("start_h=4") < drawn("start_h=16") / 10
    assert drawn("start_day=5,start_h=16") == pytest.approx(0.6 * drawn("start_h=16"), rel=0.1)
    assert drawn("start_day=6,start_h=23.5") < 3600


def test_both_services_keep_their_shares_and_their_own_arrivals() -> None:
    """If this failed, the mix of services would not be the one that was requested."""
    both = make("arrivals", "burstgpt:rate=2,api_share=0.25,mode=steady")
    times = until(both, 40_000.0, seed=2)

    assert 2.0 == both.mean_rate_rps
    assert 2.0 == pytest.approx(len(times) / 40_000, rel=0.15)
    assert np.all(np.diff(times) >= 0)


def test_another_rate_keeps_the_campaigns_and_the_local_gaps() -> None:
    """If this failed, --rate would change how bursty the traffic is, and not only how much of it there is."""
    slow, fast = (until(make("arrivals", f"burstgpt:api,rate={rate}"), 2 * 86_400.0, seed=3) for rate in (0.5, 2))
    per_hour = [np.bincount((times // 3600).astype(int), minlength=48) for times in (slow, fast)]
    spreads = [np.median(stats_arrivals.window_cvs(times, WINDOW_S)) for times in (slow, fast)]

    assert 4.0 == pytest.approx(len(fast) / len(slow), rel=0.1)
    assert np.corrcoef(*per_hour)[0, 1] > 0.95
    assert 1.0 == pytest.approx(spreads[1] / spreads[0], rel=0.15)


def test_a_grain_gives_whole_seconds_like_the_published_stamps() -> None:
    """If this failed, a test against the file would compare stamps of another kind."""
    fine, coarse = (until(make("arrivals", f"burstgpt:api,rate=2{more}"), 3000.0, 1) for more in ("", ",grain=1"))

    np.testing.assert_array_equal(np.floor(fine), coarse)


def test_published_rates_are_those_of_the_first_month() -> None:
    """If this failed, no rate given would mean an unpublished rate."""
    both, api, conversation = (make("arrivals", f"burstgpt:{name}") for name in ("both", "api", "conversation"))

    assert 0.2775 == both.mean_rate_rps
    assert both.mean_rate_rps == pytest.approx(api.mean_rate_rps + conversation.mean_rate_rps)
    assert 0.896 == pytest.approx(api.mean_rate_rps / both.mean_rate_rps)
    assert 36_106 / FIGURE_S == pytest.approx(make("arrivals", "burstgpt:api,mode=figure6").mean_rate_rps, rel=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("law", [_operational.gamma, _operational.weibull])
@pytest.mark.parametrize("shape", [0.2, 0.5, 2.0])
def test_a_process_that_was_running_has_no_burst_at_its_start(law: Callable[..., object], shape: float) -> None:
    """If this failed, every run with a bursty law would begin with an artificial burst."""

    def begun(rng: np.random.Generator, *, running: bool) -> int:
        times, gaps = np.zeros(1), law(shape, rng, running=running)
        while times[-1] < 5:
            times = np.append(times, times[-1] + np.cumsum(gaps(64)))
        return int(np.searchsorted(times, 5.0)) - 1

    counts = [begun(np.random.default_rng(seed), running=True) for seed in range(4000)]
    ordinary = [begun(np.random.default_rng(seed), running=False) for seed in range(4000)]

    assert abs(np.mean(counts) - 5) < 4 * np.std(counts) / math.sqrt(len(counts))
    assert shape > 1 or np.mean(ordinary) > 5.3


def test_an_unknown_service_is_refused_in_code_too() -> None:
    """If this failed, a wrong name in Python would end in a KeyError."""
    with pytest.raises(ValueError, match="service must be one of"):
        type(make("arrivals", "burstgpt"))("chat")
