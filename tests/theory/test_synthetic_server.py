"""The server on which capacity and comparison are tried, beside what another simulator of it measured."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.experiments.trial import simulate

SEEDS = 40


@pytest.fixture(scope="module")
def synthetic() -> ModuleType:
    path = Path(__file__).parents[1] / "perf" / "_synthetic.py"
    spec = importlib.util.spec_from_file_location("_synthetic", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.parametrize("rate_rps", [13.0, 14.6, 16.2])
def test_attainment_is_that_of_another_simulator(synthetic: ModuleType, rate_rps: float) -> None:
    """If this failed, results of searches on this server would belong to another one."""
    found = [synthetic.fixed(seed, rate_rps).attainment() for seed in range(SEEDS)]
    error = synthetic.SPREAD[rate_rps] / math.sqrt(SEEDS)

    assert synthetic.TRUTH[rate_rps] == pytest.approx(np.mean(found), abs=3.5 * error)


def test_stored_knees_have_the_law_of_the_other_simulator(synthetic: ModuleType) -> None:
    """A single seed's knee has mean 14.65 req/s and a standard deviation of 3.9 to 4.2 % there."""
    plain = synthetic.stored()[:, synthetic.FACTORS.index(1.0)]

    assert 14.65 == pytest.approx(plain.mean(), abs=3.5 * 0.04 * 14.65 / math.sqrt(len(plain)))
    assert 0.04 == pytest.approx(np.log(plain).std(), abs=0.006)


def test_one_trace_tells_a_slow_down_apart_from_its_own_luck(synthetic: ModuleType) -> None:
    """Steps 5 % slower cost 5.06 % of the knee, with a standard deviation of 0.16 % over traces (another simulator)."""
    losses = [math.log(synthetic.stored_knee(s, 1.0) / synthetic.stored_knee(s, 1.05)) for s in range(400)]

    assert 0.0506 == pytest.approx(1 - math.exp(-np.mean(losses)), abs=0.001)
    assert np.std(losses) < 0.004


def test_a_slow_down_is_another_unit_of_time(synthetic: ModuleType) -> None:
    """If this failed, knees of a slower server would not follow from the runs of the plain one."""
    slow = synthetic.times(synthetic.spec(10.0, seed=3, slow=1.25, requests=600))
    plain = synthetic.times(synthetic.spec(12.5, seed=3, requests=600))

    assert (plain.ttft_s * 1.25).tolist() == pytest.approx(slow.ttft_s.tolist(), rel=1e-4)  # nine digits of a step
    assert plain.attainment(1.25) == pytest.approx(slow.attainment(), abs=2e-3)


@pytest.mark.nightly
def test_stored_knees_are_those_of_now(synthetic: ModuleType) -> None:
    """If this failed, a change of the simulator would leave a table behind that no longer belongs to it."""
    server = synthetic.Knees(7)

    assert synthetic.stored()[7].tolist() == pytest.approx([server.knee(f) for f in synthetic.FACTORS], abs=1e-4)


def test_no_request_is_refused_and_memory_binds_nothing(synthetic: ModuleType) -> None:
    """If this failed, slots would not be the only limit, as they are in the description."""
    table = simulate(synthetic.spec(16.0, seed=1)).table

    assert {"ok"} == set(table["status"].to_pylist())
    assert 0 == sum(table["preemptions"].to_pylist())
