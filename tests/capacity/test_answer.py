"""The answer of a search that ended without an estimate: its bracket, what was left out, and the exit code."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from harness.errors import BackendError, NotValid
from harness.experiments.capacity.answer import UNTRIED, answer
from harness.experiments.capacity.capacity_json import (
    CapacityAnswer,
    GoalCapacity,
    RateBracket,
    SearchCost,
)
from harness.experiments.capacity.conditions import Settings, Share, missed
from harness.experiments.capacity.execute import run_search, set_up
from harness.experiments.capacity.search_spec import Bracket, Estimate, SearchResult, Side
from harness.experiments.capacity.store import Store
from harness.experiments.capacity.trials import Ledger
from harness.options import RunSpec
from reports import answers as pages
from reports.answers import capacity
from reports.document import markdown, text

SPEC = RunSpec(workload="chatbot", backend="null", slo="ttft=0.25")


@pytest.fixture
def searched(system):
    """The answer of a search whose system makes so many trials, and then raises an error, or makes none any more."""

    def answer(most, error=None, at_rps=None):
        known = system()

        def make(tasks):
            for task in tasks:
                if known.made >= most:
                    if error is not None:
                        raise error
                    return
                yield known.trial(task.key, task.wanted)

        return run_search(set_up(SPEC, Settings(at_rps=at_rps)), Store(None), make, workers=1)

    return answer


def test_a_known_bracket_is_the_answer_when_the_budget_ends(searched):
    """What was paid for would be lost: 'not found'."""
    info = searched(5)
    (one,) = info.answers
    low, high = one.bracket_rps

    assert (5, "unresolved") == (info.exit_code, one.state)
    assert None is one.capacity_rps is one.low_rps is one.high_rps is one.per_gpu_rps
    assert {} == one.knees
    assert (low, high) == (4.0, 16.0)
    assert (2, 36, True) == (one.bracket.low_seeds, one.bracket.low_met, one.bracket.low_sure)
    for form in (text, markdown):
        assert f"between {low:g} and {high:g} req/s, unresolved" in form.render(pages.document(info))
    assert "was not sustained" in " ".join(capacity.notes(info, one))
    assert "bench sweep" in capacity.advice(info)[1]


@pytest.mark.parametrize(("error", "code"), [(NotValid("The client was late."), 4), (BackendError("It is gone."), 3)])
def test_a_trial_that_proves_nothing_ends_the_search_with_what_there_is(searched, error, code):
    """Hours of trials would be thrown away for the last one, or it would decide a rate."""
    info = searched(9, error)
    (one,) = info.answers

    assert (code, "unresolved", str(error)) == (info.exit_code, one.state, one.why)
    assert one.bracket.high_rate_rps is not None
    assert ("remedy the cause; with its --out it goes on from there", capacity.rerun(info)) == capacity.advice(info)


def test_a_first_trial_that_proves_nothing_is_an_error(searched):
    """A server that cannot be reached would have an empty answer."""
    with pytest.raises(BackendError, match="It is gone"):
        searched(0, BackendError("It is gone."))


@pytest.mark.parametrize(
    ("low", "high", "reported"),
    [
        (4.757, 5.657, "between 4.757 and 5.657 req/s, unresolved"),
        (31.2, None, "above 31.2 req/s (no rate tried is surely too high), unresolved"),
        (None, 2.5, "below 2.5 req/s (no rate tried is surely sustained), unresolved"),
    ],
)
def test_one_side_is_reported_as_such(low, high, reported):
    """A number would be invented for the other side."""
    one = GoalCapacity(goal=0.9, state="unresolved", bracket=RateBracket(low_rate_rps=low, high_rate_rps=high))

    assert f"Capacity at 90%: {reported}" == capacity.headline(CapacityAnswer(), one)


def test_a_side_of_few_requests_is_shown_as_likely(system):
    """A known bracket of 1.9 to 3.8 req/s was dropped, and 12 requests of which 8 met were called 'goal met'."""
    known = system(knee_rps=3.0)
    found = known.searched(budget_s=30.0, from_rps=2.0)
    bracket = found.bracket
    one = GoalCapacity(goal=0.9, state="unresolved", bracket=RateBracket(
        low_rate_rps=bracket.low.rate_rps, low_requests=bracket.low.requests, low_met=bracket.low.met,
        low_sure=bracket.low.sure, high_rate_rps=bracket.high.rate_rps, high_requests=bracket.high.requests,
        high_met=bracket.high.met, high_sure=bracket.high.sure))  # fmt: skip

    assert (2.0, 4.0) == (bracket.low.rate_rps, bracket.high.rate_rps)
    assert not bracket.low.sure and 12 == bracket.low.requests
    assert "likely between 2 and 4 req/s" in capacity.headline(CapacityAnswer(), one)
    assert "met by 12 of 12 requests" in " ".join(capacity.notes(CapacityAnswer(), one))
    assert "too few to be sure" in " ".join(capacity.notes(CapacityAnswer(), one))


def test_a_rate_that_few_requests_met_is_no_side_of_a_high_goal(system):
    """12 of 12 meet a goal of 99 % at any rate: 'likely above 1.4 req/s' was 1.7 times what a server sustained."""
    bracket = system(knee_rps=3.0).searched(budget_s=30.0, from_rps=2.0, goal=0.99).bracket

    assert bracket.low is None
    assert 4.0 == bracket.high.rate_rps


@pytest.fixture
def ramp_of(system):
    """The bracket of a ramp in which so many requests met at each rate, and the rates that were tried."""

    def searched(met_at, budget_s=80.0):
        known = system()

        def trial(key, wanted=()):
            made, met = type(known).trial(known, key, wanted), met_at.get(key.rate_rps, key.planned)
            shares = tuple(Share(s.key, met, key.planned, np.arange(key.planned) < met) for s in made.shares)
            return replace(made, shares=shares, passed=None if key.goal is None else not missed(shares, wanted))

        known.trial = trial
        bracket = known.searched(budget_s, from_rps=max(met_at)).bracket
        assert known.spent_s <= budget_s
        return bracket, [key.rate_rps for key in known.tried]

    return searched


def test_a_rate_that_surely_missed_by_itself_was_passed_over_for_one_at_four_times_it(ramp_of):
    """'Below 2.943 req/s, met by 19 of 36 requests' of a server that had met 6 of 12 at 0.7358."""
    bracket, rates = ramp_of({2.943: 8, 0.7358: 6})
    high = bracket.high

    assert (0.7358, True) == (high.rate_rps, high.sure)
    assert (6, 12, 1, 1) == (high.met, high.requests, high.seeds, high.rates)
    assert not bracket.low.sure
    assert 0.7358 / 4 < rates[-1] < 0.7358 * 0.7  # the budget does not hold 12 requests at a quarter


@pytest.mark.parametrize(("rates", "where"), [(1, "seeds."), (2, "seeds at it and below."), (None, "seeds.")])
def test_requests_of_lower_rates_were_counted_as_those_of_the_rate(rates, where):
    """19 of 36 had met at three rates, and 8 of 12 at the one that was named."""
    one = GoalCapacity(goal=0.9, state="unresolved", bracket=RateBracket(
        high_rate_rps=2.943, high_seeds=3, high_requests=36, high_met=19, high_sure=True, high_rates=rates,
    ))  # fmt: skip

    assert f"met by 19 of 36 requests of 3 {where}" in " ".join(capacity.notes(CapacityAnswer(), one))


@pytest.mark.parametrize(
    ("probes", "reported"), [(0, "no rate was tried"), (1, "no rate tried is surely sustained or surely too high")]
)
def test_a_search_without_a_side_says_whether_it_tried_one(probes, reported):
    """The answer would be 'not found' below a line of progress that says that a rate met the goal."""
    cost = SearchCost(requests=20, trials=1, probes=probes, system_s=1.0, wall_s=1.0)
    info, one = CapacityAnswer(cost=cost), GoalCapacity(goal=0.9, state="unresolved")

    assert f"Capacity at 90%: {reported}, unresolved" == capacity.headline(info, one)


def test_a_rate_that_met_the_goal_while_answers_fell_behind_has_its_reason(system):
    """The log would say that a rate met the goal, and the answer that it was not sustained, without a word of why."""
    found = system(knee_rps=1e30, most_rps=5.0).searched(60.0)

    assert found.bracket.high.grew


def test_several_goals_share_a_budget(monkeypatch, system):
    """The first goal would take all of it, and the others would have no answer."""
    clock, known = SimpleNamespace(s=0.0), system()
    monkeypatch.setattr("harness.experiments.capacity.execute.time.monotonic", lambda: clock.s)

    def make(tasks):
        for task in tasks:
            yield known.trial(task.key, task.wanted)
            clock.s = known.spent_s

    settings = Settings(goals=(0.8, 0.9), budget_s=1200.0, tolerance=0.001)
    info = run_search(set_up(SPEC, settings), Store(None), make, workers=1)

    assert all(one.low_rps < one.capacity_rps < one.high_rps for one in info.answers)
    assert info.answers[1].capacity_rps < info.answers[0].capacity_rps
    assert clock.s < 1.05 * 1200


def test_a_search_that_is_resumed_uses_the_blocks_that_it_has(monkeypatch, system, tmp_path):
    """Their length depends on the time that was left, so a second search would ask for others and lose them."""
    clock, known = SimpleNamespace(s=0.0), system()
    monkeypatch.setattr("harness.experiments.capacity.execute.time.monotonic", lambda: clock.s)

    def make(tasks):
        for task in tasks:
            yield known.trial(task.key, task.wanted)
            clock.s = known.spent_s

    def searched(tolerance):
        setup = set_up(SPEC, Settings(budget_s=400.0, tolerance=tolerance))
        return run_search(setup, Store(tmp_path / "cap"), make, workers=1).answers[0]

    first = searched(0.001)
    made = known.made
    again = searched(0.5)

    assert 0 < first.seeds
    assert first.seeds + known.made - made == again.seeds


def test_trials_that_were_left_out_are_counted(searched):
    """A client that is late every other time would look as good as any."""
    info = searched(9).change(invalid=["4 req/s, seed 0: The client was late."])
    reported = dict(pages.document(info).key_facts)["Cost"]

    assert "1 trial not valid and left out: 4 req/s, seed 0: The client was late" in reported


def answered(found, at_rps=None, spec=SPEC):
    """The answer of a search that found this, with its notes and warnings."""
    info = answer(set_up(spec, Settings(at_rps=at_rps)), [(0.9, found)], Ledger(None), 0.0)
    (one,) = info.answers
    warnings = (f"{warning.message} {warning.remedy}" for warning in pages.document(info).warnings)
    return info, one, " ".join([*capacity.notes(info, one), *warnings])


def test_a_spent_budget_advises_more_of_it():
    """'6 seeds were not enough. It would take 5 seeds', where time had run out."""
    guess = Estimate(10.0, None, None, dict.fromkeys(range(3), 2.3), "joint")
    reported = answered(SearchResult(guess, resolved=False, why="the budget was spent."))[2]

    assert "allow more time with --budget." in reported


@pytest.mark.parametrize(
    ("at_rps", "verdict", "reported"),
    [
        (12.0, "carried", "12 req/s is sustained."),
        (200.0, "not carried", "200 req/s is not sustained."),
    ],
)
def test_a_rate_that_the_rates_tried_decide_lies_beyond_no_interval(at_rps, verdict, reported):
    """'Below the whole interval' would stand beside no interval, and 'unresolved' beside the verdict."""
    beyond = Estimate(50.0, 13.0, 189.0, dict.fromkeys(range(12), 3.9), "joint")
    tried = Bracket(Side(18.0, 4, 8000), Side(31.0, 4, 8000), 18.0, 31.0)
    info, one, shown = answered(SearchResult(beyond, resolved=True, bracket=tried), at_rps)

    assert (verdict, None, None) == (one.at.verdict, one.low_rps, one.why)
    assert reported in shown
    assert "interval" not in shown
    assert info.exit_code == (verdict == "not carried")
    assert UNTRIED == answered(SearchResult(beyond, resolved=True, bracket=tried))[1].why
