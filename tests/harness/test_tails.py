"""What is computed without scipy, whose modules take longer to load than a short run, is what scipy gives."""

import numpy as np
import pytest
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit
from scipy.stats import binom

from harness.stats.crossing import falling, monotone
from harness.stats.tails import at_least, student


def test_half_widths_are_scipys() -> None:
    """Every interval would be too narrow, or too wide."""
    sizes = [*range(2, 60), 200, 1000, 10**6]

    assert stdtrit(np.array(sizes) - 1, 0.975).tolist() == pytest.approx([student(n) for n in sizes], rel=1e-10)


def test_tails_of_counts_are_scipys() -> None:
    """A search would decide about a rate with too few requests, or never."""
    rng = np.random.default_rng(0)
    of = np.concatenate([[1, 1, 7, 7], (10 ** rng.uniform(0, 6, 300)).astype(int)])
    share = np.concatenate([[0.0, 1.0, 1.0, 0.0], rng.random(150), 1 - 10 ** rng.uniform(-4, 0, 150)])
    drawn = rng.binomial(of, share) + rng.normal(0, 3, len(of)) * np.sqrt(of * share * (1 - share))
    counts = np.clip(drawn.astype(int), 0, of)
    expected = binom.sf(counts - 1, of, share)

    tails = [at_least(int(count), int(n), float(p)) for count, n, p in zip(counts, of, share, strict=True)]
    assert expected.tolist() == pytest.approx(tails, rel=1e-7, abs=1e-300)


def test_monotone_values_are_scipys() -> None:
    """A capacity would be read off another curve."""
    rng = np.random.default_rng(0)
    for n in rng.integers(1, 40, 300):
        values = np.sort(rng.integers(0, 30, n) / 29)[:: rng.choice([1, -1])] + rng.normal(0, 0.1, n)
        sizes = rng.integers(1, 3000, n)
        both = [isotonic_regression(values, weights=sizes, increasing=rise).x.tolist() for rise in (True, False)]

        for expected, of in zip(both, (monotone, falling), strict=True):
            assert expected == pytest.approx(of(values.tolist(), sizes.tolist()), rel=1e-13)
