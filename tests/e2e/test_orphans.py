"""After kill -9 of a command none of its processes goes on, whatever it computes, and nothing is printed any more."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to find the processes")

LINES = {
    "run": ["run", "--backend", "engine", "--rate", "1", "--duration", "60s"],
    "serve": ["serve", "--port", "0"],
    "sweep": ["sweep", "--backend", "sim", "--rate", "1,2", "--requests", "300000", "--seeds", "1", "--workers", "2"],
    "capacity": ["capacity", "--backend", "sim", "--hardware", "h100", "--tolerance", "0.1%", "--workers", "2"],
}
"""Commands that would go on for minutes, in processes of their own."""
NIGHTLY = pytest.mark.nightly  # the workers of a search are those of a sweep, the engine of a server that of a run


def descendants(pid: int) -> list[int]:
    """Processes below `pid`."""
    above: dict[int, int] = {}
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            above[int(one.parent.name)] = int(one.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in above.items() if parent == one]
    return found[1:]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("name", ["run", "sweep", *(pytest.param(n, marks=NIGHTLY) for n in ("capacity", "serve"))])
def test_no_process_outlives_a_killed_command(
    name: str,
    bench: Callable[..., "subprocess.Popen[str]"],
    wait_for: Callable[[Callable[[], bool]], None],
) -> None:
    """Orphans would take cores from the next measurement for ever, as those of a draw did."""
    workers = 1 if name in ("run", "serve") else 4  # with what forks them, and what clears up behind them
    process = bench(*LINES[name])
    wait_for(lambda: process.poll() is not None or len(descendants(process.pid)) >= workers)
    children = descendants(process.pid)

    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in children))
    err = process.communicate()[1]

    assert children
    assert "resource_tracker" not in err  # of semaphores that were cleared away
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux does this")
def test_a_process_that_computes_without_a_pause_ends_with_its_parent(
    tmp_path: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    """A sender or an engine in a long computation reads no socket, and lets no other thread run."""
    child = (
        "import ctypes, os, pathlib; from harness import termination; termination.led();"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()));"
        "ctypes.PyDLL(None).sleep(60)"  # holds the interpreter
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    wait_for(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    pid = int((tmp_path / "pid").read_text())

    assert alive(pid)
    parent.kill()
    parent.wait()
    wait_for(lambda: not alive(pid))
