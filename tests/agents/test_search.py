"""Which trials a search for agents makes, and what it says of systems whose answer is known."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from harness.api import Bound
from harness.experiments.agents import search
from harness.experiments.agents.agents_json import AgentTrial, TrialShare
from harness.experiments.agents.search import SEEDS, Key, SearchOptions, Tier, estimate, next_keys, sides
from harness.experiments.capacity.conditions import Condition

TTFT, TPOT = Condition(Bound("ttft", 5.0, None, 95.0), 0.95), Condition(Bound("tpot", 0.05, None, 90.0), 0.9)
TIER = Tier("p95:ttft=5,p90:tpot=50ms", (TTFT, TPOT))


def attained(users: float, capacity: float, goal: float, slope: float = 8.0) -> float:
    z = math.log(goal / (1 - goal)) - slope * math.log(users / capacity)
    return 1 / (1 + math.exp(-z))


def trial(
    key: Key, capacities: dict[Bound, float], *, requests: int = 800, scatter: float = 0.0, slope: float = 8.0, rng=None
) -> AgentTrial:
    """A trial of a system that crosses the goals at these numbers; `scatter` is that of ln(capacity) between seeds."""
    rng = rng or np.random.default_rng(key)
    shares = []
    for condition in (TTFT, TPOT):
        here = capacities[condition.key] * math.exp(scatter * rng.standard_normal())
        met = rng.binomial(requests, attained(key.users, here, condition.goal, slope))
        shares.append(TrialShare(text=str(condition.key), met=int(met), of=requests, sd=0.01))
    return AgentTrial(
        users=key.users, seed=key.seed, seconds=3600.0, requests=requests, sessions=20, wall_s=1.0,
        shares=shares, requests_rps=0.05 * key.users,
    )  # fmt: skip


def truth(capacity: float, goal: float, scatter: float, slope: float) -> float:
    """Where the mean share crosses the goal: below the capacity of the mean seed, because shares fall ever faster."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)

    def above(users: float) -> float:
        shares = [attained(users, capacity * math.exp(scatter * node), goal, slope) for node in nodes]
        return float(np.average(shares, weights=weights)) - goal

    return float(brentq(above, capacity / 5, capacity * 3))


def searched(capacities: dict[Bound, float], given: SearchOptions, **more) -> list[AgentTrial]:
    trials: list[AgentTrial] = []
    while keys := next_keys([TIER], trials, given):
        trials += [trial(key, capacities, **more) for key in keys]
        assert len(trials) < 500
        if not given.virtual and len(trials) >= 8:
            break
    return trials


def test_the_bracket_doubles_and_the_final_trials_lie_on_both_sides() -> None:
    """Numbers far from the crossing would make the answer a guess about the shape of the curve."""
    given = SearchOptions()

    trials = searched({TTFT.key: 22.0, TPOT.key: 40.0}, given)

    assert [1, 2, 4, 8, 16, 32] == [one.users for one in trials[:6]]
    low, high = sides(TIER, trials)
    assert low is not None
    assert high is not None
    assert low <= 22.5
    assert high >= 21.5
    assert high / low < 1.5
    found = estimate(TIER, trials, given)
    assert "resolved" == found.state
    assert str(TTFT.key) == found.binding
    assert found.agents == pytest.approx(22.0, rel=0.05)
    assert found.requests_rps == pytest.approx(0.05 * found.agents, rel=0.01)


@pytest.mark.parametrize(
    ("capacity", "slope", "scatter"),
    [(12.0, 50.0, 0.05), *(pytest.param(many, 8.0, 0.15, marks=pytest.mark.nightly) for many in (3.4, 57.0))],
)
def test_intervals_hold_the_truth_where_seeds_differ(capacity: float, slope: float, scatter: float) -> None:
    """Requests of a session are alike: an interval that counts them one by one would be far too narrow. Where one agent
    more changes everything it held 17 of 40: the numbers tried were too far apart for a line."""
    given, held, searches = SearchOptions(tolerance=0.2), 0, 40
    right = truth(capacity, TTFT.goal, scatter, slope)
    for repeat in range(searches):
        rng = np.random.default_rng([repeat, round(capacity)])
        trials = searched({TTFT.key: capacity, TPOT.key: 4 * capacity}, given, scatter=scatter, slope=slope, rng=rng)
        found = estimate(TIER, trials, given)
        held += found.low is not None and found.high is not None and found.low <= right <= found.high
    assert held >= 31  # with a coverage of 90 %, fewer of 40 come once in 100 times


def test_a_search_resumes_where_it_was() -> None:
    """Rerun with the same folder it would make other trials than in one go."""
    given, capacities = SearchOptions(), {TTFT.key: 9.0, TPOT.key: 30.0}
    whole = searched(capacities, given)

    for cut in range(1, len(whole)):
        trials = whole[:cut]
        while keys := next_keys([TIER], trials, given):
            trials += [trial(key, capacities) for key in keys]
        assert {Key(one.users, one.seed) for one in whole} == {Key(one.users, one.seed) for one in trials}


@pytest.mark.parametrize("made", [6, 9, -1])
def test_a_search_that_was_stopped_says_so_and_nothing_of_the_curve(made: int) -> None:
    """Shares that fell from 66% to 1% were reported as hardly falling, because the pilot was not over."""
    given = SearchOptions()
    trials = searched({TTFT.key: 22.0, TPOT.key: 40.0}, given, scatter=0.1)

    assert "the search ended before its last trials." == estimate(TIER, trials[:made], given).why


def test_a_tier_that_one_agent_misses_is_out_of_reach() -> None:
    """Zero agents with an interval would be a number that was never measured."""
    given = SearchOptions()
    trials = searched({TTFT.key: 0.4, TPOT.key: 30.0}, given)

    found = estimate(TIER, trials, given)

    assert ("unreachable", None) == (found.state, found.agents)
    assert [1] == [one.users for one in trials]


def test_without_a_number_that_misses_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest number that was tried would pass for the capacity."""
    monkeypatch.setattr(search, "MOST_AGENTS", 16)
    given = SearchOptions()
    trials = searched({TTFT.key: 900.0, TPOT.key: 900.0}, given)

    found = estimate(TIER, trials, given)

    assert ("unresolved", 16, None) == (found.state, found.met, found.missed)
    assert "no more were tried" in str(found.why)


def test_the_final_trials_are_as_many_as_the_scatter_of_the_pilot_asks_for() -> None:
    """Seeds that are added until the interval is narrow would select lucky moments."""
    given = SearchOptions(tolerance=0.05, max_seeds=40)
    trials = searched({TTFT.key: 20.0, TPOT.key: 90.0}, given, scatter=0.2, rng=np.random.default_rng(5))

    counts = {users: len([one for one in trials if one.users == users]) for users in {one.users for one in trials}}

    assert 2 * SEEDS < max(counts.values()) <= 40 + SEEDS


def test_on_a_wall_clock_every_trial_has_new_prompts_and_lies_near_the_crossing() -> None:
    """A server that remembers the prompts of a trial would answer the next one from its cache."""
    given = SearchOptions(virtual=False)
    trials = searched({TTFT.key: 11.0, TPOT.key: 30.0}, given)

    assert [1, 4, 16] == [one.users for one in trials[:3]]
    assert len(trials) == len({one.seed for one in trials})
    found = estimate(TIER, trials, given)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 11.0 <= found.high
