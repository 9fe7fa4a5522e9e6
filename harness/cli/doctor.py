"""`bench doctor`: checks whether this machine can measure, each with a remedy where it cannot."""

import importlib.metadata as metadata
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click

from harness.cli._installed import DISTRIBUTION, others
from harness.cli._options import formats
from harness.errors import BenchError
from harness.version import __version__


@dataclass(frozen=True, slots=True)
class Found:
    """One line of the doctor's answer."""

    name: str
    state: Literal["ok", "warn", "FAIL"]
    value: str
    remedy: str = ""


def packages() -> Found:
    """Everything that the installation asks for, in versions it accepts, and no other files in its four packages."""
    if mixed := [f"{owner} has files in '{name}'" for owner, name in others()]:
        return Found("packages", "FAIL", "; ".join(mixed), f"install bench alone: uv tool install {DISTRIBUTION}")
    missing = [name for name in _required() if not _installed(name)]
    if not missing:
        return Found(
            "packages",
            "ok",
            f"bench {__version__} and all it needs, Python {platform.python_version()} in {sys.prefix}",
        )
    return Found("packages", "FAIL", f"missing: {', '.join(missing)}", "pip install .")


def _required() -> list[str]:
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return [DISTRIBUTION]
    return [re.split(r"[^A-Za-z0-9_.-]", line)[0] for line in lines if "extra ==" not in line]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def core() -> Found:
    """Whether the simulator's core and the client's reads are compiled; results are the same either way."""
    from backends.client import reads
    from backends.serving import replica

    if not replica.__file__.endswith(".py"):
        reader = "the client reads tokens in " + ("Python" if reads.wait is None else "C")
        return Found("simulator core", "ok", f"compiled with mypyc; {reader}")
    return Found("simulator core", "ok", "pure Python; HATCH_BUILD_HOOKS_ENABLE=1 pip install . compiles it")


def cores() -> Found:
    """Two or more: one for the client, the others for the engine."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    if count >= 2:
        return Found("cores", "ok", str(count))
    return Found("cores", "warn", str(count), "the engine and the client share one core; lower --rate")


def load() -> Found:
    """No other program should compete for the CPU."""
    if not hasattr(os, "getloadavg"):
        return Found("load", "ok", "not available on this system")
    value = os.getloadavg()[0]
    if value < 0.5 * (os.cpu_count() or 1):
        return Found("load", "ok", f"{value:.2f} on average in the last minute")
    return Found("load", "warn", f"{value:.2f} in the last minute", "stop other programs while measuring")


def timer() -> Found:
    """How late a sleep of 1 ms ends: half of all, and the worst of 100."""
    late_s = []
    for _ in range(100):
        start_s = time.monotonic()
        time.sleep(0.001)
        late_s.append(time.monotonic() - start_s - 0.001)
    median_ms = statistics.median(late_s) * 1e3
    value = f"a sleep is {median_ms:.2f} ms late (median), {max(late_s) * 1e3:.1f} ms at worst"
    if max(late_s) < 0.01:
        return Found("timer", "ok", value)
    return Found("timer", "warn", value, "stop other programs, or measure on a machine that is not shared")


def stamps() -> Found:
    """Whether the kernel timestamps received bytes; token times of a remote server are taken from it."""
    from backends.client.stamps import kernel_stamps

    if kernel_stamps():
        return Found("arrival stamps", "ok", "of the kernel (SO_TIMESTAMPNS)")
    remedy = (
        "token times of a remote server are those of reading; measure from Linux, or see the client floor in the report"
    )
    return Found("arrival stamps", "warn", "of the process: this system has no kernel timestamps", remedy)


def disk() -> Found:
    """Room for runs in the current folder."""
    free = shutil.disk_usage(Path.cwd()).free
    writable = os.access(Path.cwd(), os.W_OK)
    value = f"{free / 2**30:.1f} GiB free in the current folder"
    if not writable:
        return Found("disk", "warn", "the current folder is not writable", "use another one with --out")
    if free > 2**30:
        return Found("disk", "ok", value)
    return Found("disk", "warn", value, "free some space, or use another folder with --out")


def blas() -> Found:
    """Which library multiplies matrices, and with how many threads."""
    import numpy as np
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]  # it ships no types

    np.ones((2, 2)) @ np.ones((2, 2))
    pools = [p for p in threadpool_info() if p.get("user_api") == "blas"]
    if not pools:
        return Found("BLAS", "warn", "none found", "the engine will be slow; install numpy from a wheel")
    value = ", ".join(f"{p['internal_api']} {p.get('version')}, {p['num_threads']} threads" for p in pools)
    return Found("BLAS", "ok", value)


def engine() -> Found:
    """Four short requests through the built-in engine, from plan to run folder."""
    from harness.options import Given, run_spec
    from harness.runner.run import execute

    small = {"lengths": "fixed:prompt=32,output=4", "arrivals": "constant", "rate": 8, "requests": 4}
    spec = run_spec(Given(small))
    start_s = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = execute(spec, out=Path(folder) / "run")
            counts = {s: result.run.requests["status"].to_pylist().count(s) for s in ("ok",)}
    except BenchError as error:
        return Found("engine", "FAIL", str(error), "the simulator still works: --backend sim")
    if result.outcome.error is not None or counts["ok"] != 4:
        why = result.outcome.error or f"{counts['ok']} of 4 requests ended well"
        return Found("engine", "FAIL", why, "the simulator still works: --backend sim")
    return Found("engine", "ok", f"4 requests in {time.monotonic() - start_s:.1f} s")


ALL: tuple[Callable[[], Found], ...] = (
    packages, core, cores, load, timer, stamps, disk, blas, engine,
)  # fmt: skip


@click.command("doctor", short_help="Check this machine and the installation.")
@formats
def command(form: str) -> int:
    """Check packages, simulator core, cores, load, timer, arrival timestamps, disk, BLAS and the built-in engine.

    Exit code 0 if this machine is ready to run benchmarks, else 3.
    """
    from harness.cli import _terminal

    failed = 0
    rows = []
    for check in ALL:
        finding = check()
        failed += finding.state == "FAIL"
        rows.append(asdict(finding))
        if form != "text":
            continue
        _terminal.say(f"{finding.state:<5} {finding.name:<17} {finding.value}")
        if finding.remedy:
            _terminal.say(f"      {'':<17} -> {finding.remedy}")
    if form != "text":
        from reports.document.rendered import table_report

        _terminal.show(form, table_report("Checks of this machine", rows))
        return 3 if failed else 0
    _terminal.say("")
    ready = "Ready to run. Next: bench run --workload chatbot --slo ttft=0.25,tpot=0.1"
    _terminal.say("Not ready: fix the failed checks above." if failed else ready)
    return 3 if failed else 0
