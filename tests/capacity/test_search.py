"""Which trials a search by blocks makes, on systems whose capacity is known."""

import math
from dataclasses import replace

import pytest

from harness.experiments.capacity.conditions import Share, missed
from harness.experiments.capacity.search_spec import Bracket, Estimate, SearchResult, Side, sustained
from harness.metrics.objective import JOINT


@pytest.mark.parametrize("knee_rps", [1.0, 300.0])
def test_a_capacity_is_found_wherever_it_is(system, knee_rps):
    """Systems that are far from the first guess would have none."""
    found = system(knee_rps=knee_rps).searched()

    assert found.answered is not None
    assert abs(math.log(found.estimate.rate_rps / knee_rps)) < 0.12
    assert found.estimate.low_rps <= 1.02 * knee_rps
    assert found.estimate.high_rps >= 0.98 * knee_rps


@pytest.mark.parametrize("budget_s", [60.0, 600.0])
def test_a_budget_is_a_promise(system, budget_s):
    """A job in CI would be killed before its search had answered."""
    slow = system(e2e_s=3.0)
    slow.searched(budget_s)

    assert slow.spent_s <= 1.05 * budget_s + 3.0


def test_a_short_search_says_which_bound_binds_too(system):
    """Where no rate that was tried lies near the answer, the bounds had no shares, and none was named as binding."""
    for budget_s in range(60, 241, 20):
        found = system(slope=8.0, scatter=0.15).searched(float(budget_s))
        assert found.estimate is None or 1 == len(found.bounds), budget_s


def test_more_time_gives_a_narrower_interval(system):
    """Waiting longer would gain nothing."""
    widths = [system().searched(budget_s, tolerance=0.001).estimate.half_width for budget_s in (200.0, 3600.0)]

    assert widths[1] < 0.7 * widths[0]


def test_a_goal_that_is_missed_without_load_is_unreachable(system):
    """The search would halve rates for ever, or print a rate at which nothing is met."""
    slow = system(ceiling=0.3)
    found = slow.searched()

    assert found.unreachable
    assert "even without load only" in found.why
    assert 1 == slow.made


def test_a_system_that_sustains_every_rate_is_unresolved(system):
    """The highest rate that was tried would be printed as the capacity."""
    found = system(knee_rps=1e30).searched()

    assert not found.resolved
    assert found.answered is None
    assert "was too high" in found.why


def test_a_step_that_missed_by_chance_does_not_raise_the_rate_for_ever(system):
    """Blocks of few requests would all meet, at higher and higher rates, until the budget is over."""
    lucky = system(knee_rps=1e30, unlucky=3)
    found = lucky.searched(from_rps=200.0, fixed=True, planned=20)

    assert not found.resolved
    assert "was too high" in found.why
    assert lucky.made < 20


def test_blocks_of_a_few_requests_tell_a_side(system):
    """The parts of such a block would have no mean, and the answer would be no number, below a warning of numpy's."""
    found = system().searched(60.0, fixed=True, planned=5)

    assert found.answered is not None
    assert found.estimate.low_rps < 10.0 < found.estimate.high_rps


def test_a_budget_of_nothing_says_so(system):
    """A search without a trial has nothing to print, and would end in a traceback."""
    found = system().searched(budget_s=0.0)

    assert found.estimate is None
    assert "budget" in found.why


def test_one_rate_to_decide_ends_the_search_early(system):
    """A gate in CI would wait for an interval that is not needed."""
    whole, one = system(), system()
    whole.searched(tolerance=0.001)
    found = one.searched(tolerance=0.001, at_rps=4.0)

    assert sustained(4.0, found.estimate, found.bracket)
    assert one.spent_s < whole.spent_s


def test_two_steps_of_a_ramp_are_both_sides_where_the_budget_ends(system):
    """The answer would be 'above 0.75' although a step at four times that had missed."""
    found = system(knee_rps=1.0).searched(45.0, from_rps=3.0)

    assert found.estimate is None
    assert (0.75, 3.0) == (found.bracket.low.rate_rps, found.bracket.high.rate_rps)


def test_probes_that_mislead_are_corrected_by_blocks(system):
    """A short step of the ramp passes at rates whose queue takes minutes to fill."""
    found = system(fooled_rps=60.0).searched(budget_s=1200.0)

    assert found.estimate.low_rps <= 10.3
    assert found.estimate.high_rps >= 9.7


@pytest.mark.parametrize("most_rps", [5.0, 40.0])
def test_a_server_that_answers_less_than_arrives_sustains_no_more_than_that(system, most_rps):
    """A queue that grows would pass until its requests miss, long after a block is over: at any rate."""
    behind = system(knee_rps=1e30, most_rps=most_rps)
    found = behind.searched()

    assert found.estimate.low_rps <= most_rps
    assert abs(math.log(found.estimate.rate_rps / most_rps)) < 0.15
    assert max(key.rate_rps for key in behind.tried if key.goal is None) < 2 * most_rps


def test_no_two_trials_have_the_same_traffic(system):
    """What one seed happened to send would count twice, and the interval be too narrow."""
    one = system()
    one.searched(first_seed=7)

    assert list(range(7, 7 + one.made)) == [key.seed for key in one.tried]


def test_a_recording_that_misses_even_when_stretched_is_unreachable(system):
    """It would be slowed down for ever."""
    found = system(ceiling=0.3, scatter=0.0).searched(1e9, one_traffic=True, planned=5_000)

    assert found.unreachable
    assert "no rate is low enough" in found.why


def test_a_recording_needs_no_seeds(system):
    """Every seed would replay the same requests."""
    found = system(scatter=0.0).searched(1e9, one_traffic=True, planned=50_000)

    assert found.resolved
    assert found.estimate.low_rps is None
    assert abs(math.log(found.answered.rate_rps / 10.0)) < 0.03


def test_a_recording_that_is_too_short_passes_no_rate(system):
    """It would be over before a queue has grown, at any rate."""
    found = system(knee_rps=1e9, e2e_s=30.0).searched(1e9, one_traffic=True, planned=300)

    assert found.answered is None
    assert "replay a longer part" in found.why


@pytest.mark.parametrize("budget_s", [30, 120])
def test_no_rate_outside_of_those_tried_is_an_answer(system, budget_s):
    """A curve goes on to both sides; the system does not have to."""
    found = system(scatter=0.1).searched(float(budget_s))

    assert found.answered is None or found.bracket.least_rps <= found.answered.low_rps
    assert found.answered is None or found.answered.high_rps <= found.bracket.most_rps
    assert found.bracket.low is None or found.bracket.high is None or found.bracket.ratio > 1


def test_an_interval_beyond_the_rates_tried_is_no_answer():
    """A curve goes on to both sides; the system does not have to."""
    estimate = Estimate(50.0, 13.0, 189.0, {}, "joint")
    tried = Bracket(Side(18.0, 4, 8000), Side(31.0, 4, 8000), 18.0, 31.0)
    inside = Bracket(Side(48.0, 4, 8000), Side(52.0, 4, 8000), 12.0, 200.0)

    assert SearchResult(estimate, resolved=True, bracket=tried).answered is None
    assert SearchResult(estimate, resolved=True, bracket=inside).answered is estimate
    assert SearchResult(Estimate(50.0, None, None, {}, "joint"), resolved=False, bracket=inside).answered is None


@pytest.mark.parametrize(
    ("rate_rps", "verdict"), [(12.0, True), (15.0, None), (40.0, None), (150.0, None), (200.0, False)]
)
def test_a_rate_is_decided_by_an_interval_and_by_trials(rate_rps, verdict):
    """--at would be answered by a curve at rates that were not tried."""
    tried = Bracket(Side(18.0, 4, 8000), Side(31.0, 4, 8000), 18.0, 31.0)

    assert verdict is sustained(rate_rps, Estimate(50.0, 13.0, 189.0, {}, "joint"), tried)


@pytest.mark.parametrize("late", [range(1, 4), range(5, 9)])
def test_trials_that_left_late_are_drawn_again_while_the_budget_lasts(system, late):
    """Two trials that proved nothing ended a search after 20 to 70 of 180 s, without a word about those before."""
    found = system(late_seeds=late).searched(budget_s=300.0)

    assert found.estimate is not None
    assert found.bracket.most_rps > 9


def test_a_client_that_is_always_late_is_the_reason(system):
    """The search would go on to rates that flood the server, or end without a cause."""
    known = system(late_seeds=range(1, 10_000))
    found = known.searched(budget_s=300.0)

    assert "so late that they tell no side" in found.why
    assert max(key.rate_rps for key in known.tried) <= 4


@pytest.mark.parametrize(("met", "drawn", "higher"), [(12, 1, True), (10, 3, False), (8, 1, False)])
def test_a_step_of_the_ramp_that_met_less_than_the_goal_is_no_step_up(system, met, drawn, higher):
    """8 of 12 at a goal of 90 % were taken for sustained, and so were all rates below a cliff that was not there."""
    known = system()
    usual = known.trial

    def trial(key, wanted=()):
        tried = usual(key, wanted)
        if key.rate_rps != 4.0 or key.goal is None:
            return tried
        share = Share(JOINT, met, 12, None)
        return replace(tried, shares=(share, *tried.shares[1:]), passed=not missed([share], wanted))

    known.trial = trial
    known.searched(budget_s=70.0, from_rps=4.0)
    steps = [key.rate_rps for key in known.tried if key.goal is not None]

    assert drawn == steps.count(4.0)
    assert higher == (max(steps) > 4.0)
