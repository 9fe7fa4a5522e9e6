"""The command line starts fast because it imports late."""

import json
import subprocess
import sys

import pytest

HEAVY = {"numpy", "pandas", "pyarrow", "plotly", "scipy", "aiohttp", "asyncio", "rich", "workloads", "backends"}
PROBE = """
import json, resource, sys
from harness.cli import main
code = main({arguments})
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, sorted(sys.modules), usage.ru_utime + usage.ru_stime]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], [], ["run", "--help"], ["serve", "--help"], ["report", "--help"], ["theory", "--help"], ["--version"]],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """Everybody would wait a second for a help text."""
    source = PROBE.format(arguments=arguments)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    code, modules, _ = json.loads(done.stderr)

    assert code == 0
    assert set() == HEAVY & {name.split(".")[0] for name in modules}


def test_help_names_every_command() -> None:
    """A command that the help does not name is never found."""
    done = subprocess.run([sys.executable, "-m", "harness", "--help"], capture_output=True, text=True, check=True)

    for command in ("run", "serve", "report", "list", "explain", "doctor", "init"):
        assert f"  {command} " in done.stdout
