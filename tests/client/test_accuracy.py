import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "perf" / "client_accuracy.py"


@pytest.mark.nightly
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="needs Linux and two cores")
def test_the_benchmark_of_accuracy_runs_and_nothing_fails() -> None:
    """The claim of accuracy could not be repeated by anyone."""
    command = [sys.executable, str(SCRIPT), "--clients", "bench,aiohttp,bare", "--streams", "5", "--seconds", "0.5"]
    output = subprocess.run(
        [*command, "--cores", "quiet"], capture_output=True, text=True, timeout=120, check=True
    ).stdout

    rows = [line.split() for line in output.splitlines() if line.split()[1:2] == ["quiet"]]
    assert ["bench", "aiohttp", "bare"] == [row[2] for row in rows]
    assert ["0", "0", "0"] == [row[4] for row in rows]
