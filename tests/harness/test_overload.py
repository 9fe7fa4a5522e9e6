"""A growing queue is distinguished from a busy one."""

import heapq

import numpy as np
import pytest

from harness.data.records import to_table
from harness.validity.overload import overload


@pytest.fixture(scope="module")
def served(record):
    """`served(load, n, seed, service_s)`: Poisson arrivals at `load` times what 16 servers carry, first come first."""

    def make(load, n, seed, service_s=1.0):
        rng = np.random.default_rng(seed)
        due_s = np.cumsum(rng.exponential(service_s / 16 / load, n))
        busy_s = rng.lognormal(np.log(service_s) - 0.18, 0.6, n)
        free = [0.0] * 16
        rows = []
        for i in range(n):
            start = max(heapq.heappop(free), due_s[i])
            heapq.heappush(free, start + busy_s[i])
            rows.append(record(i, scheduled_s=due_s[i], tokens=[start + 0.05 * busy_s[i], start + busy_s[i]]))
        return to_table(rows)

    return make


@pytest.mark.nightly
def test_overload_is_found(served):
    """At least 95 of 100 runs at 1.15 of saturation: else a mean is printed that means nothing."""
    assert sum(overload(served(1.15, 2000, seed)) is not None for seed in range(100)) >= 95


@pytest.mark.nightly
@pytest.mark.parametrize(("n", "most"), [(60, 5), (120, 5), (2000, 0)])
def test_a_busy_system_is_not_called_overloaded(served, n, most):
    """None of 100 long runs at 0.9 of saturation, and few short ones: else the warning means nothing."""
    assert sum(overload(served(0.9, n, seed)) is not None for seed in range(100)) <= most


@pytest.mark.parametrize("n", [40, 120, 600])
def test_gross_overload_is_found_even_in_short_runs(served, n):
    """A run at three times saturation would be reported with its means, because it is short."""
    assert 20 == sum(overload(served(3.0, n, seed)) is not None for seed in range(20))


def test_a_system_that_fills_is_not_called_overloaded(record):
    """Answers of ten seconds keep more and more in flight for ten seconds: that is no queue."""
    rows = to_table([record(i, scheduled_s=i / 2, tokens=[i / 2 + 0.1, i / 2 + 10]) for i in range(120)])

    assert overload(rows) is None


def test_time_may_be_in_any_unit(served):
    """A fast system and a slow one would be judged by different rules."""
    fast, slow = (overload(served(1.5, 300, 0, service_s)) for service_s in (0.01, 100.0))

    assert fast.requests == slow.requests
    assert fast.seconds == pytest.approx(slow.seconds / 1e4)


@pytest.mark.parametrize("n", [0, 1, 29])
def test_too_few_requests_tell_nothing(served, n):
    """Chance would be called overload."""
    assert overload(served(3.0, n, 0)) is None


def test_requests_turned_away_are_no_queue(record):
    """A server that rejects quickly would be called overloaded, although its queue is short."""
    rows = to_table([record(i, tokens=() if i % 2 else None, status="rejected" if i % 2 else "ok") for i in range(200)])

    assert overload(rows) is None
