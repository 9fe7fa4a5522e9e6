"""Requests before the cut of the warm-up are left out, and only they."""

import numpy as np
import pytest

from harness import values
from harness.data.records import since, to_table
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.validity import steady_state


@pytest.fixture(scope="module")
def lasting(record):
    """`lasting(e2e_s)`: requests due every second that take so long; TTFT is half of it."""

    def make(e2e_s):
        return to_table([record(i, tokens=[i + e / 2, i + e]) for i, e in enumerate(e2e_s)])

    return make


def test_a_start_that_is_slower_is_left_out(lasting):
    """The first answers of a cold server would stand in every percentile."""
    rng = np.random.default_rng(0)
    e2e_s = np.concatenate([np.linspace(9, 1, 40), rng.uniform(0.9, 1.1, 460)])
    cut = steady_state.find(lasting(e2e_s), "mser5")

    assert 35 <= cut.requests <= 50
    assert cut.requests == 500 - len(since(lasting(e2e_s), cut.since_s))


def test_nothing_is_cut_before_the_system_has_filled(lasting):
    """A system with answers of 20 s is measured while it is still half empty."""
    cut = steady_state.find(lasting(np.full(300, 20.0)), "mser5")

    assert (20.0, 20) == (cut.at_s, cut.requests)


def test_a_cut_can_be_named(lasting):
    """`--warmup 30s` and `--warmup 200` would mean something else than they say."""
    table = lasting(np.ones(300))

    assert (30.0, 30) == (steady_state.find(table, "30s").at_s, steady_state.find(table, "30s").requests)
    assert (200.0, 200) == (steady_state.find(table, "200").at_s, steady_state.find(table, "200").requests)
    assert 0 == steady_state.find(table, "none").requests == steady_state.find(table, None).requests
    assert 1 == len(since(table, steady_state.find(table, "1000s").since_s))


@pytest.mark.parametrize(
    ("given", "expected"), [("MSER5", "mser5"), ("0.5min", "30s"), ("2500ms", "2.5s"), ("200", "200"), ("none", "none")]
)
def test_rules_are_stored_in_one_spelling(given, expected):
    """Two spellings of a rule would look like two rules."""
    assert expected == values.warmup(given, "--warmup")


@pytest.mark.parametrize("given", ["mser", "-3", "0", "0s", "ten", "3 apples", "10%", "²"])
def test_no_rule_is_refused_with_what_is_allowed(given):
    """A typing error would cut nothing, without any error."""
    with pytest.raises(UsageError, match=r"--warmup must be 'mser5', 'none', a time such as 30s or a number"):
        values.warmup(given, "--warmup")


@pytest.mark.parametrize("rule", ["60", "1000", "90s"])
def test_a_cut_that_leaves_nothing_is_refused_before_the_run(traffic, rule):
    """A run of an hour would be measured on its last request."""
    schedule = Schedule.draw(traffic(), seed=0, requests=60)

    with pytest.raises(UsageError, match=r"leaves nothing of the .* to measure; cut less, or send more"):
        steady_state.check_leaves(rule, schedule)


@pytest.mark.parametrize("rule", [None, "none", "mser5", "59", "1s"])
def test_a_cut_that_leaves_something_is_taken(traffic, rule):
    """Good options would be refused."""
    steady_state.check_leaves(rule, Schedule.draw(traffic(), seed=0, requests=60))
