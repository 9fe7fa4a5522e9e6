"""The mark of overload has the documented error rates, on a simulated system."""

import numpy as np
import pytest

from harness.experiments import pool, trial
from harness.options import RunSpec
from harness.validity import steady_state

CAPACITY_RPS = 2.1
"""Rate at which 90 % of the chats on OPT-13B and one A100 keep ttft=0.25,tpot=0.1."""

SATURATION_RPS = 3.9
"""Rate from which on its queue has no end: answers per second at twice the load."""

SEEDS = 20


def marked(given):
    rate_rps, seed = given
    spec = RunSpec(
        workload="chatbot", backend="sim", latency="abc:distserve", policy="vllm-v0", rate=rate_rps, requests=2200,
        seed=seed,
    )  # fmt: skip
    return steady_state.overload(trial.simulate(spec).table) is not None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rate_rps", "least", "most"), [(0.9 * CAPACITY_RPS, 0, 0), (1.15 * SATURATION_RPS, 19, SEEDS)]
)
def test_a_growing_queue_is_marked_and_a_busy_one_is_not(rate_rps, least, most):
    """A mean that tells how long the run was would be printed as a result, or a good result be taken away."""
    found = [mark for _, mark in pool.of(2).map(marked, [(rate_rps, seed) for seed in range(SEEDS)])]

    assert least <= sum(found) <= most


@pytest.mark.parametrize(("served_s", "mark"), [(0.5, False), (1.5, True)])
def test_bursts_are_no_growing_queue(served_s, mark):
    """Bursts that are gone again soon would make a rate too high for a system that is idle half of the time."""
    rng = np.random.default_rng(0)
    due_s = np.sort(np.concatenate([100 * number + rng.uniform(0, 5, 150) for number in range(10)]))
    end_s = np.zeros(len(due_s))
    for i, at_s in enumerate(due_s):
        end_s[i] = max(at_s, end_s[i - 1] if i else 0.0) + served_s

    assert mark == (steady_state.grown(due_s, end_s, float(due_s[-1])) is not None)
