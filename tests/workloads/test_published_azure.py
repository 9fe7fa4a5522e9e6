"""The `azure` arrivals against the Azure 2023 conversation trace (traces B1 to B5)."""

import json
import re
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest

import fit_azure
from harness.api import Arrivals
from harness.registry import make
from harness.stats import arrivals as stats_arrivals
from workloads import traces
from workloads.arrivals._exact import Conditional
from workloads.arrivals._services import Component, LogRate
from workloads.catalog import load
from workloads.mixed import Mixed

SEEDS = range(20)


@pytest.fixture
def real(shared_data: Path) -> np.ndarray:
    return np.asarray(traces.read(str(shared_data / fit_azure.TRACE)).at_s)


def until(arrivals: Arrivals, end_s: float, seed: int) -> np.ndarray:
    """(N,) arrival times before `end_s`."""
    times = arrivals.times(np.random.default_rng(seed))
    return np.fromiter(takewhile(lambda at_s: at_s < end_s, times), float)


def passed(spec: str, real: np.ndarray) -> set[str]:
    """Which of B1 to B5 arrivals pass, over 20 hours of different seeds."""
    drawn = [until(make("arrivals", spec), float(real[-1]), seed) for seed in SEEDS]
    curve = np.median([stats_arrivals.dispersion_curve(times) for times in drawn], axis=0)
    at = dict(zip(stats_arrivals.WIDTHS_S, curve.tolist(), strict=True))
    memory = np.median([stats_arrivals.autocorrelation(stats_arrivals.counts(times, 10.0)) for times in drawn])
    spread = np.median([np.median(stats_arrivals.window_cvs(times, 300.0)) for times in drawn])
    gaps = np.median([stats_arrivals.distance(np.sort(np.diff(times)), np.sort(np.diff(real))) for times in drawn])
    found = {
        "B1": stats_arrivals.curve_distance(curve, stats_arrivals.dispersion_curve(real)) <= 0.5,
        "B2": 1.2 <= at[1.0] <= 1.6 and 2.9 <= at[10.0] <= 4.9 and 11 <= at[60.0] <= 23,
        "B3": 0.50 <= memory <= 0.80,
        "B4": 1.00 <= spread <= 1.10,
        "B5": gaps <= 0.08,
    }
    return {name for name, good in found.items() if good}


def test_azure_arrivals_are_as_bursty_as_the_trace(real: np.ndarray) -> None:
    """If this failed, `azure` would be a name for something else."""
    assert {"B1", "B2", "B3", "B4", "B5"} == passed("azure", real)


def test_shipped_figures_are_what_the_fit_gives(shared_data: Path) -> None:
    """If this failed, it would be unknown where the three numbers come from."""
    shipped = json.loads((fit_azure.FIGURES / "azure.json").read_text())

    assert shipped == fit_azure.figures(shared_data)


def test_the_fit_finds_the_process_that_drew_the_data() -> None:
    """If this failed, the method would be a way to write down numbers, and not an estimate."""
    rng = np.random.default_rng(7)
    truth = LogRate((Component(0.3, 100.0),), 1.0)
    gaps = rng.spawn(1)[0]
    times = np.fromiter(islice(truth.times(8.0, lambda n: gaps.gamma(2.0, 0.5, n), rng), 200_000), float)
    found = fit_azure.fit_rate(times, fit_azure.gap_shape(times))

    assert 2.0 == pytest.approx(fit_azure.gap_shape(times), rel=0.1)
    assert 0.3 == pytest.approx(found.sd, rel=0.2)
    assert 100.0 == pytest.approx(found.tau_s, rel=0.4)


@pytest.mark.parametrize("components", [((0.5, 60.0),), ((0.4, 300.0), (0.3, 5.0), (0.0, 1.0))])
def test_random_rates_have_mean_one_and_the_stated_covariance(components: tuple[tuple[float, float], ...]) -> None:
    """If this failed, a fitted rate would be drawn with another mean or another memory than it was fitted with."""
    law = LogRate(tuple(Component(*part) for part in components), 2.0)
    factors = np.concatenate(list(islice(law.factors(np.random.default_rng(3)), 400)))
    lags = np.array([0, 1, 5, 30, 200])
    seen = [float(np.mean((factors[: len(factors) - k] - 1) * (factors[k:] - 1))) for k in lags]

    assert 1.0 == pytest.approx(factors.mean(), abs=0.01)
    np.testing.assert_allclose(law.covariance(2.0 * lags), seen, rtol=0.1, atol=0.01)


def test_another_rate_keeps_the_ups_and_downs_and_the_local_gaps() -> None:
    """If this failed, --rate would change how bursty the traffic is, and not only how much of it there is."""
    slow, fast = (until(make("arrivals", f"azure:{rate}"), 4000.0, seed=3) for rate in (20, 60))
    per_minute = [stats_arrivals.counts(times, 60.0).filled()[:60] for times in (slow, fast)]

    assert 3.0 == pytest.approx(len(fast) / len(slow), rel=0.02)
    assert np.corrcoef(*per_minute)[0, 1] > 0.9
    assert np.median(stats_arrivals.window_cvs(slow, 60.0)) == pytest.approx(
        np.median(stats_arrivals.window_cvs(fast, 60.0)), rel=0.03
    )


@pytest.mark.parametrize(
    ("components", "step_s", "words"),
    [(((-0.1, 1.0),), 1.0, "sd of a component"), (((0.1, 0.0),), 1.0, "tau_s"), (((0.1, 1.0),), 0.0, "step_s")],
)
def test_impossible_rates_are_refused(components: tuple[tuple[float, float], ...], step_s: float, words: str) -> None:
    """If this failed, a wrong model file would end in NaN times."""
    with pytest.raises(ValueError, match=words):
        LogRate(tuple(Component(*part) for part in components), step_s)


BANDS = {10.0: (1.4, 3.3), 60.0: (3.5, 12.2)}  # dispersion of the trace thinned to 4 requests/s, in 20 minutes of it


@pytest.mark.nightly
def test_twenty_minutes_have_the_requested_rate_and_the_dispersion_of_the_trace() -> None:
    """If this failed, a run of minutes would have another rate than the requested one, or none of the ups and downs."""
    made = make("arrivals", "azure:over=20min", rate_rps=4.0)
    drawn = [until(made, 1200.0, seed) for seed in range(100)]
    inside = [
        all(
            low <= (stats_arrivals.spread(np.histogram(times, np.arange(0, 1201, width))[0]) or 0) <= high
            for width, (low, high) in BANDS.items()
        )
        for times in drawn
    ]

    assert sum(inside) >= 80
    assert max(abs(len(times) / 4800 - 1) for times in drawn) <= 0.05


@pytest.mark.parametrize("spec", ["azure", "burstgpt", "burstgpt:api", "burstgpt:conversation", "burstgpt:mode=steady"])
@pytest.mark.parametrize(("rate_rps", "span_s"), [(1.0, 300.0), (40.0, 300.0), (10.0, 3600.0)])
def test_every_window_has_the_requested_rate(spec: str, rate_rps: float, span_s: float) -> None:
    """If this failed, the rate would be exact only in the case that was tried first."""
    made = make("arrivals", spec, rate_rps=rate_rps)
    assert isinstance(made, Conditional)
    times = until(made.for_run(span_s), 2 * span_s, seed=5)

    assert rate_rps * span_s == pytest.approx(np.searchsorted(times, span_s), rel=0.03)
    assert rate_rps * span_s == pytest.approx(len(times) - np.searchsorted(times, span_s), rel=0.03)
    assert np.all(np.diff(times) >= 0)


def test_only_runs_of_minutes_have_an_exact_rate_and_only_where_it_is_wanted() -> None:
    """If this failed, a month would have no campaigns, or nothing could bring back the rate that is drawn."""
    for spec in ("azure", "burstgpt"):
        drawn = make("arrivals", f"{spec}:mean=long-run")
        assert isinstance(drawn, Conditional)
        assert drawn == drawn.for_run(600.0)
        assert make("arrivals", spec) == make("arrivals", spec).for_run(86_400.0)
    loaded = load("chatbot", arrivals="azure", rate_rps=4.0, requests=1200)
    assert "over_s=300" in loaded.arrivals_text


@pytest.mark.parametrize(
    ("spec", "rate_rps", "span_s"),
    [
        ("azure", 4.0, 660.0),
        ("azure:mean=long-run", 4.0, 1200.0),
        ("burstgpt:mean=long-run,mode=steady", 4.0, 3600.0),
        pytest.param("azure", 20.0, 1200.0, marks=pytest.mark.nightly),
        pytest.param("burstgpt", 1.0, 300.0, marks=pytest.mark.nightly),
        pytest.param("burstgpt", 4.0, 1200.0, marks=pytest.mark.nightly),
    ],
)
def test_runs_show_what_is_expected_of_them(spec: str, rate_rps: float, span_s: float) -> None:
    """If this failed, a report would hold a run to a band that its arrivals do not have."""
    loaded = load("chatbot", arrivals=spec, rate_rps=rate_rps, duration_s=span_s)
    assert isinstance(loaded.workload, Mixed)
    assert loaded.expected is not None
    text = loaded.expected()
    made, rate = loaded.workload.arrivals, re.match(r"([\d.]+) to ([\d.]+) req/s", text)
    drawn = [until(made, span_s, seed) for seed in range(20)]
    bands = [(low, high, [stats_arrivals.dispersion(times, float(width)) or 0 for times in drawn])
             for low, high, width in re.findall(r"([\d.e+]+) to ([\d.e+]+) in (\d+) s", text)]  # fmt: skip
    assert rate is not None
    bands.append((rate[1], rate[2], [len(times) / span_s for times in drawn]))

    assert len(bands) == 1 + (span_s > 100) + (span_s > 600)
    for low, high, found in bands:
        assert np.mean([0.98 * float(low) <= x <= 1.02 * float(high) for x in found]) >= 0.7
        assert np.mean([x > (float(low) + float(high)) / 4 for x in found]) >= 0.1  # not only wide


def test_what_is_expected_of_mixes_and_sessions_is_that_of_all_that_arrives(tmp_path: Path) -> None:
    """If this failed, the band of one class would be held against the run of all; one of Poisson traffic is no news."""
    file = tmp_path / "mix.toml"
    one = '[[class]]\nname = "{}"\nshare = 1\nlengths = "fixed:prompt=8,output=8"\narrivals = "{}"\n'
    file.write_text("about = 'Two.'\nrate_rps = 4.0\n" + one.format("a", "azure") + one.format("b", "poisson"))
    mixed = load(str(file), duration_s=120.0)
    sessions = load("chatbot", arrivals="azure", sessions="fixed:turns=3,think=1s", rate_rps=6.0, duration_s=120.0)
    poisson = load("chatbot", rate_rps=4.0, duration_s=120.0)
    texts = [loaded.expected() if loaded.expected else None for loaded in (mixed, sessions, poisson)]

    assert texts[0] is not None and re.match(r"3\.\d* to 4\.\d* req/s, dispersion [\d.]+ to [\d.]+ in 10 s$", texts[0])
    assert texts[1] is not None and texts[1].startswith("1.98 to 2.02 sessions/s")
    assert texts[2] is None


@pytest.mark.parametrize("arrivals", ["azure:rate=0.04,over=10s", "burstgpt:rate=0.04,over=10s"])
def test_windows_of_less_than_one_request_are_not_all_empty(arrivals: str) -> None:
    """A run of few requests of a mix of services never ended: none came in any window of the rarer one."""
    rates = [len(until(make("arrivals", arrivals), 2_000.0, seed)) / 2_000 for seed in range(5)]

    assert 0.028 <= np.mean(rates) <= 0.05


def test_a_window_shorter_than_a_step_of_the_rate_is_not_drawn_a_thousand_times() -> None:
    """`--arrivals azure --duration 0.001` and `burstgpt --requests 3 --rate 1000` took minutes to begin."""
    rng = np.random.default_rng(0)

    factors = LogRate((Component(0.2, 285.0),), 1.0).window(0.5, (0.9, 1.1), rng)

    assert factors.tolist() == [1.0]
    assert rng.random() == np.random.default_rng(0).random()
