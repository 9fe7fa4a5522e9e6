"""The executor in PyTorch, which is installed for another server's sake."""

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
TESTS = ("tests/engine/test_torch.py", "tests/replay/test_engine.py", "tests/contracts/test_core_plugins.py")
PYTEST = "import sys; sys.path.append(sys.argv[1]); import pytest; sys.exit(pytest.main(sys.argv[2:]))"
"""Behind the packages of this environment, so that only what is missing here is found there."""


def test_what_needs_pytorch_passes_where_it_is_installed(environment):
    """Everywhere else these tests are skipped, and a broken executor would pass."""
    (packages,) = (environment("transformers").parent / "lib").glob("python*/site-packages")
    command = [sys.executable, "-c", PYTEST, str(packages), "-k", "torch", "-rs", "-p", "no:cacheprovider", *TESTS]
    ran = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)

    assert 0 == ran.returncode, ran.stdout
    assert "not installed" not in ran.stdout
