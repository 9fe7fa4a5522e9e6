"""Fitted generators beside real traces: burstiness at every scale, not only the law of the gaps."""

import csv
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from harness.stats import arrivals
from workloads import traces
from workloads.fit import command

SEEDS = range(20)
AZURE = "traces/azure2023/AzureLLMInferenceTrace_conv.csv"
FIGURE_6 = "traces/burstgpt/paper_figures/fig6_gamma_per_20min.csv"


def generated(model, **options):
    return pa.concat_tables(command.tables(model, **options))


@cache
def azure(path):
    return traces.read(str(path))


@cache
def draws(path, mode):
    """Arrival times of 20 draws, as long as the trace, of the model fitted to it."""
    trace = azure(path)
    model = command.fit(trace, mode=mode, seeds=0)
    return [drawn(model, float(trace.at_s[-1]), seed) for seed in SEEDS]


def drawn(model, span_s, seed):
    return generated(model, duration_s=span_s, seed=seed)["at_s"].to_numpy()


def median(statistic, series):
    return np.median([statistic(at_s) for at_s in series], axis=0)


def off_by(path, series):
    """Distance of the median dispersion curve from that of the trace, 0.5 to 120 s."""
    return arrivals.curve_distance(
        median(arrivals.dispersion_curve, series), arrivals.dispersion_curve(azure(path).at_s)
    )


def memory(at_s):
    return arrivals.autocorrelation(arrivals.counts(at_s, 10.0))


def inside(at_s):
    return np.median(arrivals.window_cvs(at_s, 300.0))


def in_band(values, *bands):
    return all(low <= value <= high for value, (low, high) in zip(values, bands, strict=True))


MODES = pytest.mark.parametrize("mode", ["parametric", "rate-following"])


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "most"), [("parametric", 0.5), ("rate-following", 0.3)])
def test_b1_the_dispersion_curve_of_azure_comes_back(shared_data, mode, most):
    """A benchmark with this traffic would see other queues than the real service had."""
    assert off_by(shared_data / AZURE, draws(shared_data / AZURE, mode)) <= most


@pytest.mark.nightly
@MODES
def test_b2_counts_are_as_uneven_at_1_10_and_60_s_as_in_azure(shared_data, mode):
    """Bursts would be missing at one of the time scales."""
    found = median(lambda at_s: arrivals.dispersion_curve(at_s, (1, 10, 60)), draws(shared_data / AZURE, mode))

    assert in_band(found, (1.2, 1.6), (2.9, 4.9), (11, 23)), found


@MODES
def test_b3_busy_times_last_as_long_as_in_azure(shared_data, mode):
    """Bursts would come and go at once: a server recovers between them as it could not in truth."""
    assert 0.50 <= median(memory, draws(shared_data / AZURE, mode)) <= 0.80


@MODES
def test_b4_neighbouring_gaps_vary_as_in_azure(shared_data, mode):
    """Burstiness would have been put into the gaps, where real traffic has none."""
    assert 1.00 <= median(inside, draws(shared_data / AZURE, mode)) <= 1.10


@pytest.mark.parametrize(("mode", "most"), [("parametric", 0.08), ("rate-following", 0.025)])
def test_b5_gaps_have_the_law_of_azure(shared_data, mode, most):
    """The generator would not even have the right gaps (necessary, not sufficient: Poisson has them too)."""
    gaps_s = np.sort(np.diff(azure(shared_data / AZURE).at_s))

    assert (
        median(lambda at_s: arrivals.distance(np.sort(np.diff(at_s)), gaps_s), draws(shared_data / AZURE, mode)) <= most
    )


def api_day(path, seed):
    """Arrivals of the API service of figure 6 of the BurstGPT paper: gamma gaps with parameters per 20 minutes."""
    rng = np.random.default_rng(seed)
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["service"] == "api"]
    parts = []
    for window, row in enumerate(rows):
        shape, scale_s = float(row["gamma_shape_alpha"]), float(row["gamma_scale_beta_s"])
        at_s = np.cumsum(rng.gamma(shape, scale_s, int(3000 / (shape * scale_s) + 500)))
        parts.append(window * 1200.0 + at_s[at_s < 1200])
    return np.concatenate(parts)


@pytest.mark.nightly
@MODES
@pytest.mark.parametrize("seed", [0, 1])
def test_c1_a_model_refitted_to_burstgpts_api_keeps_its_bursts(shared_data, mode, seed):
    """The service whose bursts are the heaviest, over 20 minutes, would be tamed by the fit."""
    at_s = api_day(shared_data / FIGURE_6, seed)
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(1, 999, len(at_s)), rng.integers(1, 99, len(at_s))
    table = pa.table({"at_s": at_s, "prompt_tokens": prompts, "output_tokens": outputs})
    model = command.fit(traces.Trace(table, 512, {}), mode=mode, seeds=0)
    series = [drawn(model, float(at_s[-1]), seed) for seed in SEEDS]
    found = median(lambda at_s: arrivals.dispersion_curve(at_s, (10, 60, 1200)), series)

    assert in_band(found / [6.1, 15.1, 198], *[(0.5, 2.0)] * 3), found
