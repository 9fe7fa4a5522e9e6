"""A growing queue is distinguished from a busy one."""

import heapq

import numpy as np
import pytest

from harness.data.records import to_table
from harness.validity.steady_state import overload, saturated


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
@pytest.mark.parametrize(("load", "n", "most"), [(0.9, 60, 1), (0.9, 120, 1), (0.9, 2000, 0), (0.97, 2000, 1)])
def test_a_busy_system_is_not_called_overloaded(served, load, n, most):
    """None of 100 long runs at 0.9 of saturation, and few short ones: else the warning means nothing."""
    assert sum(overload(served(load, n, seed)) is not None for seed in range(100)) <= most


@pytest.mark.parametrize("n", [60, 120, 600])
def test_gross_overload_is_found_even_in_short_runs(served, n):
    """A run at three times saturation would be reported with its means, because it is short."""
    assert 20 == sum(overload(served(3.0, n, seed)) is not None for seed in range(20))


def test_a_system_that_fills_is_not_called_overloaded(record):
    """Answers of ten seconds keep more and more in flight for ten seconds: that is no queue."""
    rows = to_table([record(i, scheduled_s=i / 2, tokens=[i / 2 + 0.1, i / 2 + 10]) for i in range(120)])

    assert overload(rows) is None


def test_longer_and_longer_answers_in_flight_are_no_queue(record):
    """A system with room for all of them keeps up, however long a run takes to fill it: it would be called overloaded
    in every run that is not much longer than its answers."""
    rows = to_table([record(i, scheduled_s=i / 50, tokens=[i / 50 + at for at in (0.1, 0.2, 60)]) for i in range(1000)])

    assert overload(rows) is None


def test_a_queue_before_decode_replicas_is_found(record):
    """The first token comes from a prefill replica, so TTFT is short while requests wait for memory to decode in."""
    rows = [record(i, scheduled_s=i / 50, tokens=[i / 50 + 0.1, i / 40, i / 40 + 1]) for i in range(1000)]

    assert overload(to_table(rows)).requests == pytest.approx(180, abs=5)


def test_one_late_burst_is_not_a_queue_that_grew_all_through(record):
    """The last burst of bursty traffic waits when the run ends, below the capacity as above it."""
    rng = np.random.default_rng(0)
    due_s = np.sort(np.concatenate([rng.uniform(0, 100, 800), rng.uniform(97, 100, 200)]))
    end_s = np.zeros(len(due_s))
    for i, at_s in enumerate(due_s):
        end_s[i] = max(at_s, end_s[i - 1] if i else 0.0) + 0.1
    rows = to_table([record(i, scheduled_s=a, tokens=[b]) for i, (a, b) in enumerate(zip(due_s, end_s, strict=True))])

    assert overload(rows) is None


def test_turns_that_wait_for_answers_end_after_the_load(record):
    """Once no conversation begins any more a queue shrinks: overload until then would be missed."""
    rows = [record(i, scheduled_s=i / 50, tokens=[i / 40], session=i, turn=0) for i in range(1000)]
    rows += [record(1000 + i, scheduled_s=30 + i, tokens=[31 + i], session=i, turn=1) for i in range(200)]

    assert overload(to_table(rows)) is not None


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


@pytest.mark.parametrize(
    ("full", "apart", "decode_waits", "preemptions", "kv_tokens"),
    [("prefill", True, 0.0, 0, 1), ("decode", True, 0.5, 0, 10**6), ("decode memory", True, 0.5, 1, 10**6),
     ("decode memory", True, 0.5, 0, 300), ("batch", False, 0.0, 0, 10**6), ("memory", False, 0.0, 1, 10**6),
     ("memory", False, 0.0, 0, 400), ("batch", False, 0.0, 0, 600)],
)  # fmt: skip
def test_what_is_full_is_named(record, full, apart, decode_waits, preemptions, kv_tokens):
    """Who reads that decode is the limit where prefill has a queue buys the wrong replicas; and decode that is full
    holds prefill up, whose queue is the longer one. Memory is full too where a policy admits only what has room:
    here up to 33 requests of ten tokens and more hold it at a time."""
    pool = {"replicas": 1, "kv_tokens": kv_tokens}
    rows = []
    for i in range(400):
        due_s = 0.1 * i
        prefill_s = 1.5 * due_s  # a queue of prefill grows in any case
        decode_s = prefill_s + 0.01 + decode_waits * due_s
        moved = {"handoff_start_s": prefill_s + 0.01} if apart else {}
        rows.append(
            record(i, scheduled_s=due_s, prefill_start_s=prefill_s, prefill_end_s=prefill_s + 0.01,
                   decode_start_s=decode_s, tokens=[decode_s, decode_s + 5], preemptions=preemptions, **moved)
        )  # fmt: skip

    assert full == saturated(to_table(rows), 40.0, {"kv": "paged", **pool, "decode": pool})
    if kv_tokens == 400 and not apart:  # blocks may be shared, so tokens do not tell
        assert saturated(to_table(rows), 40.0, {"kv": "paged", "prefix_cache": True, **pool}) == "batch"
