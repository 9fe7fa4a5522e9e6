"""Which trials a search makes, on systems whose capacity is known."""

from __future__ import annotations

import math

import pytest


@pytest.mark.parametrize("knee_rps", [0.3, 10.0, 300.0])
def test_a_capacity_is_found_wherever_it_is(system, knee_rps):
    """Systems that are far from the first guess would have none."""
    found = system(knee_rps=knee_rps).searched()

    assert found.resolved
    assert abs(math.log(found.estimate.rate_rps / knee_rps)) < 0.05


def test_a_shallow_curve_is_followed_to_its_crossing(system):
    """A share of requests that are slow at any rate makes curves of which one trial tells little."""
    found = system(slope=2.0, scatter=0.05).searched(max_seeds=40)

    assert found.estimate.low_rps <= 10.2
    assert found.estimate.high_rps >= 9.8


def test_a_goal_that_is_missed_without_load_is_unreachable(system):
    """The search would halve rates for ever, or print a rate at which nothing is kept."""
    slow = system(ceiling=0.8)
    found = slow.searched()

    assert found.unreachable
    assert "even without load only" in found.why
    assert 1 == slow.made


def test_a_goal_at_the_edge_is_not_decided(system):
    """Chance without load would decide between a capacity and none at all."""
    found = system(ceiling=0.9, scatter=0.0).searched()

    assert not found.resolved
    assert "hardly" in found.why


def test_a_system_that_carries_every_rate_is_unresolved(system):
    """The highest rate that was tried would be printed as the capacity."""
    found = system(knee_rps=1e12).searched()

    assert not found.resolved
    assert "give --requests" in found.why


def test_a_budget_that_ends_leaves_the_best_so_far(system):
    """An hour of trials would be thrown away for the last one."""
    found = system(scatter=0.2).searched(budget=22)

    assert not found.resolved
    assert found.estimate is not None
    assert "the budget was spent." == found.why


def test_a_budget_of_nothing_says_so(system):
    """No trial at all is no reason for a traceback."""
    assert "the budget was spent" in system().searched(budget=0).why


def test_one_rate_that_is_asked_about_ends_the_search_early(system):
    """Whether 5 req/s are carried would cost as much as the capacity itself."""
    near, far = system(scatter=0.05), system(scatter=0.05)
    near.searched(tolerance=0.005, max_seeds=40)
    far.searched(tolerance=0.005, max_seeds=40, at_rps=5.0)

    assert far.made < near.made


def test_no_more_seeds_than_allowed_are_used(system):
    """A search would go on for ever on traffic that scatters."""
    found = system(scatter=0.5, slope=8.0).searched(tolerance=0.001, max_seeds=12)

    assert not found.resolved
    assert "12 seeds were not enough." == found.why
    assert 12 >= len(found.estimate.knees)


def test_trials_of_another_goal_help(system):
    """A second goal would be searched as if nothing were known."""
    one = system()
    first = one.searched()
    known = [one.trial(key) for key in _keys(first)]
    found = one.searched(goal=0.95, known=known)

    assert found.resolved
    assert found.estimate.rate_rps < first.estimate.rate_rps


def _keys(found):
    from harness.capacity.trials import Key

    return [Key(seed, 10.0, 2000) for seed in found.estimate.knees]


def test_a_recording_needs_no_seeds(system):
    """Equal trials would be counted as independent ones, and the interval would be a lie."""
    recorded = system(scatter=0.0)
    found = recorded.searched(one_traffic=True)

    assert found.resolved
    assert found.estimate.low_rps is None
    assert abs(math.log(found.estimate.rate_rps / 10.0)) < 0.01
