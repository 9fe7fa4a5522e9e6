"""How long it takes and how much memory to score a run of a million requests again, under 100 SLO pairs and otherwise.

The run is simulated first (about two minutes and 0.5 GB) unless --run names one. Each line is a process of its own,
imports included, as `bench slo` is.

    python tests/perf/rescoring.py [--requests 1000000] [--run FOLDER]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TTFT_S = [round(0.05 * k, 3) for k in range(1, 11)]
TPOT_S = [round(0.02 * k, 3) for k in range(1, 11)]
SLOS = [part for t in TTFT_S for p in TPOT_S for part in ("--slo", f"ttft={t},tpot={p}")]
WAYS = {
    "100 SLOs one by one": SLOS,
    "scale, 100 points": ["--scale", "0.25:4:0.0378"],
    "by prompt and class": ["--by", "prompt,class,time"],
    "token by token": ["--tokens"],
    "FastGen's rule": ["--slo", "fastgen:rate=4"],
    "gaps (itl, itl_p99)": ["--slo", "itl=0.5,itl_p99=0.2"],
    "all profiles": ["--profile", "all"],
}
SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`bench` in a process of its own."""
    return subprocess.run([sys.executable, "-m", "harness", *arguments], check=True, capture_output=True, text=True)


def measure(*arguments: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak memory in MB of one command."""
    command, start_s = [sys.executable, "-m", "harness", *arguments], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return time.perf_counter() - start_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Print a line for every way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--run", help="a stored run instead of a simulated one")
    parser.add_argument("ways", nargs="*", help=f"some of {', '.join(WAYS)}; without any, all")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or str(Path(folder) / "run")
        if given.run is None:
            bench(
                "run", *SYSTEM, "--rate", "2.1", "--requests", str(given.requests), "--out", run, "--no-html", "--quiet"
            )
        size_mb = (Path(run) / "requests.parquet").stat().st_size / 1e6
        print(f"{run}: requests.parquet of {size_mb:.0f} MB")
        print(f"{'way':<22}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}")
        for way in given.ways or WAYS:
            wall_s, cpu_s, peak_mb = measure("slo", run, *WAYS[way], "--format", "json")
            print(f"{way:<22}{wall_s:>8.2f}{cpu_s:>8.2f}{peak_mb:>9,.0f}", flush=True)


if __name__ == "__main__":
    main()
