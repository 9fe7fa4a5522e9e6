"""The simulator repeats a run of any engine on its recorded times, alone and in clusters, through the commands."""

import pytest

from replay._drawn import repeat


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(4, 40))])
def test_the_simulator_repeats_a_run_of_a_drawn_engine(number, tmp_path):
    """One bit of difference would mean that the simulator is not the engine under another clock."""
    assert repeat(number, tmp_path) == "equal"
