"""Commands under random kills, stops, full disks, few files and little memory (`tests/perf/chaos.py`)."""

import subprocess
import sys
from pathlib import Path

import pytest

CHAOS = Path(__file__).parents[1] / "perf" / "chaos.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.mark.parametrize(
    ("first", "cases"),
    [
        pytest.param(0, 1, id="1"),
        pytest.param(1000, 1000, id="1000", marks=[pytest.mark.nightly, pytest.mark.timeout(6 * 3600)]),
    ],
)
def test_whatever_happens_a_command_ends_in_order(first: int, cases: int) -> None:
    """A night of measurements would be lost, or a process be left that disturbs the next."""
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--first", str(first), "--cases", str(cases)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert 0 == done.returncode, done.stdout + done.stderr
