"""The steady-state search on queues whose capacity follows from long runs, and on chains of a known curve."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from harness.experiments.capacity.chain import Observed, Unloaded
from harness.experiments.capacity.conditions import Condition
from harness.experiments.capacity.steady import CHAINS, SteadySearch, SteadySpec, growth, plain
from harness.metrics.objective import JOINT

KNEE = 10.0


@pytest.fixture
def curve():
    """A factory of searches: attainment is a logistic curve of ln(rate) through the goal at 10 req/s."""

    def searched(slope=15.0, clump=1.0, limit=400_000, seed=0, unstable_rps=math.inf, knee=KNEE, lucky_rps=0.0, **spec):
        tried = []

        def observed(request):
            tried.append(request)
            rng = np.random.default_rng([request.seed, round(request.rate_rps * 1e4)])
            n = max(1, round(request.rate_rps * request.block_s))
            share = 1 / (1 + math.exp(-(math.log(9) - slope * math.log(request.rate_rps / knee))))
            if request.seed == seed + CHAINS and request.rate_rps < lucky_rps:
                share = 1.0
            lots = rng.binomial(max(1, round(n / clump)), share, request.blocks)
            of = np.full(request.blocks, n)
            met = np.minimum(of, (lots * clump * n / (max(1, round(n / clump)) * clump)).astype(int))
            grows = max(0.0, request.rate_rps - unstable_rps) * request.block_s
            queue = np.arange(request.blocks) * grows + rng.poisson(20, request.blocks)
            return Observed(request, {JOINT: met}, {JOINT: of}, queue.astype(int), n * request.blocks)

        aim = {"goal": 0.9, "tolerance": 0.03, "limit": limit, "first_seed": seed, **spec}
        steps, made = SteadySearch(SteadySpec((Condition(JOINT, 0.9),), **aim), Unloaded((), 1.0, 2.0)).steps(), None
        while True:
            try:
                made = [observed(request) for request in steps.send(made)]
            except StopIteration as end:
                return end.value, tried

    return searched


@pytest.mark.parametrize("slope", [2.0, 6.0, 15.0, 40.0, 400.0])
def test_a_capacity_is_found_however_steep_the_curve(curve, slope):
    """Flat curves take rates far apart, steep ones two sides; one fixed distance finds neither."""
    found, _ = curve(slope)

    assert found.resolved
    assert found.estimate.low_rps <= KNEE * 1.002
    assert found.estimate.high_rps >= KNEE / 1.002
    assert found.estimate.half_width <= 0.0301


def test_an_answer_lies_within_the_rates_tried(curve):
    """'50 (13 .. 189)' would be printed where all rates tried lie between 18 and 31."""
    for seed in range(0, 100_000, 5000):
        found, tried = curve(3.0, seed=seed, limit=60_000)
        rates = [request.rate_rps for request in tried]

        if found.estimate is not None:
            assert min(rates) <= found.estimate.low_rps <= found.estimate.high_rps <= max(rates)


@pytest.mark.parametrize("lucky_rps", [10.5, 11.5, 14.0])
def test_one_lucky_chain_does_not_outweigh_sixteen(curve, lucky_rps):
    """The interval would be withheld, however long the search goes on, because it lies below a rate that was met."""
    found, _ = curve(12.0, lucky_rps=lucky_rps)
    low_rps, high_rps = found.bracket

    assert found.resolved
    assert found.estimate.low_rps <= KNEE * 1.002
    assert found.estimate.high_rps >= KNEE / 1.002
    assert low_rps is None or low_rps <= found.estimate.high_rps
    assert high_rps is None or high_rps >= found.estimate.low_rps


def test_a_limit_is_kept_and_named(curve):
    """Minutes more than were allowed would be spent, without a word why there is no answer."""
    found, tried = curve(1.0, limit=30_000)
    chains = {request.chain: request.requests for request in tried}

    assert not found.resolved
    assert found.why is not None
    assert sum(chains.values()) <= 30_000


def test_a_rate_at_which_the_queue_grows_is_too_high(curve):
    """All requests meet a bound on TPOT while the queue before the first token has no end."""
    found, tried = curve(knee=1e3, unstable_rps=5.0)

    assert found.resolved
    assert found.estimate.low_rps <= 5.0 <= found.estimate.high_rps
    assert len({request.rate_rps for request in tried}) < 12


def test_chains_count_from_when_a_system_has_its_size(curve):
    """Requests that waited while an autoscaler loaded weights would count, and a lower rate pass for the capacity."""
    _, tried = curve(settles_s=150.0)
    _, shorter = curve(settles_s=150.0, cut_s=10.0)

    assert {150.0} == {request.cut_s for request in tried}
    assert {10.0} == {request.cut_s for request in shorter}


def test_one_rate_to_decide_ends_the_search_early(curve):
    """Whether 5 req/s are sustained would cost as much as the capacity itself."""
    below, cheap = curve(at_rps=5.0)
    above, _ = curve(at_rps=20.0)
    _, dear = curve()

    assert below.bracket[0] == 5.0
    assert above.bracket[1] == 20.0
    assert len(cheap) < len(dear) / 4


def test_the_final_chains_have_the_seeds_that_two_searches_share(curve):
    """A comparison of two systems seed by seed would find none in common."""
    first, _ = curve(seed=7)
    second, _ = curve(12.0, seed=7)

    assert set(range(7, 15)) <= {*first.estimate.capacity_by_seed} & {*second.estimate.capacity_by_seed}


def test_growth_is_distinguished_from_noise():
    """A busy system would pass for an unstable one."""
    rng = np.random.default_rng(1)

    def chains(slope):
        queue = [rng.poisson(50, 72) + slope * np.arange(72) for _ in range(8)]
        return [Observed(None, {}, {}, q, 0) for q in queue]

    assert abs(growth(chains(0.0))) < 4
    assert growth(chains(1.0)) > 12


def test_four_digits_name_a_rate():
    """Rates in file names and tables would have sixteen."""
    assert 12.35 == plain(12.345678)


def test_intervals_hold_the_truth_of_drawn_queues():
    """The interval is the product: a search that stops when it seems narrow holds the truth in three of four."""
    path = Path(__file__).parents[1] / "perf" / "capacity_queues.py"
    spec = importlib.util.spec_from_file_location("capacity_queues", path)
    queues = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(queues)
    queue = queues.Queue(cv_service=1.0, cv=1.0, bound_s=3.72, goal=0.9)
    truth = 0.5492  # P(W > t) = rho exp(-(1 - rho) t) is close, for services that are lognormal
    held = []
    for seed in range(6):
        found = queue.searched(100_000 * seed, 400_000, tolerance=0.06)
        held.append(found.estimate.low_rps <= truth * 1.005 and truth / 1.005 <= found.estimate.high_rps)

    assert sum(held) >= 5
