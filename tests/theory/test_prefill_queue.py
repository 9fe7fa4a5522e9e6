"""TTFT of prefill as a queue: closed forms, their distribution, and the simulator laid over them."""

from math import exp, factorial, inf

import numpy as np
import pytest

from backends.systems.distserve import Prefill, crossover_load, gaps_s, prefill_times_s
from backends.systems.laws import mean_wait, wait_cdf, wait_quantile


@pytest.mark.parametrize(
    ("rho", "mean", "p90", "p99"), [(0.5, 1.5, 2.516, 4.336), (0.8, 3.0, 6.012, 11.356), (0.95, 10.5, 23.30, 45.94)]
)
def test_times_in_system_are_the_known_ones(rho: float, mean: float, p90: float, p99: float):
    """The judge of the simulator would itself be wrong (E5)."""
    assert mean == pytest.approx(1 + mean_wait(rho))
    assert p90 == pytest.approx(1 + wait_quantile(rho, 0.9), abs=5e-3)
    assert p99 == pytest.approx(1 + wait_quantile(rho, 0.99), abs=5e-3)


@pytest.mark.parametrize("rho", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("wait", [0.0, 0.4, 1.0, 2.7, 6.3])
def test_the_sum_of_positive_terms_is_crommelins(rho: float, wait: float):
    """The stable form would be another distribution (E5)."""
    terms = ((-rho * (wait - k)) ** k / factorial(k) * exp(rho * (wait - k)) for k in range(int(wait) + 1))

    assert (1 - rho) * sum(terms) == pytest.approx(wait_cdf(rho, wait), abs=1e-9)


def recursion_times_s(form: Prefill, rate_rps: float, requests: int, seed: int = 0) -> np.ndarray:
    """(requests,) TTFT of the same prompts by Lindley's recursion, without any simulator: for millions of them."""
    gaps = gaps_s(form, rate_rps, requests, seed)
    walk_s = np.concatenate([[0.0], np.cumsum(form.between_s - gaps[1:])])
    waits_s: np.ndarray = walk_s - np.minimum.accumulate(walk_s)
    return waits_s + form.own_s


def test_the_distribution_stays_one_where_crommelins_sum_loses_all_digits():
    """At high load a P99 would be noise (E5): the tail falls as exp(-s w), where rho (e^s - 1) = s."""
    rho, decay = 0.99, 0.020066  # solves rho * (exp(s) - 1) = s

    assert rho * (exp(decay) - 1) == pytest.approx(decay, rel=1e-4)
    assert exp(-100 * decay) == pytest.approx((1 - wait_cdf(rho, 300)) / (1 - wait_cdf(rho, 200)), rel=1e-2)
    assert (0.0, inf) == (wait_quantile(0.05, 0.9), wait_quantile(1.0, 0.9))


def test_the_forms_are_those_of_distserve():
    """Tensor and pipeline parallelism would be weighed by another rule (E6, K10.3)."""
    r, d, k = 5.0, 0.08, 1.6

    assert d + r * d**2 / (2 * (1 - r * d)) == pytest.approx(Prefill(d).mean_s(r))
    assert d / k + r * d**2 / (2 * k * (k - r * d)) == pytest.approx(Prefill(d, tp=2, speedup=k).mean_s(r))
    assert d + r * d**2 / (4 * (2 - r * d)) == pytest.approx(Prefill(d, pp=2).mean_s(r))
    assert d + r * d**2 / (2 * 4 * (4 - r * d)) == pytest.approx(Prefill(d, pp=4).mean_s(r))
    assert Prefill(d).mean_s(r / 3) == pytest.approx(Prefill(d, replicas=3).mean_s(r))


def test_the_crossover_is_the_derived_one():
    """A user would choose the pipeline where tensor parallelism is faster (E6)."""
    speedups = (1.2, 1.4, 1.6, 1.8, 1.9)

    assert [0.434, 0.776, 1.095, 1.429, 1.626] == [round(crossover_load(k) or 0, 3) for k in speedups]
    assert (0.0, None) == (crossover_load(1.0), crossover_load(2.0))
    at = crossover_load(1.6)
    assert at is not None
    assert Prefill(1, tp=2, speedup=1.6).mean_s(at) == pytest.approx(Prefill(1, pp=2).mean_s(at))


@pytest.mark.parametrize(("stages", "rho", "mean"), [(2, 0.8, 1.1667), (2, 1.4, 1.5833), (4, 1.4, 1.0673)])
def test_the_simulated_pipeline_lies_on_its_form(stages: int, rho: float, mean: float):
    """A pipeline of the simulator would queue as no pipeline does (E6, K10.h): each is Lindley's, and so the form."""
    form = Prefill(1.0, pp=stages)
    simulated, recursion = (times(form, rho, 5000, 2) for times in (prefill_times_s, recursion_times_s))

    assert mean == pytest.approx(form.mean_s(rho), abs=1e-4)
    assert recursion == pytest.approx(simulated, abs=1e-8)
    assert mean == pytest.approx(float(recursion_times_s(form, rho, 1_000_000, 2).mean()), rel=0.02)


def test_the_simulator_lies_on_the_form_for_tensor_parallelism():
    """The overlay of `bench theory prefill:simulate=true` would belie its own formula (E5, E6)."""
    form = Prefill(0.08, tp=2, speedup=1.6)
    times = prefill_times_s(form, 12.0, 30_000, seed=3)

    assert form.mean_s(12.0) == pytest.approx(float(times.mean()), rel=0.02)
    assert form.quantile_s(12.0, 0.9) == pytest.approx(float(np.quantile(times, 0.9)), rel=0.03)


@pytest.mark.parametrize("rate_rps", [0.5, 0.8])
def test_the_simulator_agrees_with_lindleys_recursion_request_by_request(rate_rps: float):
    """Millions of arrivals are drawn without the simulator; they must be what it would have given (E5)."""
    one = Prefill(1.0)
    simulated, recursion = (times(one, rate_rps, 5000, 4) for times in (prefill_times_s, recursion_times_s))

    assert recursion == pytest.approx(simulated, abs=1e-8)


@pytest.mark.parametrize(
    ("rho", "share", "close"), [(0.5, 0.9, 0.01), (0.5, 0.99, 0.02), (0.8, 0.9, 0.02), (0.8, 0.99, 0.03)]
)
def test_a_million_arrivals_have_the_quantiles_of_the_formula(rho: float, share: float, close: float):
    """The tail of TTFT would be that of another queue (E5)."""
    times = recursion_times_s(Prefill(1.0), rho, 1_000_000, seed=5)

    assert Prefill(1.0).quantile_s(rho, share) == pytest.approx(float(np.quantile(times, share)), rel=close)
