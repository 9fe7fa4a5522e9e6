"""Which trials a search makes, on systems whose capacity is known."""

import math

import pytest

from harness.experiments.capacity.estimate import Estimate
from harness.experiments.capacity.search_spec import Bracket, SearchResult, Side, sustained


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


def test_a_system_that_sustains_every_rate_is_unresolved(system):
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


def test_one_rate_to_decide_ends_the_search_early(system):
    """Whether 5 req/s are sustained would cost as much as the capacity itself."""
    near, far = system(scatter=0.05), system(scatter=0.05)
    near.searched(tolerance=0.005, max_seeds=40)
    far.searched(tolerance=0.005, max_seeds=40, at_rps=5.0)

    assert far.made < near.made


def test_no_more_seeds_than_allowed_are_used(system):
    """A search would go on for ever on traffic that scatters."""
    found = system(scatter=0.5, slope=8.0).searched(tolerance=0.001, max_seeds=12)

    assert not found.resolved
    assert "12 seeds were not enough." == found.why
    assert 12 >= len(found.estimate.capacity_by_seed)


def test_trials_of_another_goal_help(system):
    """A second goal would be searched as if nothing were known."""
    one = system()
    first = one.searched()
    known = [one.trial(key) for key in _keys(first)]
    found = one.searched(goal=0.95, known=known)

    assert found.resolved
    assert found.estimate.rate_rps < first.estimate.rate_rps


def _keys(found):
    from harness.experiments.capacity.trials import Key

    return [Key(seed, 10.0, 2000) for seed in found.estimate.capacity_by_seed]


def test_a_recording_needs_no_seeds(system):
    """Equal trials would be counted as independent ones, and the interval would be a lie."""
    recorded = system(scatter=0.0)
    found = recorded.searched(one_traffic=True)

    assert found.resolved
    assert found.estimate.low_rps is None
    assert abs(math.log(found.estimate.rate_rps / 10.0)) < 0.01


def test_trials_shorter_than_a_queue_takes_to_fill_pass_no_rate(system):
    """Probes of 4 s would pass at twice the capacity, and a number far below all rates tried be printed."""
    short = system(knee_rps=60.0, e2e_s=3.0, fills_s=10.0)
    found = short.searched()

    assert found.answered is not None
    assert abs(math.log(found.answered.rate_rps / 60.0)) < 0.05
    assert found.bracket.low.rate_rps <= 60.0 <= found.bracket.high.rate_rps


@pytest.mark.parametrize("fooled_rps", [14.0, 40.0])
def test_whole_trials_that_contradict_the_probes_bracket_again(system, fooled_rps):
    """All whole trials would lie above the capacity, and the curve be followed to rates that were not tried."""
    found = system(fooled_rps=fooled_rps).searched()

    assert found.answered is not None
    assert abs(math.log(found.answered.rate_rps / 10.0)) < 0.05


@pytest.mark.parametrize("seed", range(10))
def test_no_rate_outside_of_those_tried_is_an_answer(system, seed):
    """'50 req/s (13 .. 189)' would be printed where all rates tried lie between 18 and 31."""
    wide = system(knee_rps=20.0 + seed, slope=2.0, scatter=0.4)
    tried = []
    made = wide.trial
    wide.trial = lambda key, wanted=(): tried.append(key) or made(key, wanted)
    answered = wide.searched(first_seed=1000 * seed).answered
    rates = [key.rate_rps for key in tried if key.goal is None]

    assert answered is None or min(rates) <= answered.low_rps <= answered.high_rps <= max(rates)


def test_an_interval_beyond_the_rates_tried_is_no_answer():
    """A curve goes on to both sides; the system does not have to."""
    estimate = Estimate(50.0, 13.0, 189.0, {}, "joint", {})
    tried = Bracket(Side(18.0, 4, 8000), Side(31.0, 4, 8000), 18.0, 31.0)
    inside = Bracket(Side(48.0, 4, 8000), Side(52.0, 4, 8000), 12.0, 200.0)

    assert SearchResult(estimate, resolved=True, bracket=tried).answered is None
    assert SearchResult(estimate, resolved=True, bracket=inside).answered is estimate
    assert SearchResult(Estimate(50.0, None, None, {}, "joint", {}), resolved=False, bracket=inside).answered is None


@pytest.mark.parametrize(
    ("rate_rps", "verdict"), [(12.0, True), (15.0, None), (40.0, None), (150.0, None), (200.0, False)]
)
def test_a_rate_is_decided_by_an_interval_and_by_trials(rate_rps, verdict):
    """--at would be answered by a curve at rates that were not tried."""
    tried = Bracket(Side(18.0, 4, 8000), Side(31.0, 4, 8000), 18.0, 31.0)

    assert verdict is sustained(rate_rps, Estimate(50.0, 13.0, 189.0, {}, "joint", {}), tried)


def test_a_queue_that_grows_before_requests_miss_leaves_a_bracket(system):
    """The curve of attainment would tell a rate at which the queue has no end."""
    found = system(knee_rps=60.0, grows_rps=50.0).searched()

    assert found.answered is None
    assert found.bracket.low.rate_rps < 50.0 <= found.bracket.high.rate_rps < 55.0
    assert found.bracket.high.grew


@pytest.mark.parametrize("budget", range(1, 12))
def test_a_budget_that_ends_leaves_the_rates_on_both_sides(system, budget):
    """A bracket that was paid for would not be printed."""
    found = system().searched(budget=budget)
    low, high = found.bracket.low, found.bracket.high

    assert found.answered is None
    assert low is not None
    assert low.rate_rps < 10.5
    assert budget < 6 or 9.5 < high.rate_rps < 18.0
