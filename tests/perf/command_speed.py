"""What the commands cost from Enter to the prompt: CPU time, requests per CPU second, and the largest memory.

Each line is one command in a process of its own, as a user types it: imports, drawing, simulation, tables, statistics,
the text and the files of the run. CPU time is that of the process and (on Linux) all below it, user and system, so that
other work on the machine changes it little; wall time is printed beside it and depends on that work.
The system is Llama-2-7B on an A100; lengths and rates are in `TRAFFIC`, below saturation for most policies.

    python tests/perf/command_speed.py                                  # 10,000 and 100,000 requests: ten minutes
    python tests/perf/command_speed.py --sizes 1000000 --policies vllm-v1 --traffic chat     # needs 8 GB
    python tests/perf/command_speed.py --answers                        # sweep and capacity instead
    python tests/perf/command_speed.py --stored                         # report, slo and compare of stored runs instead

With --stored the runs are simulated first (three minutes for the one of a million requests). Wanted are 2 s for a
comparison of two runs of 10,000 requests, and for a report 15 s, 1 GB, a page of 2.5 MB that is drawn in 5 s in a
window of 1200 x 800 of this machine's Chromium, where there is one.

    --pages        with the report page, without, or both
    --answers      instead: bench sweep and bench capacity
    --stored       instead: bench report, slo and compare
    --requests     of the large run of --stored
"""

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from _options import parsed  # beside this file

from reports import _pictures

SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--model", "llama2-7b", "--hardware", "a100-80g"]
TRAFFIC = {
    "short": ["--lengths", "fixed:prompt=128,output=16", "--rate", "40"],
    "fixed": ["--lengths", "fixed:prompt=512,output=128", "--rate", "10"],
    "chat": ["--lengths", "sharegpt", "--rate", "4"],
}
POLICIES = ("vllm-v1", "sarathi", "orca")
STORED = ["--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0"]
BOUNDS = [f"ttft={0.05 * i:g},tpot={0.02 * k:g}" for i in range(1, 11) for k in range(1, 11)]
WAYS = {
    "100 SLOs one by one": [word for bounds in BOUNDS for word in ("--slo", bounds)],
    "scale, 100 points": ["--scale", "0.25:4:0.0378"],
    "by prompt and class": ["--by", "prompt,class,time"],
    "token by token": ["--tokens"],
    "FastGen's rule": ["--slo", "fastgen:rate=4"],
    "gaps (itl, itl_p99)": ["--slo", "itl=0.5,itl_p99=0.2"],
    "all profiles": ["--profile", "all"],
}
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of linux/prctl.h: processes that lose their parent become children of this one."""
GOOD = (0, 5)
"""5 is an answer too: a search that stayed unresolved has cost what it cost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one command: seconds of the clock and of the processor, and the largest memory in GB."""

    wall_s: float
    cpu_s: float
    peak_gb: float


def bench(*arguments: str) -> Cost:
    """What `bench ARGUMENTS` costs, children included."""
    command, start_s = [sys.executable, "-m", "harness", *arguments], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s, all_used = time.perf_counter() - start_s, [used, *orphans()]
    if process.returncode not in GOOD:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    cpu_s = sum(one.ru_utime + one.ru_stime for one in all_used)
    return Cost(wall_s, cpu_s, max(one.ru_maxrss for one in all_used) * 1024 / 1e9)


def orphans() -> Iterator[resource.struct_rusage]:
    """What processes that the command left behind have used: the workers of a pool end after it."""
    with suppress(ChildProcessError):
        while True:
            yield os.wait4(-1, 0)[2]


def show(name: str, cost: Cost, requests: int | None = None) -> None:
    """Print one line; `tools/claims.py` reads it."""
    speed = "" if requests is None else f"{requests / cost.cpu_s:>8,.0f} requests/CPU s"
    million = "" if requests is None else f"  {cost.peak_gb / requests * 1e6:.1f} GB per million"
    print(
        f"{name:<44}{speed}  {cost.cpu_s:>7.1f} CPU s  {cost.wall_s:>7.1f} s wall  peak {cost.peak_gb:.2f} GB{million}",
        flush=True,
    )


def runs(sizes: list[int], policies: list[str], traffic: list[str], pages: list[str], folder: Path) -> None:
    """`bench run` of every size, policy and traffic, and `bench report` of the last one of each size."""
    for size in sizes:
        for policy in policies:
            for name in traffic:
                common = [*SYSTEM, "--policy", policy, *TRAFFIC[name], "--requests", str(size), "--quiet"]
                for page in pages:
                    out = folder / f"{size}-{policy}-{name}-{page}"
                    cost = bench("run", *common, "--out", str(out), *(["--no-html"] if page == "no-html" else []))
                    show(f"run {page} {policy} {name} {size}", cost, size)
        show(f"report {size}", bench("report", str(out)), size)


def answers(folder: Path) -> None:
    """The commands that make many runs, in their default form."""
    system = [*SYSTEM, "--policy", "vllm-v1"]
    show(
        "sweep 4 rates, 5 seeds", bench("sweep", *system, "--rate", "2:8:2", "--quiet", "--out", str(folder / "sweep"))
    )
    show("capacity", bench("capacity", *system, "--quiet", "--out", str(folder / "capacity")))


def opened(page: Path) -> str:
    """How large the page is, and how long a browser takes to load it with all figures drawn."""
    size = f"page of {page.stat().st_size / 1e6:.2f} MB"
    browser = _pictures.found()
    if browser is None:
        return size
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        seen = started.new_context(viewport={"width": 1200, "height": 800}, offline=True).new_page()
        start_s = time.perf_counter()
        seen.goto(page.resolve().as_uri())
        loaded_s = time.perf_counter() - start_s
        started.close()
    return f"{size}, drawn in {loaded_s:.2f} s"


def stored(size: int, folder: Path) -> None:
    """What reads stored runs: of 10,000 requests, and of a large one."""
    system = [*STORED, "--no-html", "--quiet"]
    small, large, sweep = (folder / name for name in ("small", "large", "sweep"))
    bench("run", *system, "--rate", "2", "--requests", str(min(size, 10_000)), "--out", str(small))
    bench("run", *system, "--rate", "2.1", "--requests", str(size), "--out", str(large))
    points = ["--rate", "1:3.5:0.5", "--seeds", "1", "--requests", str(min(size, 10_000))]
    bench("sweep", *system, *points, "--out", str(sweep))
    for path in (small, sweep, large):
        show(f"report {path.name}", bench("report", str(path)))
        print(f"  {opened(path / 'report.html')}", flush=True)
    for way, options in WAYS.items():
        show(f"slo {way}", bench("slo", str(large), *options, "--format", "json"))
    shutil.copytree(small, folder / "again")
    show("compare 1 pair, simulator", bench("compare", str(small), str(folder / "again")))
    for seed in range(5):
        run = folder / "base" / f"seed-{seed}"
        pair = ["--rate", "2", "--requests", str(min(size, 10_000) // 5), "--seed", str(seed)]
        bench("run", *system, *pair, "--out", str(run))
        info = json.loads((run / "run.json").read_text(encoding="utf-8"))
        (run / "run.json").write_text(json.dumps({**info, "clock": "wall"}), encoding="utf-8")
    shutil.copytree(folder / "base", folder / "head")
    sides = [str(folder / "base"), str(folder / "head"), "--allow-different", "turns"]
    show("compare 5 pairs, wall clock", bench("compare", *sides))


def main() -> None:
    """Run the command in a folder that is removed afterwards."""
    given = parsed(
        __doc__, sizes="10000,100000", policies=",".join(POLICIES), traffic=",".join(TRAFFIC), pages="page,no-html",
        answers=False, stored=False, requests=1_000_000,
    )  # fmt: skip
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        if given.answers:
            answers(Path(folder))
        elif given.stored:
            stored(given.requests, Path(folder))
        else:
            runs(
                [int(size) for size in given.sizes.split(",")],
                given.policies.split(","), given.traffic.split(","), given.pages.split(","), Path(folder),
            )  # fmt: skip


if __name__ == "__main__":
    main()
