"""Do commands survive kills, stops, full disks, few files and little memory? Draws cases by number and judges each.

A case is a command and a fault, both drawn with the case's number, and so is when the fault comes. Checked are: the
exit code is one that the guide names for this fault; the terminal shows a sentence and no traceback or warning of the
interpreter; no process is left; what the folder holds can be read; a server's log has no answer, given up to a second
before the fault, that the run has lost; and a search or sweep that goes on ends as an undisturbed one. A line a case is
printed, then a table of faults with the codes and the slowest end. Ends with 1 where a case fails.

    python tests/perf/chaos.py [--first 0] [--cases 12] [--keep FOLDER]

A full disk is a small tmpfs, which takes the right to mount; without it such cases are left out.
"""

import argparse
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

BENCH = (sys.executable, "-m", "harness")
SYSTEM = ("--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--slo", "ttft=0.2,tpot=0.1")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run sim": ("run", *SYSTEM, "--rate", "2", "--requests", "20000"),
    "run null": ("run", "--backend", "null:ttft=0.1,tpot=0.01", "--lengths", "fixed:prompt=20,output=8",
                 "--rate", "200", "--duration", "3s", "--drain", "3s"),
    "run engine": ("run", "--rate", "2", "--duration", "3s", "--slo", "ttft=1", "--drain", "3s"),
    "run server": ("run", "--backend", "openai:url={url}", "--rate", "100", "--duration", "4s", "--drain", "3s",
                   "--calibrate", "0", "--senders", "2", "--lengths", "fixed:prompt=20,output=8"),
    "sweep": ("sweep", *SYSTEM, "--rate", "1,2,3", "--seeds", "2", "--requests", "400"),
    "capacity": ("capacity", *SYSTEM, "--tolerance", "15%"),
    "report": ("report", "{run}", "--out", "{out}.html"),
    "compare": ("compare", "{run}", "{run}"),
}  # fmt: skip
FAULTS = ("TERM", "INT", "INT twice", "KILL", "STOP", "STOP a child", "KILL a child", "disk", "files", "memory")
DONE = {"run server": {0, 4}, "run null": {0, 4}, "run engine": {0, 4}, "capacity": {0, 5}}
"""Codes without a fault; of what is sent in real time also 4, because this machine may make the client late."""
CODES: Mapping[str, set[int]] = {
    "TERM": {4}, "INT": {130, 4, 5}, "INT twice": {130, 4, 5}, "KILL": {-9}, "STOP": set(), "STOP a child": {3, 4},
    "KILL a child": {3, 4, 70}, "disk": {3}, "files": {3, 70}, "memory": {3, 70},
}  # fmt: skip
"""Further codes by fault."""
BAD = re.compile(
    r"Traceback \(most recent|Exception ignored|ResourceWarning|leaked|Fatal Python error|RuntimeWarning|Segmentation"
)
ENDS_S, HANGS_S = 5.0, 150.0
"""What ends on a signal ends within the first; nothing at all takes longer than the second."""
ROOM = (200_000, 8_000_000)
"""Bytes of a full disk."""
IN_REAL_TIME = ("run null", "run engine", "run server")
PROPORTION_S = {"run sim": 3.0, "sweep": 3.0, "capacity": 3.0, "report": 2.0, "compare": 1.5}
"""When faults come at the latest, counted from when the command can take signals; 4 s for those in real time."""


@dataclass(slots=True)
class Case:
    """A command, a fault, when it comes, and what it needs (bytes of disk, files, MB of memory)."""

    number: int
    command: str
    fault: str
    after_s: float
    amount: int


def drawn(number: int) -> Case:
    """The case of that number."""
    rng = random.Random(f"chaos {number}")
    command, fault = rng.choice([*COMMANDS]), rng.choice(FAULTS)
    after_s = rng.uniform(0.0, PROPORTION_S.get(command, 4.0))
    amount = {"disk": rng.randint(*ROOM), "files": rng.randint(12, 60), "memory": rng.randint(300, 1500)}.get(fault, 0)
    return Case(number, command, fault, after_s, amount)


@dataclass(slots=True)
class Ended:
    """How a command ended: its code, its words, when the fault came (monotonic), how long the end took after it."""

    code: int | None
    text: str
    begun_s: float
    fault_s: float | None = None
    took_s: float = 0.0
    left: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Rig:
    """What cases share: a server with its log, a stored run, and answers of undisturbed commands."""

    folder: Path
    url: str
    log: Path
    run: Path

    def words(self, case: Case, out: Path) -> list[str]:
        """The command of a case."""
        words = [word.format(url=self.url, run=self.run, out=out) for word in COMMANDS[case.command]]
        return [*BENCH, *words, *(() if case.command in ("report", "compare") else ("--out", str(out)))]

    def play(self, case: Case) -> tuple[Ended, list[str]]:
        """How the case ends, and what is wrong with that."""
        folder = self.folder / str(case.number)
        folder.mkdir()
        with mounted(folder / "disk", case.amount if case.fault == "disk" else None) as disk:
            out = disk / "out"
            ended = executed(case, self.words(case, out), folder)
            wrong = [*judged(case, ended), *stored(case, ended, out, self.log)]
            if case.command in ("sweep", "capacity") and case.fault in ("TERM", "INT", "INT twice", "KILL"):
                again = executed(Case(-1, case.command, "", 0.0, 0), self.words(case, out), folder)
                if answer(out) != undisturbed(case.command, self.folder):
                    wrong.append(f"goes on to another answer (code {again.code})")
        shutil.rmtree(folder, ignore_errors=True)
        return ended, wrong


@contextlib.contextmanager
def mounted(path: Path, room: int | None) -> Iterator[Path]:
    """A folder, a small disk of `room` bytes where that is given."""
    path.mkdir()
    if room is None:
        yield path
        return
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["/bin/umount", "-l", path], check=True)


@cache
def can_mount() -> bool:
    """Whether this process may mount a small disk."""
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(["/bin/mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        if found.returncode == 0:
            subprocess.run(["/bin/umount", folder], check=True)
        return found.returncode == 0


def executed(case: Case, words: list[str], folder: Path) -> Ended:
    """Execute a command with its fault, and wait for all its processes."""
    mark = f"chaos-{uuid.uuid4().hex}"
    (folder / "tmp").mkdir(exist_ok=True)
    limit = {"files": (resource.RLIMIT_NOFILE, case.amount), "memory": (resource.RLIMIT_AS, case.amount << 20)}

    def limited() -> None:
        if case.fault in limit:
            name, value = limit[case.fault]
            resource.setrlimit(name, (value, value))

    env = {**os.environ, "CHAOS": mark, "TMPDIR": str(folder / "tmp"), "OPENBLAS_NUM_THREADS": "1"}
    err = folder / "err"
    with err.open("wb") as stream:
        began_s = time.monotonic()
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=stream, env=env, cwd=folder, preexec_fn=limited,
            start_new_session=True,
        )  # fmt: skip
        ended = Ended(None, "", began_s)
        try:
            disturb(case, process, ended, mark)
            ended.code = process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            pass
        ended.took_s = time.monotonic() - (ended.fault_s or began_s)
    until_s = time.monotonic() + ENDS_S
    while (left := marked(mark)) and time.monotonic() < until_s:
        time.sleep(0.05)
    ended.left = left
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    ended.text = err.read_text(errors="replace")
    return ended


def disturb(case: Case, process: subprocess.Popen[bytes], ended: Ended, mark: str) -> None:
    """Bring about a fault that comes at a time."""
    if case.fault in ("", "disk", "files", "memory"):
        return
    while process.poll() is None and not catches(process.pid, signal.SIGTERM):
        time.sleep(0.01)  # before that Python itself ends on signals
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(case.after_s)
    if process.poll() is not None:
        return
    children = [pid for pid in marked(mark) if pid != process.pid and not of_python(pid)]
    ended.fault_s = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        if case.fault in ("KILL a child", "STOP a child"):
            if children:
                child = children[case.number % len(children)]
                os.kill(child, signal.SIGKILL if case.fault == "KILL a child" else signal.SIGSTOP)
                if case.fault == "STOP a child" and case.command not in IN_REAL_TIME:
                    time.sleep(2.0)
                    os.kill(child, signal.SIGCONT)  # a simulation has no time in which it must be done
        elif case.fault == "STOP":
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.killpg(process.pid, signal.SIGCONT)
        elif case.fault == "KILL":
            process.kill()
        else:
            process.send_signal(signal.SIGTERM if case.fault == "TERM" else signal.SIGINT)
            if case.fault == "INT twice":
                time.sleep(0.3)
                process.send_signal(signal.SIGINT)


def catches(pid: int, number: int) -> bool:
    """Whether a process handles a signal by itself."""
    with contextlib.suppress(OSError):
        found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
    return False


def of_python(pid: int) -> bool:
    """Whether a process is the one in which Python counts semaphores; its next one prints a traceback for each."""
    with contextlib.suppress(OSError):
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def marked(mark: str) -> list[int]:
    """Processes with that mark in their environment, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes() and " Z " not in (entry / "stat").read_text():
                    found.append(int(entry.name))
    return found


def judged(case: Case, ended: Ended) -> Iterator[str]:
    """What is wrong with an end."""
    if ended.code is None:
        yield f"hangs for {HANGS_S:g} s"
        return
    allowed = DONE.get(case.command, {0}) | CODES[case.fault]
    if ended.code not in allowed:
        yield f"code {ended.code}, allowed {sorted(allowed)}"
    if found := BAD.search(ended.text):
        yield f"prints '{found[0]}'"
    if ended.code not in (0, -9) and ended.fault_s is None and "bench: " not in ended.text and ended.code != 5:
        yield "no sentence"
    if case.fault in ("TERM", "INT twice") and ended.fault_s and ended.took_s > ENDS_S:
        yield f"ends {ended.took_s:.1f} s after the signal"
    if ended.left:
        yield f"{len(ended.left)} processes left"


def stored(case: Case, ended: Ended, out: Path, log: Path) -> Iterator[str]:
    """What is wrong with what is in the folder."""
    from harness.data.folder import load
    from harness.errors import UsageError

    if not case.command.startswith("run"):
        return
    moved = re.search(r"records are in '([^']+)' now", ended.text)
    path = Path(moved[1]) if moved else out
    if not (path / "run.json").exists():
        if case.command == "run server" and ended.code in (0, 4):
            yield "no run.json"
        return
    try:
        table = load(path).requests
    except UsageError as error:
        yield f"cannot be read: {error}"
        return
    ids = table["request_id"].to_pylist()
    if len(ids) != len(set(ids)):
        yield "a request has two records"
    if case.command == "run server" and "are lost" not in ended.text:
        there = table["status"].to_pylist().count("ok")
        until_s = (ended.fault_s or time.monotonic()) - 1.0
        answered = sum(
            ended.begun_s <= one.get("received_s", 0.0) and one["ended_s"] is not None and one["ended_s"] < until_s
            and one["output_tokens"] == TOKENS and one["status"] == 200
            for one in map(json.loads, log.read_text().splitlines())
        )  # fmt: skip
        if there < answered - PROBES:
            yield f"{answered} answers were given 1 s before the fault, {there} are stored"


TOKENS, PROBES = 8, 4
"""Tokens of each answer of the server, and how many of its answers may belong to no request of the run."""


def answer(out: Path) -> Any:
    """What a sweep or a search found, without what depends on the day."""
    for name in ("sweep.json", "capacity.json"):
        if (out / name).exists():
            info = json.loads((out / name).read_text())
            if name == "sweep.json":
                return info["state"], [
                    (p["values"], p["requests"], p["attainment"], p["goodput_rps"]) for p in info["points"]
                ]
            wanted = ("state", "capacity_rps", "low_rps", "high_rps", "seeds")
            return [[answer.get(key) for key in wanted] for answer in info.get("answers", [])]
    return None


@cache
def undisturbed(command: str, folder: Path) -> Any:
    """The answer of a command without a fault."""
    out = folder / f"undisturbed {command}"
    (home := folder / f"home {command}").mkdir()
    executed(Case(-1, command, "", 0.0, 0), [*BENCH, *COMMANDS[command], "--out", str(out)], home)
    return answer(out)


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """A server that answers with a few tokens, and a stored run."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        log, run = folder / "log.jsonl", folder / "run"
        subprocess.run([*BENCH, "run", *SYSTEM, "--rate", "2", "--requests", "2000", "--out", str(run), "--quiet",
                        "--no-html"], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        with subprocess.Popen(
            [*BENCH, "serve", "--backend", "null:ttft=0.05,itl=0.01", "--port", "0",
             "--log", str(log)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as server:  # fmt: skip
            assert server.stdout is not None
            port = int(server.stdout.readline())
            try:
                yield Rig(folder, f"http://127.0.0.1:{port}/v1", log, run)
            finally:
                server.terminate()


def main() -> int:
    """Play the cases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=12)
    given = parser.parse_args()
    failed, by_fault, slowest = 0, dict[str, Counter[str]](), dict[str, float]()
    with rig() as made:
        for number in range(given.first, given.first + given.cases):
            case = drawn(number)
            if case.fault == "disk" and not can_mount():
                print(f"{number}: left out, because this process may not mount a disk", flush=True)
                continue
            ended, wrong = made.play(case)
            failed += bool(wrong)
            by_fault.setdefault(case.fault, Counter())[str(ended.code)] += 1
            if ended.fault_s:
                slowest[case.fault] = max(slowest.get(case.fault, 0.0), ended.took_s)
            amount = (
                f" {case.amount:,}" if case.amount else f" after {case.after_s:.1f} s" if ended.fault_s else " too late"
            )
            last = next((line for line in reversed(ended.text.splitlines()) if line.strip()), "")[:90]
            print(f"{number}: {case.command}, {case.fault}{amount}: code {ended.code}, {ended.took_s:.1f} s; "
                  f"{'WRONG: ' + '; '.join(wrong) if wrong else 'good'} | {last}", flush=True)  # fmt: skip
    print(f"\n{failed} of {given.cases} cases failed")
    for fault, codes in sorted(by_fault.items()):
        shown = ", ".join(f"{code}: {count}" for code, count in codes.most_common())
        print(f"{fault:<14}codes {shown}; slowest end {slowest.get(fault, 0.0):.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
