"""Stopping early: what looking after 3, 5, 7 and 10 pairs costs, against simulated losses."""

import numpy as np
import pytest
from scipy import special

from harness.experiments.compare.verdict import ALPHA_INTERIM, INTERIM, alpha
from harness.stats.paired import ALPHA


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
