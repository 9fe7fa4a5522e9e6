"""Whether runs of a disturbed client that are called valid have right times, by the times of the server.

    python tests/perf/client_validity.py [--runs 40] [--seed 0] [--streams 500] [--seconds 6]

Each run is `bench run` against the null server (`backends/client/null_server.py`, at real-time priority where that is
granted) with so many streams of 20, 50 or 100 tokens/s. Drawn are busy processes (0 to 8, niceness -10 to 10), the
priority of the sender, and what happens to it: nothing, SIGSTOP of 5 to 300 ms up to six times, or a share of the
processor that SIGSTOP and SIGCONT leave it. The truth is the server's: the kernel's stamp of each arrival, and the
clock before the first token is written. Error = (first token - sending) of requests.parquet minus that; answers that
bench calls held back have no TTFT. A run has a large error where its p99 is above 1 ms. Exit code 1 where one such run
is called valid.

    --streams      at 20 tokens/s; fewer at more
"""

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from _options import parsed  # beside this file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backends.client.null_server import Timing, running, take_truth
from harness.data.folder import load
from harness.data.held_back import HELD_BACK
from harness.runner.remote.calibration import errors

LARGE_S = 0.001
TOKENS = 32
SENDING_CPU_S = 0.05
"""CPU time that the server takes for more than the dials before a run: that of some thousand tokens."""


@contextmanager
def busy(count: int, niceness: int) -> Iterator[None]:
    """So many processes that never rest."""
    command = [sys.executable, "-c", f"import os; os.setpriority(0, 0, {niceness})\nwhile True: pass"]
    spinners = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def child(pid: int, what: str) -> int | None:
    """The process with this text in its command that a process has started."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for number in task.read_text().split():
            with suppress(OSError):
                if what in Path(f"/proc/{number}/cmdline").read_text():
                    return int(number)
    return None


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def disturb(bench: subprocess.Popen[bytes], server: int, stops: list[tuple[float, float]]) -> None:
    """Stop the sender at these times, seconds after it begins, for so long each."""
    sender, idle_s = None, cpu_s(server)
    while sender is None or cpu_s(server) - idle_s < SENDING_CPU_S:
        if bench.poll() is not None:
            return
        sender = child(bench.pid, "remote.sender")
        time.sleep(0.05)
    begun_s = time.monotonic()
    for at_s, lasts_s in stops:
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        with suppress(ProcessLookupError):
            os.kill(sender, signal.SIGSTOP)
            time.sleep(lasts_s)
            os.kill(sender, signal.SIGCONT)


def one(rng: random.Random, streams: int, seconds: float) -> tuple[float, float, bool, str]:
    """(p99 error in s, share of errors above `LARGE_S`, called valid, what was drawn) of a run."""
    itl_s = rng.choice((0.05, 0.02, 0.01))
    count, niceness, raised = rng.choice((0, 2, 4, 8)), rng.choice((-10, 0, 0, 10)), rng.random() < 0.6
    kind = rng.choice(("nothing", "stops", "stops", "throttled"))
    stops = [(rng.uniform(0, seconds), rng.uniform(0.005, 0.3)) for _ in range(rng.randint(1, 6))]
    if kind == "throttled":
        stops = [(0.1 * i, 0.1 * rng.uniform(0.1, 0.7)) for i in range(int(10 * seconds))]
    what = f"itl {itl_s:g}, {count} busy of niceness {niceness}, priority {'auto' if raised else 'off'}, {kind}"
    if kind == "stops":
        what += " " + "+".join(f"{1000 * lasts_s:.0f}" for _, lasts_s in stops) + " ms"
    rate_rps = streams * itl_s / 0.05 / (0.2 + (TOKENS - 1) * itl_s)  # as many tokens a second, whatever their gap
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        url = stack.enter_context(running(Timing(0.2, itl_s)))
        server = child(os.getpid(), "null_server")
        assert server is not None
        with suppress(OSError):
            os.sched_setscheduler(server, os.SCHED_RR, os.sched_param(2))
        stack.enter_context(busy(count, niceness))
        backend = f"openai:url={url},model=null,api=completions,probe=off"
        command = [
            sys.executable, "-m", "harness", "run", "--backend", backend,
            "--lengths", f"fixed:prompt=64,output={TOKENS}", "--arrivals", "poisson", "--rate", f"{rate_rps:.3f}",
            "--requests", str(round(rate_rps * seconds)), "--calibrate", "off", "--no-html", "--quiet",
            "--out", str(folder), *([] if raised else ["--priority", "off"]),
        ]  # fmt: skip
        bench = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        disturber = threading.Thread(target=disturb, args=(bench, server, sorted(stops) if kind != "nothing" else []))
        disturber.start()
        bench.wait(300)
        disturber.join()
        truth = take_truth(url).requests
        run = load(folder)
    rows = [SimpleNamespace(**row) for row in run.requests.to_pylist() if not row.get(HELD_BACK)]
    error_s = errors(rows, truth, 0.0, (0.0, 1e9)).ttft  # type: ignore[arg-type]  # as much of records as is needed
    if not len(error_s):
        return math.nan, math.nan, run.info.verdict.valid is True, f"{what} (0)"
    share = float((error_s > LARGE_S).mean())
    return float(np.quantile(error_s, 0.99)), share, run.info.verdict.valid is True, f"{what} ({len(error_s)})"


def main() -> None:
    """Draw runs, and print the worst first."""
    given = parsed(__doc__, runs=40, seed=0, streams=500, seconds=6.0)
    rows = []
    for number in range(given.runs):
        rows.append(one(random.Random(f"{given.seed} {number}"), given.streams, given.seconds))
        print(f"{number + 1} of {given.runs}: {rows[-1]}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: (not row[2], -row[0]))
    print("p99 ms   > 1 ms  valid  drawn (requests)")
    for p99_s, share, valid, what in rows:
        print(f"{1000 * p99_s:8.3f} {share:7.2%}  {'yes' if valid else 'no':5}  {what}")
    wrong = sum(valid and p99_s > LARGE_S for p99_s, _, valid, _ in rows)
    harsh = sum(not valid and p99_s <= LARGE_S for p99_s, _, valid, _ in rows)
    large = sum(p99_s > LARGE_S for p99_s, _, _, _ in rows)
    print(f"\n{large} of {len(rows)} runs with a large error, {wrong} of them called valid; {harsh} others not valid")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
