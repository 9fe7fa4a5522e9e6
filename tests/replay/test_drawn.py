"""The simulator repeats a run of any engine on its recorded times, alone and in clusters, through the commands."""

import pytest

from replay._drawn import repeat

FEW = (5, 20, 51)
"""A cluster of engines that compute, a single one with tiers, and a cluster with tiers."""


@pytest.mark.parametrize(
    "number", [*FEW, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(40) if n not in FEW)]
)
def test_the_simulator_repeats_a_run_of_a_drawn_engine(number, tmp_path):
    """One bit of difference would mean that the simulator is not the engine under another clock."""
    assert repeat(number, tmp_path) == "equal"
