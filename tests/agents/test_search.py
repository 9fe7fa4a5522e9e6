"""What a search for agents says of systems whose answer is known."""

import math

import numpy as np
import pytest

from harness.api import Bound, Slo
from harness.experiments.agents import execute as search
from harness.experiments.agents.execute import AgentBlocks, AgentSearch, agents_at
from harness.experiments.capacity.conditions import Share
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, TrialRequest, answered
from harness.experiments.capacity.trials import Trial
from harness.metrics.objective import JOINT

TPOT = Bound("tpot", 0.05, None, 90.0)


class Formula:
    """A system of which `share` of the requests of a run meet the bound; `made` are its trials: agents and seed."""

    def __init__(self, capacity: float, slope: float = 8.0, scatter: float = 0.0, repeat: int = 0) -> None:
        self.capacity, self.slope, self.scatter, self.repeat = capacity, slope, scatter, repeat
        self.made: list[tuple[int, int]] = []

    def share(self, users: float, capacity: float) -> float:
        return 1 / (1 + math.exp(self.slope * math.log(users / capacity)) / 9)

    def truth(self) -> float:
        """Where the mean share crosses the goal, between two whole numbers on a straight line."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(41)
        means = [
            np.average(
                [self.share(n, self.capacity * math.exp(self.scatter * node)) for node in nodes], weights=weights
            )
            for n in range(1, math.ceil(3 * self.capacity))
        ]
        below = next(n for n, mean in enumerate(means, 1) if mean < 0.9) - 1
        return float(below + (means[below - 1] - 0.9) / (means[below - 1] - means[below]))

    def run(self, wanted: list[TrialRequest], *, whole: bool = False) -> list[Trial]:
        return [self._trial(want, whole=whole) for want in wanted]

    def _trial(self, want: TrialRequest, *, whole: bool) -> Trial:
        key = want.key
        users = round(key.rate_rps) if whole else agents_at(key.rate_rps, key.seed)
        self.made.append((users, key.seed))
        rng = np.random.default_rng([self.repeat, users, key.seed])
        capacity = self.capacity * math.exp(self.scatter * rng.standard_normal())
        requests = max(20, int(users * (want.horizon_s or 3600.0) / 40))
        met = int(rng.binomial(requests, self.share(users, capacity)))
        others = [bound for bound in want.slo.bounds if bound != TPOT] if want.slo else []  # on waiting, implied
        shares = Share(TPOT, met, requests), *(Share(key, requests, requests) for key in (JOINT, *others))
        return Trial(key, requests, requests, 0.0, None, False, None, want.horizon_s or 3600.0, 0.0, shares)


def spec(tolerance: float = 0.1, first: float = 1.0) -> SearchSpec:
    return SearchSpec(
        slo=Slo((TPOT,)), goal=0.9, definition="joint", planned=0, tolerance=tolerance, from_rps=first,
        horizon_s=3600.0, limit=200_000,
    )  # fmt: skip


def simulated(system: Formula, **given: float) -> SearchResult:
    return answered(AgentSearch(spec(**given)).steps(), system.run)


def held(found: SearchResult, system: Formula) -> bool:
    """Whether the interval in whole agents holds the truth."""
    estimate = found.answered
    if estimate is None or estimate.low_rps is None or estimate.high_rps is None:
        return False
    return math.floor(estimate.low_rps) <= system.truth() <= math.ceil(estimate.high_rps)


@pytest.mark.parametrize("load", [0.5, 3.4, 20.0])
def test_a_load_between_two_numbers_is_both_of_them(load: float) -> None:
    """Runs of one number alone would tell the side of another load."""
    users = [agents_at(load, seed) for seed in range(1000)]

    assert {max(1, math.floor(load)), max(1, math.ceil(load))} == {*users}
    assert np.mean(users) == pytest.approx(max(1.0, load), abs=0.01)
    assert np.mean(users[::2]) == pytest.approx(max(1.0, load), abs=0.01)


@pytest.mark.parametrize(
    ("capacity", "slope", "scatter"),
    [(12.0, 50.0, 0.05), *(pytest.param(many, 8.0, 0.15, marks=pytest.mark.nightly) for many in (3.4, 57.0))],
)
def test_intervals_hold_the_truth_where_seeds_differ(capacity: float, slope: float, scatter: float) -> None:
    """Requests of a session are alike: an interval that counts them one by one would be far too narrow."""
    systems = [Formula(capacity, slope, scatter, repeat) for repeat in range(20)]

    assert sum(held(simulated(system), system) for system in systems) >= 15


def test_a_search_resumes_where_it_was() -> None:
    """Rerun with the same folder it would make other trials than in one go."""
    once, again = Formula(9.0), Formula(9.0)
    simulated(once)
    simulated(again)

    assert once.made == again.made
    assert (1, 2) == (once.made[0][0], once.made[4][0])


def test_a_tier_that_one_agent_misses_is_out_of_reach() -> None:
    """Zero agents with an interval would be a number that was never measured."""
    system = Formula(0.4)
    found = simulated(system)

    assert found.unreachable
    assert found.estimate is None
    assert {1} == {users for users, _ in system.made}


def test_without_a_number_that_misses_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest number that was tried would pass for the capacity."""
    monkeypatch.setattr(search, "MOST_AGENTS", 16)
    found = simulated(Formula(900.0))

    assert (None, False) == (found.answered, found.resolved)


def test_on_a_wall_clock_every_trial_has_new_prompts_and_lies_near_the_crossing() -> None:
    """A server that remembers the prompts of a trial would answer the next one from its cache."""
    system = Formula(11.0)
    left = iter(range(8))

    def run(wanted: list[TrialRequest]) -> list[Trial]:
        return system.run(wanted, whole=True) if next(left, None) is not None else []

    found = answered(AgentBlocks(spec(0.001), lambda: math.inf, ()).steps(), run)

    assert [1, 4, 16] == [users for users, _ in system.made[:3]]
    assert len(system.made) == len({seed for _, seed in system.made}) == 8
    assert all(7 <= users <= 16 for users, _ in system.made[3:])
    assert held(found, system)
