"""MSER-5 is the formula, and finds in queues what theory says is there."""

import heapq

import numpy as np
import pytest

from harness.api import RequestRecord
from harness.data.records import to_table
from harness.validity import steady_state


@pytest.fixture(scope="module")
def answered():
    """`answered(due_s, first_s, end_s)`: a table of requests with two tokens each."""

    def make(due_s, first_s, end_s):
        times = zip(due_s, first_s, end_s, strict=True)
        rows = [
            RequestRecord(
                request_id=i, scheduled_s=due, sent_s=due, token_s=[first, end], token_n=None, prompt_tokens=1,
                output_tokens=2, output_tokens_asked=2, status="ok",
            )
            for i, (due, first, end) in enumerate(times)
        ]  # fmt: skip
        return to_table(rows)

    return make


@pytest.fixture(scope="module")
def queue(answered):
    """`queue(load, n, seed)`: Poisson arrivals at 16 servers that carry `load` times what they can, from empty."""

    def make(load, n, seed):
        rng = np.random.default_rng(seed)
        due_s = np.cumsum(rng.exponential(1 / 16 / load, n))
        busy_s = rng.lognormal(-0.18, 0.6, n)
        free, start_s = [0.0] * 16, np.zeros(n)
        for i in range(n):
            start_s[i] = max(heapq.heappop(free), due_s[i])
            heapq.heappush(free, start_s[i] + busy_s[i])
        return answered(due_s, start_s + 0.05 * busy_s, start_s + busy_s)

    return make


def by_hand(e2e_s):
    """MSER-5 in plain loops: the batch with which the rest begins."""
    means = [sum(e2e_s[i : i + 5]) / 5 for i in range(0, len(e2e_s) - len(e2e_s) % 5, 5)]
    found = []
    for d in range(len(means) // 2 + 1):
        left = means[d:]
        middle = sum(left) / len(left)
        found.append(sum((y - middle) ** 2 for y in left) / len(left) ** 2)
    return found.index(min(found))


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_that_of_the_formula(answered, seed):
    """A slip of one batch in the sums would move every cut."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(150, 400))
    due_s = np.arange(n, dtype=float)
    e2e_s = 1 + rng.exponential(0.2, n) + 2 * np.exp(-np.arange(n) / rng.uniform(1, 12))
    cut = steady_state.find(answered(due_s, due_s + e2e_s / 2, due_s + e2e_s), "mser5")
    expected_s = max(5.0 * by_hand(e2e_s), float(np.quantile(e2e_s, 0.9)))
    stationary = expected_s < 5 * int(0.9 * (n // 5 // 2))

    assert stationary == cut.stationary
    assert (expected_s if stationary else 0.0) == pytest.approx(cut.at_s)


@pytest.mark.parametrize(("load", "least", "most"), [(0.7, 0, 0), (0.85, 0, 0), (1.3, 30, 40)])
def test_a_queue_that_grows_is_not_called_settled(queue, load, least, most):
    """The second half of a growing queue would pass for the steady state."""
    found = [steady_state.find(queue(load, 1000, seed), "mser5") for seed in range(40)]

    assert least <= sum(not cut.stationary for cut in found) <= most
    assert all(cut.requests == 0 for cut in found if not cut.stationary)


@pytest.mark.nightly
def test_the_cut_of_a_settled_queue_is_short(queue):
    """Below the knee a rule that cuts a third of the run would throw away what was paid for."""
    cuts = [steady_state.find(queue(0.8, 2000, seed), "mser5").requests for seed in range(40)]

    assert np.median(cuts) < 100
    assert max(cuts) <= 900
