"""How far a client's times are from the truth, and what it costs: ours beside others, quiet and with busy cores.

    python tests/perf/client_accuracy.py [--clients bench,aiohttp] [--streams 10,100,500,1000,2000] [--seconds 3]
    python tests/perf/client_accuracy.py --streams 500 --prompt 100000 --output 2000 --fill 90 --seconds 60

Each run keeps so many streams of 20 tokens/s going: requests of 64 tokens, Poisson arrivals, against the null server
(`backends/client/null_server.py`) in a process of its own. Server and client are each pinned to a core; `busy` puts a
spinning process on each of the two beside them. The truth is the server's alone: the kernel's stamp of each request's
arrival, and the clock just before each token was written.

Error of TTFT = (first stamp of the client - its time of sending) - (server's write of the first token - arrival of
the request); error of a gap = gap of the client - gap of the server. Absolute values, of requests due and tokens
written within `--seconds` after `--fill` seconds. `CPU` is that of the process that sends, all threads, over
the same seconds and divided by the tokens written in them. `late` is how late the client sent, `server` how late the
server wrote by its own schedule (p99), `MiB` the most memory that the sending process had up to then. `others` is how
many cores other processes of this machine used meanwhile: above 0.1 the machine was not quiet, and the row is none
to quote.

    --clients      of bench, aiohttp, unstamped, scraped
    --seconds      that count, of each run
    --cores        of quiet, busy
    --prompt       tokens of each prompt
    --output       tokens of each answer
    --fill         seconds before those that count
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _options import parsed  # beside this file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from backends.client.null_server import Timing, Truth, running, take_truth
from harness.runner.remote.calibration import Errors, Load, drawn, errors

TIMING = Timing(ttft_s=0.2, itl_s=0.05)
SPIN = "while True: pass"
PROMPT_TOKENS = 128
"""Of the goals for short prompts."""
CLIENTS = Path(__file__).with_name("_accuracy_clients.py")


@dataclass(frozen=True)
class Case:
    """One run of one client."""

    client: str
    streams: int
    busy: bool
    seconds: float
    cores: tuple[int, int]  # of the server, of the client
    prompt: int  # tokens
    output: int
    fill_s: float

    @property
    def window_s(self) -> tuple[float, float]:
        """What counts, in seconds of the run."""
        return self.fill_s, self.fill_s + self.seconds


@dataclass(frozen=True)
class Row:
    """What a client saw of one request, in seconds of the run; as much of a record as errors are made of."""

    request_id: str
    scheduled_s: float
    sent_s: float
    token_s: list[float]
    status: str


@dataclass(frozen=True)
class Result:
    """What a run showed."""

    errors: Errors
    cpu_s_per_token: float
    failed: int
    server_late_p99_s: float
    others_cores: float
    peak_mib: float


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


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def others_s() -> float:
    """CPU time that this machine has spent on processes that are not of this benchmark, seconds."""
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, _, _, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    ours = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == os.getpgrp():
                ours += int(fields[11]) + int(fields[12])
    return (user + nice + system + steal - ours) / ticks


def measure(case: Case) -> Result:
    """Run a client once and hold it against the truth."""
    lasts_s = TIMING.ttft_s + (case.output - 1) * TIMING.itl_s
    load = Load(case.streams / lasts_s, case.streams, case.prompt, case.output, TIMING.ttft_s, TIMING.itl_s)
    table = drawn(load, case.seconds, case.fill_s, seed=case.streams).table
    columns = [table[name].to_pylist() for name in ("id", "scheduled_s", "output_tokens")]
    requests = [(str(i), at_s, tokens) for i, at_s, tokens in zip(*columns, strict=True)]
    prompt = list(range(1, case.prompt + 1))
    plan = {"server_core": case.cores[0], "streams": case.streams, "requests": requests, "prompt": prompt}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running(TIMING, [case.cores[0]]))
        if case.busy:
            stack.enter_context(spinning(case.cores))
        (folder / "plan.json").write_text(json.dumps(plan))
        epoch_s, cpu, others, peak = sent(case, url, folder)
        truth = take_truth(url)
        stored = json.loads((folder / "sent.json").read_text())["rows"]
    due_s = {name: at_s for name, at_s, _ in requests}
    rows = [
        Row(name, due_s[name], sent_s - epoch_s, [s - epoch_s for s in stamps], "error" if why else "ok")
        for name, sent_s, stamps, why in stored
    ]
    good, tokens = held_against(rows, truth, epoch_s, case.window_s)
    found = errors(rows, truth.requests, epoch_s, case.window_s)  # type: ignore[arg-type]  # as much as is needed of them
    return Result(found, cpu / max(1, tokens), len(requests) - good, truth.late_s[1], others, peak)


def sent(case: Case, url: str, folder: Path) -> tuple[float, float, float, float]:
    """Have the client send the plan: when it began (monotonic clock), CPU s in the window, cores of others, MiB."""
    command = [sys.executable, str(CLIENTS), case.client, url, str(folder / "plan.json"), str(folder / "sent.json")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, [case.cores[1]])
    ) as client:
        assert client.stdout is not None
        begun = client.stdout.readline().split()
        if not begun:
            sys.exit(f"{case.client} did not start")
        epoch_s, sender = float(begun[0]), int(begun[1])
        cpu, others = [], []
        for at_s in case.window_s:
            time.sleep(max(0.0, epoch_s + at_s - time.monotonic()))
            cpu.append(cpu_s(sender))
            others.append(others_s())
        peak = peak_mib(sender)
        client.wait(120)
    return epoch_s, cpu[1] - cpu[0], (others[1] - others[0]) / case.seconds, peak


def held_against(rows: list[Row], truth: Truth, epoch_s: float, window_s: tuple[float, float]) -> tuple[int, int]:
    """How many requests ended well, with as many tokens as the server wrote, and the tokens written in the window."""
    good = sum(
        row.status == "ok" and len(row.token_s) == len(truth.requests[row.request_id].written_s)
        for row in rows
        if row.request_id in truth.requests
    )
    written_s = np.concatenate([served.written_s for served in truth.requests.values()]) - epoch_s
    return good, int(np.count_nonzero((written_s >= window_s[0]) & (written_s < window_s[1])))


HEADER = f"{'streams':>7} {'cores':5} {'client':9} {'requests':>8} {'failed':>6}" + "".join(
    f" {name:>9}"
    for name in ("TTFT p50", "p99 ms", "gap p50", "p99 ms", "CPU us", "late p99", "server", "others", "MiB")
)


def line(case: Case, result: Result) -> str:
    """A row of the table, times in milliseconds."""

    def at(values: np.ndarray, q: float) -> str:
        return f" {np.quantile(values, q) * 1e3:9.3f}" if len(values) else f" {'-':>9}"

    head = f"{case.streams:7} {'busy' if case.busy else 'quiet':5} {case.client:9}"
    return (
        f"{head} {len(result.errors.ttft):8} {result.failed:6}"
        + at(result.errors.ttft, 0.5)
        + at(result.errors.ttft, 0.99)
        + at(result.errors.itl, 0.5)
        + at(result.errors.itl, 0.99)
        + f" {result.cpu_s_per_token * 1e6:9.1f}"
        + at(result.errors.lateness, 0.99)
        + f" {result.server_late_p99_s * 1e3:9.3f} {result.others_cores:9.2f} {result.peak_mib:9.0f}"
    )


@dataclass(frozen=True)
class Goal:
    """A limit that the client of bench meets in one of its cases, in the unit that is printed."""

    what: str
    streams: int
    busy: bool
    limit: float
    of: Callable[[Result], float]
    client: str = "bench"


def p99_ms(values: np.ndarray) -> float:
    """Of seconds."""
    return float(np.quantile(values, 0.99)) * 1e3 if len(values) else float("nan")


GOALS = [
    *(Goal("error of TTFT, p99 ms", n, False, 0.1, lambda r: p99_ms(r.errors.ttft)) for n in (100, 500, 1000, 2000)),
    Goal("error of TTFT, p99 ms", 500, True, 0.2, lambda r: p99_ms(r.errors.ttft)),
    Goal("error of TTFT, p99 ms", 1000, False, 1.0, lambda r: p99_ms(r.errors.ttft), "unstamped"),
    Goal("error of single gaps, p99 ms", 1000, False, 0.5, lambda r: p99_ms(r.errors.itl)),
    Goal("CPU us per token", 2000, False, 20.0, lambda r: r.cpu_s_per_token * 1e6),
    Goal("lateness, p99 ms", 1000, False, 1.0, lambda r: p99_ms(r.errors.lateness)),
]


def main() -> None:
    """Every client at every number of streams, quiet and busy."""
    given = parsed(
        __doc__, clients="bench,aiohttp", streams="10,100,500,1000,2000", seconds=3.0, cores="quiet,busy",
        prompt=PROMPT_TOKENS, output=64, fill=1.5,
    )  # fmt: skip
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        sys.exit("two cores are needed: one for the server, one for the client")
    pair = (usable[0], usable[1])
    print(f"server on core {pair[0]}, client on core {pair[1]}, load {os.getloadavg()[0]:.1f} before\n\n{HEADER}")
    seen = {}
    for busy in given.cores.split(","):
        for streams in map(int, given.streams.split(",")):
            for client in given.clients.split(","):
                case = Case(
                    client, streams, busy == "busy", given.seconds, pair, given.prompt, given.output, given.fill
                )
                result = measure(case)
                print(line(case, result), flush=True)
                seen[client, streams, case.busy] = result
    print()
    long = [
        Goal("error of TTFT, p99 ms", 500, False, 0.2, lambda r: p99_ms(r.errors.ttft)),
        Goal("lateness, p99 ms", 500, False, 5.0, lambda r: p99_ms(r.errors.lateness)),
    ]
    for goal in GOALS if given.prompt == PROMPT_TOKENS else long:
        if (found := seen.get((goal.client, goal.streams, goal.busy))) is not None:
            value = goal.of(found)
            state = "met" if value <= goal.limit and not found.failed else "NOT met"
            case_text = f"{goal.streams} streams, {'busy' if goal.busy else 'quiet'}"
            print(f"{state:7} {goal.client:9} {goal.what:28} {case_text:20} {value:8.3f} of {goal.limit:g}")


if __name__ == "__main__":
    main()
