"""What the comparison promises: how seldom it cries wolf, and how surely it finds a loss of 5 %.

A is compared with A and with a B that is 5 % slower, 1,000 times each, on stored knees of the synthetic server. Were a
true rate exactly at its limit of 1 %, more than 20 of 1,000 would come up once in 1,000 times; were it at 95 %, fewer
than 929 would.
"""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.stats.paired import Limits, decide

COMPARISONS = 1000
LIMITS = Limits(-math.log(0.98), -math.log(0.95))


@pytest.fixture(scope="module")
def server():
    path = Path(__file__).parents[1] / "perf" / "_synthetic.py"
    spec = importlib.util.spec_from_file_location("_synthetic_for_goals", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def verdicts(server):
    """1,000 verdicts on pairs of a base and a head that is slower, under a noise of each run."""

    def drawn(pairs, noise, slower):
        rng = np.random.default_rng(7)

        def knee(seed, factor):
            slow = factor * math.exp(noise * rng.standard_normal())
            return math.log(server.stored_knee(int(seed), slow)) + 0.0016 / math.sqrt(2) * rng.standard_normal()

        seeds = [rng.choice(400, pairs, replace=False) for _ in range(COMPARISONS)]
        return [decide([knee(s, 1.0) - knee(s, slower) for s in each], LIMITS).verdict for each in seeds]

    return drawn


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02])
def test_no_false_alarm_in_99_of_100_comparisons(verdicts, noise):
    """A nightly job that cries wolf is switched off."""
    assert verdicts(5, noise, 1.0).count("regressed") <= 20


@pytest.mark.parametrize(("pairs", "noise"), [(5, 0.01), (10, 0.02)])
def test_a_loss_of_five_percent_is_found_in_95_of_100_comparisons(verdicts, pairs, noise):
    """A gate that lets losses pass is worse than none; and a loss is not called equivalent."""
    found = verdicts(pairs, noise, 1.05)

    assert found.count("regressed") >= 929
    assert found.count("equivalent") <= 20
