"""How long reports take, how much memory, how large they are, and how soon a browser has drawn them.

The runs are simulated first (three minutes and 0.5 GB, most of it for the run of a million requests). Each line is a
process of its own, imports included, as `bench report` is; a page is opened in a window of 1200 x 800 of this machine's
Chromium, where there is one and playwright is installed.

    python tests/perf/report_speed.py [--requests 1000000] [--large FOLDER]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from reports import _pictures

SYSTEM = ["--workload", "chatbot", "--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0"]
RATES = "1,1.5,2,2.5,3,3.5"
MOST_S, MOST_MB, MOST_FILE_MB, MOST_OPEN_S = 15.0, 1000.0, 2.5, 5.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one report: seconds, processor seconds, peak memory in MB, and the size of its file in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    file_mb: float


def bench(*arguments: str) -> None:
    """`bench` in a process of its own."""
    subprocess.run([sys.executable, "-m", "harness", *arguments], check=True, stdout=subprocess.DEVNULL)


def report(path: Path) -> Cost:
    """What `bench report PATH` costs."""
    command, start_s = [sys.executable, "-m", "harness", "report", str(path)], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    size_mb = (path / "report.html").stat().st_size / 1e6
    return Cost(time.perf_counter() - start_s, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, size_mb)


def opened(page: Path) -> float | None:
    """Seconds until a browser has loaded the page, with all figures drawn."""
    browser = _pictures.found()
    if browser is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        seen = started.new_context(viewport={"width": 1200, "height": 800}, offline=True).new_page()
        start_s = time.perf_counter()
        seen.goto(page.resolve().as_uri())
        loaded_s = time.perf_counter() - start_s
        started.close()
    return loaded_s


def line(name: str, path: Path) -> bool:
    """Print a line; whether it is within the limits."""
    cost = report(path)
    looked = opened(path / "report.html")
    seconds = "        -" if looked is None else f"{looked:>9.2f}"
    print(
        f"{name:<26}{cost.wall_s:>8.2f}{cost.cpu_s:>8.2f}{cost.peak_mb:>9,.0f}{cost.file_mb:>9.2f}{seconds}",
        flush=True,
    )
    within = cost.wall_s <= MOST_S and cost.peak_mb <= MOST_MB and cost.file_mb <= MOST_FILE_MB
    return within and (looked is None or looked <= MOST_OPEN_S)


def main() -> None:
    """Print a line for every report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--large", type=Path, help="a stored large run instead of a simulated one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, sweep, large = (Path(folder) / name for name in ("run", "sweep", "large"))
        common = [*SYSTEM, "--no-html", "--quiet"]
        bench("run", *common, "--rate", "2", "--requests", "10000", "--out", str(run))
        bench("sweep", *SYSTEM, "--rate", RATES, "--seeds", "1", "--requests", "10000", "--out", str(sweep))
        if given.large is None:
            bench("run", *common, "--rate", "2.1", "--requests", str(given.requests), "--out", str(large))
        print(f"{'report of':<26}{'wall s':>8}{'CPU s':>8}{'peak MB':>9}{'file MB':>9}{'drawn s':>9}")
        kept = [
            line("10,000 requests", run),
            line("6 rates x 10,000 requests", sweep),
            line(f"{given.requests:,} requests", given.large or large),
        ]
    print(f"within {MOST_S:g} s, {MOST_MB:g} MB, {MOST_FILE_MB:g} MB of file, ready in {MOST_OPEN_S:g} s: "
          f"{'yes' if all(kept) else 'NO'}")  # fmt: skip


if __name__ == "__main__":
    main()
