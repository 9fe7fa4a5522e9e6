"""Facts about this machine and this process that a result must carry."""

import os
import platform
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from harness.version import __version__


@cache
def versions() -> dict[str, str]:
    """Versions of everything that could change a result."""
    libraries = {name: version(name) for name in ("numpy", "pyarrow")}
    return {"python": platform.python_version(), "bench": __version__, **libraries}


def host() -> dict[str, object]:
    """The machine that ran the client."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def busy(machine: Mapping[str, object]) -> str | None:
    """What a machine of that `host` was busy with: 'load 26.0 on 2 cores'; None for one with a core to spare."""
    load, cores = machine.get("load"), machine.get("cores")
    if not isinstance(load, int | float) or not isinstance(cores, int) or load < cores:
        return None
    return f"load {load:.1f} on {cores} core{'' if cores == 1 else 's'}"


def cpu_name() -> str | None:
    """The processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def process_age_s() -> float | None:
    """Seconds since this process was started, to 10 ms; None where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return None
