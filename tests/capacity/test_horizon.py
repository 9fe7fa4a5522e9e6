"""The search over a horizon, on runs of a queue: one server, first come first served, Poisson arrivals."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from harness.api import Bound, Slo
from harness.experiments.capacity.conditions import Share
from harness.experiments.capacity.horizon import MOST_RUNS, HorizonSearch
from harness.experiments.capacity.search_spec import SearchResult, SearchSpec, TrialRequest
from harness.experiments.capacity.trials import QUARTERS, Key, Quarters, Trial
from harness.metrics.objective import JOINT

MEAN_S, GOAL, HORIZON_S = 0.4, 0.9, 600.0
SPEC = SearchSpec(
    Slo((Bound("ttft", 2.0),)), GOAL, "joint", 100, 1, limit=200_000, horizon_s=HORIZON_S, mean_known=True
)


def queue(request: TrialRequest) -> Trial:
    """A run; requests one by one wait for nothing."""
    key, bound = request.key, SPEC.slo.bounds[0]
    if request.horizon_s is None:
        alone = tuple(Share(name, key.planned, key.planned) for name in (JOINT, bound))
        return Trial(key, key.planned, key.planned, 0, True, False, MEAN_S, 0, 0, alone)
    arrivals, services = np.random.default_rng(key.seed).spawn(2)
    due_s = np.cumsum(arrivals.exponential(1, int(1.5 * key.rate_rps * request.horizon_s) + 100)) / key.rate_rps
    due_s = due_s[due_s < request.horizon_s]
    work_s = services.exponential(MEAN_S, len(due_s))
    behind = np.concatenate([[0], np.cumsum(work_s[:-1] - np.diff(due_s))])
    waits = behind - np.minimum.accumulate(behind)
    quarter = (due_s / request.horizon_s * QUARTERS).astype(int)
    met, of = (np.bincount(quarter, each, QUARTERS).astype(int) for each in (waits <= bound.limit, np.ones(len(waits))))
    ends = request.horizon_s / QUARTERS * np.arange(1, QUARTERS + 1)
    under_way = np.array([int((due_s < end).sum() - (due_s + waits + work_s < end).sum()) for end in ends])
    shares = tuple(Share(name, int(met.sum()), int(of.sum())) for name in (JOINT, bound))
    counted = (dict.fromkeys((JOINT, bound), part) for part in (met, of))
    quarters = Quarters(*counted, under_way, (float(work_s.sum()), 0.0))
    return Trial(key, len(due_s), len(due_s), 0, None, False, MEAN_S, request.horizon_s, 0, shares, quarters=quarters)


def searched(
    spec: SearchSpec = SPEC, make: Callable[[TrialRequest], Trial] = queue
) -> tuple[HorizonSearch, SearchResult]:
    """A search with runs that `make` makes."""
    search = HorizonSearch(spec)
    steps, made = search.steps(), None
    while True:
        try:
            made = [make(request) for request in steps.send(made)]  # type: ignore[arg-type]
        except StopIteration as end:
            return search, end.value


def share_at(rate_rps: float, seeds: int = 60) -> np.ndarray:
    """Shares of runs of fresh seeds."""
    requests = [TrialRequest(Key(90_000 + seed, rate_rps, 1), (), 0.0, HORIZON_S) for seed in range(seeds)]
    return np.array([share.met / share.of for request in requests for share in queue(request).shares[:1]])


def test_the_answer_holds_where_the_mean_of_fresh_runs_meets_the_goal() -> None:
    _, result = searched()
    estimate = result.estimate

    assert result.resolved and estimate is not None and estimate.low_rps and estimate.high_rps
    assert estimate.half_width <= SPEC.tolerance
    assert share_at(estimate.low_rps).mean() > GOAL > share_at(estimate.high_rps).mean()


def test_equal_seeds_give_equal_answers_and_others_do_not() -> None:
    first, again, other = (searched(replace(SPEC, first_seed=seed))[1].estimate for seed in (1, 1, 2))

    assert first == again
    assert first is not None and other is not None and first.rate_rps != other.rate_rps


@pytest.mark.parametrize("limit", [20_000, 30_000])
def test_a_search_that_ends_at_its_limit_has_an_interval_and_a_price(limit: int) -> None:
    search, result = searched(replace(SPEC, limit=limit, tolerance=0.01))
    truth = searched(replace(SPEC, first_seed=5_000))[1].estimate

    assert search._spent < 1.3 * limit
    assert not result.resolved
    assert result.why == "the search stopped at its limit."
    assert truth is not None and result.estimate is not None
    assert result.estimate.low_rps and result.estimate.high_rps
    assert result.estimate.low_rps <= truth.rate_rps <= result.estimate.high_rps
    assert result.needs is None or result.needs > limit
    assert result.needs


def test_a_flat_curve_ends_a_search_early_and_says_what_it_would_take() -> None:
    """Where a tenth of the requests misses at any load no number of runs tells the rate."""

    def leaky(request: TrialRequest) -> Trial:
        trial = queue(request)
        if (quarters := trial.quarters) is None:
            return trial
        of = quarters.of[JOINT]
        met = np.random.default_rng([7, trial.key.seed]).binomial(quarters.met[JOINT], 0.9)
        shares = tuple(Share(share.key, int(met.sum()), int(of.sum())) for share in trial.shares)
        return replace(trial, shares=shares, quarters=replace(quarters, met=dict.fromkeys(quarters.met, met)))

    search, result = searched(replace(SPEC, limit=1_000_000), leaky)

    assert not result.resolved and result.why is not None
    assert result.why.startswith("near the goal attainment hardly depends on the rate: to tell it to 3% takes about")
    assert len(search._runs) < 1.25 * MOST_RUNS


def test_runs_that_scatter_around_the_goal_tell_no_narrow_bracket() -> None:
    """Of rates that met and missed it by turns, two neighbours were called the sides of the capacity."""
    search = HorizonSearch(SPEC, horizon_s=HORIZON_S)
    shares = {0.5: 99, 1.0: 92, 1.1: 89, 1.2: 91, 1.3: 89, 1.4: 91, 2.0: 60}
    for rate_rps, met in shares.items():
        for seed in (1, 2) if 0.5 < rate_rps < 2 else (1, 2, 3, 4):
            trial = queue(TrialRequest(Key(seed, rate_rps, 1), (), 0.0, HORIZON_S))
            search._runs[seed, rate_rps] = replace(trial, shares=tuple(Share(s.key, met, 100) for s in trial.shares))
    bracket = search._tried(search._by_rate())

    assert bracket.low and bracket.high
    assert (0.5, 2.0) == (bracket.low.rate_rps, bracket.high.rate_rps)
    assert bracket.low.sure and bracket.high.sure


@pytest.mark.parametrize("limit", [3_000, 8_000])
def test_runs_too_few_to_be_sure_have_a_bracket_and_no_rate_in_its_middle(limit: int) -> None:
    """One run at 6.4 req/s met the goal, and the answer was 3.2 req/s: the middle of the rates that were tried."""
    _, result = searched(replace(SPEC, limit=limit))
    low, high = result.bracket.low, result.bracket.high

    assert result.estimate is None and not result.resolved
    assert low and high and low.rate_rps < high.rate_rps
    assert not low.sure and not high.sure


def test_an_interval_shrinks_with_what_was_spent() -> None:
    few, more, most = (
        searched(replace(SPEC, limit=limit, tolerance=0.005))[1].estimate for limit in (20_000, 40_000, 160_000)
    )

    assert few and more and most
    assert few.half_width > more.half_width > most.half_width


def test_recorded_results_are_not_made_again() -> None:
    recorded: dict[Key, Trial] = {}

    def make(request: TrialRequest) -> Trial:
        if request.key not in recorded:
            recorded[request.key] = queue(request)
        return recorded[request.key]

    searched(replace(SPEC, limit=20_000), make)
    before = len(recorded)
    _, resumed = searched(SPEC, make)
    uninterrupted, at_once = searched()

    assert before > 10
    assert resumed.estimate == at_once.estimate
    assert sum(trial.requests for trial in recorded.values()) <= 1.2 * uninterrupted._spent


def test_windows_ask_for_a_lower_rate_at_which_most_runs_meet_the_goal() -> None:
    _, mean = searched()
    _, windows = searched(replace(SPEC, windows=0.95, tolerance=0.05))

    assert windows.estimate and mean.estimate
    assert windows.estimate.rate_rps < mean.estimate.rate_rps
    assert 0.9 < (share_at(windows.estimate.rate_rps, 200) >= GOAL).mean() < 0.99


def test_beside_the_answer_stand_what_runs_were_like_and_where_the_queue_is_stable() -> None:
    _, result = searched()
    near = result.near

    assert near is not None and result.stable_rps is not None
    assert np.mean(near.quarters) == pytest.approx(GOAL, abs=0.04)
    assert near.worst < GOAL
    assert 0.3 < near.met < 0.9
    assert near.collapsed <= 0.1
    assert result.stable_rps == pytest.approx(1 / MEAN_S, rel=0.1)


def test_where_requests_one_by_one_miss_no_rate_is_low_enough() -> None:
    def make(request: TrialRequest) -> Trial:
        trial = queue(request)
        return replace(trial, shares=tuple(replace(s, met=s.of // 2) for s in trial.shares))

    _, result = searched(make=make)

    assert result.unreachable
    assert "no rate is low enough" in (result.why or "")


def test_where_attainment_does_not_depend_on_the_rate_the_capacity_is_below_the_lowest_rate() -> None:
    def make(request: TrialRequest) -> Trial:
        trial = queue(request)
        if request.horizon_s is None:
            return trial
        return replace(trial, shares=tuple(replace(s, met=int(0.8 * s.of)) for s in trial.shares))

    _, result = searched(make=make)

    assert result.estimate is None and not result.resolved
    assert result.bracket.low is None and result.bracket.high is not None
    assert "attainment hardly depends on the rate" in (result.why or "")


def test_no_rate_is_tried_at_which_runs_are_almost_empty() -> None:
    """Where a lucky short run met the goal, the search went on down to 1e-25 req/s, in runs without a request."""
    tried = []

    def make(request: TrialRequest) -> Trial:
        trial, probe = queue(request), request.key.goal is not None
        tried.append(request.key.rate_rps)
        if request.horizon_s is None or (probe and request.key.rate_rps < 0.1):
            return trial
        return replace(trial, shares=tuple(replace(s, met=int(0.8 * s.of)) for s in trial.shares))

    _, result = searched(make=make)

    assert not result.resolved and "a longer --horizon tries lower rates" in (result.why or "")
    assert min(rate for rate in tried if rate) * HORIZON_S > 1


def test_a_rate_far_from_the_answer_is_decided_early() -> None:
    whole, _ = searched()
    search, result = searched(replace(SPEC, at_rps=1.0))

    assert result.estimate and result.estimate.low_rps and result.estimate.low_rps > 1.0
    assert search._spent < 0.7 * whole._spent


def test_runs_of_fast_systems_are_cut_to_lengths_that_people_repeat() -> None:
    lengths = {HorizonSearch(replace(SPEC, horizon_s=None), horizon_s=600.0, _least_s=60.0)._horizon_at(rate)
               for rate in (1.0, 9.0, 17.0, 30.0, 50.0, 1e4)}  # fmt: skip

    assert lengths == {600.0, 300.0, 180.0, 120.0, 60.0}


def test_runs_of_slow_systems_last_until_some_requests_came() -> None:
    """In 10 minutes none or one comes at 0.001 req/s: the mean of such shares says nothing."""
    search = HorizonSearch(replace(SPEC, horizon_s=None), horizon_s=600.0, _least_s=60.0)

    assert [600.0, 1_020.0, 30_000.0] == [search._horizon_at(rate) for rate in (0.06, 0.03, 0.001)]
