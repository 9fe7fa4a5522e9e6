"""How far a client's times are from the truth, and what it costs: ours beside others, quiet and with busy cores.

    python tests/perf/client_accuracy.py [--clients bench,aiohttp] [--streams 10,100,500,1000,2000] [--seconds 5]

Each run keeps so many streams of 20 tokens/s going: requests of 64 tokens, Poisson arrivals, against the null server
(`backends/client/null_server.py`) in a process of its own. Server and client are each pinned to a core; `busy` puts a
spinning process on each of the two beside them. The truth is the server's alone: the kernel's stamp of each request's
arrival, and the clock just before each token was written.

Error of TTFT = (first stamp of the client - its time of sending) - (server's write of the first token - arrival of
the request); error of a gap = gap of the client - gap of the server. Absolute values, of requests due and tokens
written within `--seconds` after one second of filling up. `CPU` is that of the process that sends, all threads, over
the same seconds and divided by the tokens written in them. `late` is how late the client sent, `server` how late the
server wrote by its own schedule (p99).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backends.client.null_server import Timing, Truth, running, take_truth

TIMING = Timing(ttft_s=0.2, itl_s=0.05)
TOKENS = 64
FILL_S = 1.0
SPIN = "while True: pass"
CLIENTS = Path(__file__).with_name("accuracy_clients.py")


@dataclass(frozen=True)
class Case:
    """One run of one client."""

    client: str
    streams: int
    busy: bool
    seconds: float
    cores: tuple[int, int]  # of the server, of the client


@dataclass(frozen=True)
class Result:
    """What a run showed; errors in seconds, (requests,) and (gaps,)."""

    ttft_s: np.ndarray
    gap_s: np.ndarray
    late_s: np.ndarray
    cpu_s_per_token: float
    failed: int
    server_late_p99_s: float


def planned(streams: int, seconds: float) -> list[tuple[str, float, int]]:
    """(id, seconds after the start, output tokens): `streams` at once from the end of the filling on.

    Those that fill up have what is left of their tokens, as if they had begun long before.
    """
    rng = np.random.default_rng(streams)
    lasts_s = TIMING.ttft_s + (TOKENS - 1) * TIMING.itl_s
    left = rng.permutation(np.linspace(1, TOKENS, streams).astype(int))
    first = [(FILL_S * i / streams, int(n)) for i, n in enumerate(left)]
    times = FILL_S + np.cumsum(rng.exponential(lasts_s / streams, int(2 * streams * (1 + seconds / lasts_s)) + 100))
    then = [(float(at_s), TOKENS) for at_s in times if at_s < FILL_S + seconds]
    return [(str(i), at_s, tokens) for i, (at_s, tokens) in enumerate(first + then)]


@contextmanager
def spinning(cores: Sequence[int]) -> Iterator[None]:
    """A process on each core that never rests."""
    spinners = [
        subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\n{SPIN}"])
        for core in cores
    ]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def cpu_s(pid: int) -> float:
    """CPU time of a process, all its threads that live, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def measure(case: Case) -> Result:
    """Run a client once and hold it against the truth."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running(TIMING, [case.cores[0]]))
        if case.busy:
            stack.enter_context(spinning(case.cores))
        requests = planned(case.streams, case.seconds)
        plan = {
            "server_core": case.cores[0],
            "streams": case.streams,
            "requests": requests,
            "prompt": list(range(1, 129)),
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, str(CLIENTS), case.client, url, str(folder / "plan.json"), str(folder / "sent.json")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, [case.cores[1]])
        ) as client:
            assert client.stdout is not None
            begun = client.stdout.readline().split()
            if not begun:
                sys.exit(f"{case.client} did not start")
            epoch_s, sender = float(begun[0]), int(begun[1])
            cpu = []
            for at_s in (FILL_S, FILL_S + case.seconds):
                time.sleep(max(0.0, epoch_s + at_s - time.monotonic()))
                cpu.append(cpu_s(sender))
            client.wait(120)
        truth = take_truth(url)
        rows = json.loads((folder / "sent.json").read_text())["rows"]
    window = (epoch_s + FILL_S, epoch_s + FILL_S + case.seconds)
    return judged(rows, truth, {name: epoch_s + at_s for name, at_s, _ in requests}, window, cpu[1] - cpu[0])


def judged(
    rows: Sequence[Sequence[object]], truth: Truth, due_s: dict[str, float], window: tuple[float, float], cpu: float
) -> Result:
    """The errors of what a client saw within the window. A request with another number of tokens has failed."""
    ttft, gaps, late, failed = [], [np.empty(0)], [], 0
    for name, sent_s, stamps, why in rows:
        told = truth.requests.get(name)
        if why is not None or told is None or len(stamps) != len(told.written_s):
            failed += 1
            continue
        seen, written = np.asarray(stamps), np.asarray(told.written_s)
        if window[0] <= due_s[name] < window[1]:
            late.append(sent_s - due_s[name])
            ttft.append(abs((seen[0] - sent_s) - (written[0] - told.arrived_s)))
        inside = (written[1:] >= window[0]) & (written[1:] < window[1])
        gaps.append(np.abs(np.diff(seen) - np.diff(written))[inside])
    tokens = sum(
        int(np.count_nonzero((np.asarray(t.written_s) >= window[0]) & (np.asarray(t.written_s) < window[1])))
        for t in truth.requests.values()
    )
    failed += len(due_s) - len(rows)
    return Result(
        np.asarray(ttft), np.concatenate(gaps), np.asarray(late), cpu / max(1, tokens), failed, truth.late_s[1]
    )


HEADER = f"{'streams':>7} {'cores':5} {'client':8} {'requests':>8} {'failed':>6}" + "".join(
    f" {name:>9}" for name in ("TTFT p50", "p99 ms", "gap p50", "p99 ms", "CPU us", "late p99", "server")
)


def line(case: Case, result: Result) -> str:
    """A row of the table, times in milliseconds."""

    def at(values: np.ndarray, q: float) -> str:
        return f" {np.quantile(values, q) * 1e3:9.3f}" if len(values) else f" {'-':>9}"

    head = f"{case.streams:7} {'busy' if case.busy else 'quiet':5} {case.client:8}"
    return (
        f"{head} {len(result.ttft_s):8} {result.failed:6}"
        + at(result.ttft_s, 0.5)
        + at(result.ttft_s, 0.99)
        + at(result.gap_s, 0.5)
        + at(result.gap_s, 0.99)
        + f" {result.cpu_s_per_token * 1e6:9.1f}"
        + at(result.late_s, 0.99)
        + f" {result.server_late_p99_s * 1e3:9.3f}"
    )


def main() -> None:
    """Every client at every number of streams, quiet and busy."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", default="bench,aiohttp", help="of bench, aiohttp, httpx, bare")
    options.add_argument("--streams", default="10,100,500,1000,2000")
    options.add_argument("--seconds", type=float, default=5.0, help="that count, of each run")
    options.add_argument("--cores", default="quiet,busy", help="of quiet, busy")
    given = options.parse_args()
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        sys.exit("two cores are needed: one for the server, one for the client")
    pair = (usable[0], usable[1])
    print(f"server on core {pair[0]}, client on core {pair[1]}, load {os.getloadavg()[0]:.1f} before\n\n{HEADER}")
    for busy in given.cores.split(","):
        for streams in map(int, given.streams.split(",")):
            for client in given.clients.split(","):
                case = Case(client, streams, busy == "busy", given.seconds, pair)
                print(line(case, measure(case)), flush=True)


if __name__ == "__main__":
    main()
