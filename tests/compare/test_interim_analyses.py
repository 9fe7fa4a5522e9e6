"""Stopping early: what looking after 3, 5, 7 and 10 pairs costs, against simulated losses."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import special

from harness.experiments.compare.verdict import ALPHA_INTERIM, INTERIM, alpha
from harness.stats.paired import ALPHA, Limits, decide

CAPACITY = Limits(-math.log(0.98), -math.log(0.95))


@pytest.fixture
def endings():
    """Shares of the verdicts, and mean pairs, of comparisons under a noise of a run and with a true loss."""

    def simulate(noise, loss, draws=600):
        rng = np.random.default_rng(4)
        sd = math.hypot(math.sqrt(2) * noise, 0.0016)
        ended = [_ending((-math.log(1 - loss) + sd * rng.standard_normal(INTERIM[-1])).tolist()) for _ in range(draws)]
        counts = Counter(verdict for verdict, _ in ended)
        return {verdict: count / draws for verdict, count in counts.items()}, np.mean([pairs for _, pairs in ended])

    return simulate


def _ending(losses):
    for pairs in INTERIM:
        verdict = decide(losses[:pairs], CAPACITY, ALPHA_INTERIM).verdict
        if verdict != "inconclusive":
            return verdict, pairs
    return verdict, pairs


def test_four_analyses_have_one_percent_together():
    """Analyses after 3, 5, 7 and 10 pairs would call a difference more often than documented."""
    losses = np.random.default_rng(1).standard_normal((200_000, INTERIM[-1]))
    called = np.zeros(len(losses), bool)
    for pairs in INTERIM:
        seen = losses[:, :pairs]
        t = seen.mean(axis=1) / (seen.std(axis=1, ddof=1) / np.sqrt(pairs))
        called |= t > -special.stdtrit(pairs - 1, ALPHA_INTERIM)

    assert ALPHA == pytest.approx(called.mean(), rel=0.08)


def test_alpha_is_shared_between_analyses():
    """Looking often makes a wrong call likely."""
    assert 0.01 == alpha([5]) == alpha([])
    assert 0.003 == alpha([3, 5]) == alpha(INTERIM)
    assert 0.002 == alpha([3, 5, 7, 10, 14])
    assert (0.05, 0.0125, 0.01) == (alpha([5], 0.05), alpha([3, 5], 0.05), alpha([3, 5, 7, 10, 14], 0.05))


@pytest.mark.parametrize(("noise", "pairs"), [(0.002, 3.0), (0.01, 4.7), (0.02, 7.0)])
def test_equal_systems_are_called_different_as_rarely_as_the_table_says(endings, noise, pairs):
    """`--pairs auto` cries wolf, or needs more pairs than it was chosen for."""
    shares, mean_pairs = endings(noise, 0.0)

    assert 0.02 > shares.get("regressed", 0)
    assert pairs == pytest.approx(mean_pairs, abs=0.3)


@pytest.mark.parametrize(("noise", "found"), [(0.005, 1.0), (0.01, 1.0), (0.02, 0.96), (0.03, 0.64)])
def test_a_loss_of_five_percent_is_found_as_often_as_the_table_says(endings, noise, found):
    """A loss slips through because the looking stopped early."""
    shares, _ = endings(noise, 0.05)

    assert found == pytest.approx(shares["regressed"], abs=0.05)
    assert 0.02 > shares.get("equivalent", 0)
