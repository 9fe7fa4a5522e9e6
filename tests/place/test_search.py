"""The bisection of a placement: what it returns, at what cost, and that seeds share what the first one found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.experiments.place.search import RESOLUTION, Ends, bisected, nearby

WIDTH = 0.0625


def system(capacity_rps: float):
    """A system that sustains every rate up to its capacity."""
    return lambda rate_rps: None if rate_rps <= capacity_rps else "ttft=0.2"


@given(st.floats(0.02, 300.0))
@settings(max_examples=60, deadline=None)
def test_the_rate_is_sustained_and_the_next_one_is_not(capacity_rps: float) -> None:
    """A placement would promise a rate that fails, or leave one on the table (E23)."""
    found = bisected(system(capacity_rps), 8.0, WIDTH)

    assert found.low_rps <= capacity_rps < found.high_rps
    assert found.high_rps - found.low_rps <= min(WIDTH, RESOLUTION * found.high_rps)
    assert found == bisected(system(capacity_rps), 8.0, WIDTH)


@given(st.floats(0.02, 300.0), st.floats(0.5, 2.0))
@settings(max_examples=60, deadline=None)
def test_another_seed_is_searched_around_the_first(capacity_rps: float, ratio: float) -> None:
    """Seeds after the first would be biased towards it."""
    first = bisected(system(capacity_rps), 8.0, WIDTH)

    found = nearby(system(ratio * capacity_rps), first)

    assert found.low_rps <= ratio * capacity_rps < found.high_rps
    assert found.high_rps - found.low_rps <= max(WIDTH, 2 * RESOLUTION * found.high_rps)


def test_a_seed_that_agrees_costs_two_trials() -> None:
    """Intervals would cost as much as the search itself."""
    first = bisected(system(4.75), 8.0, WIDTH)

    assert Ends(4.75, 4.8125, "ttft=0.2", 7, (None, None)) == first
    assert 2 == nearby(system(4.75), first).trials


@pytest.mark.parametrize("seeds", ["first", "further"])
def test_what_sustains_nothing_has_rate_nothing(seeds: str) -> None:
    """A search for a rate that is not there would never end."""
    first = bisected(system(0.0), 8.0, WIDTH)
    found = first if seeds == "first" else nearby(system(0.0), first)

    assert 0.0 == found.low_rps
    assert found.trials < 15
