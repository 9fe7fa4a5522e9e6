"""Intervals within one run cover what they should, and are refused where they cannot."""

import numpy as np
import pytest
from scipy import signal, stats

from harness.data.records import since
from harness.experiments import pool, trial
from harness.metrics import measure
from harness.metrics.objective import parse_slo
from harness.options import RunSpec
from harness.stats.within_run import Blocks, Resampled, autocorrelation, within
from harness.validity import steady_state

RUNS = 200
LEAST = 0.85


def memory(n, phi, rng):
    """Normal values with mean 10 and standard deviation 1, each remembering the share `phi` of the one before."""
    noise = rng.normal(size=n + 200) * np.sqrt(1 - phi**2)
    return signal.lfilter([1], [1, -phi], noise)[200:] + 10


def single_server(n, load, rng):
    """Times in an M/M/1 queue whose service takes 1 s on average: exponential with mean 1/(1 - load)."""
    served_s, gap_s = rng.exponential(1, n + 500), rng.exponential(1 / load, n + 500)
    steps = np.concatenate([[0.0], np.cumsum(served_s[:-1] - gap_s[1:])])
    return (steps - np.minimum.accumulate(steps) + served_s)[500:]


def covered(draw, mean, q99):
    """Share of the runs whose intervals hold the true mean and the true p99."""
    hits = np.zeros(2)
    for seed in range(RUNS):
        values = draw(np.random.default_rng(seed))
        blocks = Resampled([Blocks.draw(len(values))])
        pairs = zip((blocks.mean(values), blocks.percentile(values, 0.99)), (mean, q99), strict=True)
        hits += [low <= truth <= high for (low, high), truth in pairs]
    return hits / RUNS


@pytest.mark.parametrize("n", [600, 2000])
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.45])
def test_values_with_a_memory_are_covered(n, phi):
    """An interval for independent values would be half as wide as the truth scatters."""
    mean, p99 = covered(lambda rng: memory(n, phi, rng), 10.0, 10 + stats.norm.ppf(0.99))

    assert mean >= LEAST
    assert p99 >= LEAST


@pytest.mark.parametrize("load", [0.1, 0.25])
def test_an_idle_queue_is_covered(load):
    """The skewed times of a queue would make every interval too short."""
    true_s = 1 / (1 - load)
    mean, p99 = covered(lambda rng: single_server(2000, load, rng), true_s, -np.log(0.01) * true_s)

    assert mean >= LEAST
    assert p99 >= LEAST


@pytest.mark.parametrize("share", [0.5, 0.9, 0.98])
def test_shares_are_covered(share):
    """The interval of attainment would miss what it is for."""
    hits = 0
    for seed in range(RUNS):
        met = (np.random.default_rng(seed).random(600) < share).astype(float)
        low, high = Resampled([Blocks.draw(600)]).mean(met)
        hits += low <= share <= high

    assert hits / RUNS >= LEAST


def run_of(seed, rate_rps=1.0):
    """TTFT and attainment intervals of a simulated run far below the knee, and what was measured."""
    spec = RunSpec(
        workload="chatbot", backend="sim", latency="abc:distserve", policy="vllm-v0", rate=rate_rps, requests=1100,
        seed=seed, slo="ttft=0.15,tpot=0.1",
    )  # fmt: skip
    table = trial.simulate(spec).table
    measured = since(table, steady_state.find(table, "mser5").since_s)
    found = within(measured, parse_slo(spec.slo))
    ttft_s = measure.per_request(measure.metrics()["ttft"], measured)
    return found, float(ttft_s.mean()), float((ttft_s <= 0.15).mean())


@pytest.mark.nightly
def test_the_simulator_far_below_the_knee_is_covered():
    """The intervals that `bench run` prints would be those of a textbook and not of serving."""
    runs = [answer for _, answer in pool.of(2).map(run_of, range(30))]
    true_ttft_s = float(np.mean([mean for _, mean, _ in runs]))
    true_met = float(np.mean([met for _, _, met in runs]))
    mean = [found.metrics["ttft"].mean for found, _, _ in runs]
    attainment = [found.attainment for found, _, _ in runs]

    assert np.mean([low <= true_ttft_s <= high for low, high in mean]) >= LEAST
    assert np.mean([a.low <= true_met <= a.high for a in attainment]) >= LEAST


def test_sums_over_blocks_are_those_of_a_loop():
    """One request more in a block would shift every interval."""
    values = np.random.default_rng(1).random(123)
    blocks = Blocks.draw(123)
    picked = [i for start in blocks.starts[7] for i in range(start, start + blocks.size)][:123]

    assert (12, 11) == (blocks.size, blocks.starts.shape[1])
    assert values[picked].sum() == pytest.approx(blocks.sums(values)[7])
    assert 0 <= blocks.starts.min()
    assert blocks.starts.max() <= 123 - 12


def test_the_interval_of_a_percentile_is_that_of_its_resamples():
    """The short way over the share below it would give another interval than to draw and sort."""
    values = memory(2000, 0.3, np.random.default_rng(2))
    blocks = Blocks.draw(2000)
    rows = (blocks.starts[:, :, None] + np.arange(blocks.size)).reshape(len(blocks.starts), -1)[:, :2000]
    drawn = np.quantile(np.quantile(values[rows], 0.99, axis=1), [0.025, 0.975])

    assert drawn == pytest.approx(Resampled([blocks]).percentile(values, 0.99), abs=0.15)


def test_autocorrelation_is_that_of_the_definition():
    """The condition for an interval would be another one than is printed."""
    values = memory(20000, 0.4, np.random.default_rng(3))

    assert 0.4 == pytest.approx(autocorrelation(values), abs=0.02)
    assert autocorrelation(np.array([1.0, np.nan])) is None
    assert 0.0 == autocorrelation(np.ones(50))
