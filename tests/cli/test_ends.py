"""A bug, exhausted memory and SIGTERM end every command with an exit code and a sentence of their own."""

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import errors, termination
from harness.cli import _commands, _crash, main

LINES = {
    "run": ["--backend", "null"],
    "sweep": ["--rate", "1,2"],
    "capacity": [],
    "agents": [],
    "quick": [],
    "place": [],
    "slo": ["a-run"],
    "compare": ["a", "b"],
    "report": ["a-run"],
    "reproduce": ["--all"],
    "serve": [],
    "trace": ["info", "a.csv"],
    "theory": ["prefill"],
    "fit": [],
    "validate": [],
    "list": [],
    "explain": ["gamma"],
    "doctor": [],
    "init": ["x.toml"],
    "sender": [],
}
"""A line for each command that gets as far as its body."""


def innermost(name: str) -> click.Command:
    """The command of that name, or the first of a group that its line calls."""
    command = _commands.bench.get_command(click.Context(_commands.bench), name)
    assert command is not None
    if isinstance(command, click.Group):
        found = command.get_command(click.Context(command), LINES[name][0])
        assert found is not None
        return found
    return command


@pytest.fixture
def body(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Has the body of a command do something else, and temporary files go into a folder of the test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def replace(name: str, act: Any) -> None:
        monkeypatch.setattr(innermost(name), "callback", lambda **_: act())

    return replace


def raising(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def crash_file(tmp_path: Path, sentence: str) -> str:
    """The text of the file that the sentence names, which is one line."""
    assert sentence.startswith("bench: ")
    assert 1 == sentence.count("\n")
    (named,) = re.findall(r"the traceback is in '(.*)'", sentence)
    assert tmp_path == Path(named).parent
    return Path(named).read_text()


def test_every_command_has_a_line_here() -> None:
    assert {*_commands.COMMANDS} == {*LINES}


@pytest.mark.parametrize("name", LINES)
def test_a_bug_in_any_command_is_70_with_its_traceback_in_a_file(
    name: str, body: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CI job would take a crash for a regression (1) or for a wrong option (2)."""
    body(name, raising(KeyError("no such column")))
    code = main([name, *LINES[name]])
    err = capsys.readouterr().err
    text = crash_file(tmp_path, err)

    assert 70 == code
    assert "this is a bug in bench (KeyError in test_ends.py, line " in err
    assert "Traceback (most recent call last)" in text
    assert text.splitlines()[1].startswith(f"bench {name}")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "memory was exhausted (MemoryError"),
        (pa.ArrowMemoryError("malloc of size 1 failed"), "memory was exhausted (ArrowMemoryError"),
        (OSError(12, "Cannot allocate memory"), "memory was exhausted (OSError"),
        (ImportError("libz.so: failed to map segment"), "memory was exhausted (ImportError"),
        (RecursionError("maximum recursion depth exceeded"), "an input is nested too deeply, or this is a bug"),
        (EOFError("Ran out of input"), "this is a bug in bench (EOFError"),
        (SystemExit(2), "this is a bug in bench (SystemExit"),
        (errors.Crashed.of("a sender broke.", "Traceback of the sender"), "bench: a sender broke; the traceback"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_exhausted_memory_and_broken_processes_are_70(
    error: BaseException, what: str, body: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory that ran out would look like a broken bound, and an end of input like Ctrl-C."""
    body("list", raising(error))
    code = main(["list"])
    err = capsys.readouterr().err.lstrip("\n")  # click ends the line of what it takes for ^C

    assert 70 == code
    assert what in err
    assert "Traceback" in crash_file(tmp_path, err)


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["in the command", "in a thread"])
def test_a_thread_that_is_refused_is_named(
    in_a_thread: bool, body: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit of processes (ulimit -u) would be taken for a bug, or for too little memory, with a traceback."""
    refused = raising(RuntimeError("can't start new thread"))

    def act() -> int:
        thread = threading.Thread(target=refused)
        thread.start()
        thread.join()
        return 0

    body("list", act if in_a_thread else refused)
    code = main(["list"])
    err = capsys.readouterr().err

    assert 3 == code
    assert err.startswith("bench: the operating system refused a new thread; allow more processes ('ulimit -u'")
    assert not list(tmp_path.iterdir())


ACCIDENTS: list[tuple[BaseException, int]] = [
    (click.Abort(), 70),
    (click.exceptions.Exit(1), 70),
    (SystemExit(1), 70),
    (SystemExit("no"), 70),
    (MemoryError(), 70),
    (asyncio.CancelledError(), 70),
    (GeneratorExit(), 70),
    (BrokenProcessPool("a worker ended"), 70),
    (UnicodeEncodeError("ascii", "\u2264", 0, 1, "ordinal not in range"), 70),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0),
    (OSError(errno.ENOSPC, "No space left on device"), 3),
    (OSError(errno.EMFILE, "Too many open files"), 3),
    (KeyboardInterrupt(), 130),
]
"""What a library or the system may do to a command at any line, and the exit code that is left then."""


@pytest.mark.parametrize(("error", "code"), ACCIDENTS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", LINES)
def test_no_accident_is_1(
    name: str, error: BaseException, code: int, body: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """1 says that a bound or a comparison failed: a CI job would blame the server for a fault of the client."""
    body(name, raising(error))

    assert code == main([name, *LINES[name]])


@pytest.mark.parametrize("bytes_", [200_000_000, 600_000_000])
def test_too_little_address_space_is_70(bytes_: int, tmp_path: Path) -> None:
    """OpenBLAS ends a process by exit(1) when it gets no memory, and Arrow waited for ever."""
    resource = pytest.importorskip("resource")
    words = [
        sys.executable,
        "-m",
        "harness",
        "run",
        "--backend",
        "sim",
        "--requests",
        "5",
        "--out",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(
        words,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_)),
    )

    assert 70 == done.returncode
    assert "bench: memory was exhausted (MemoryError" in done.stderr
    assert "bench needs 1 GiB of address space, see 'ulimit -v'" in done.stderr


def test_a_thread_that_breaks_is_70(body: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command would end with 0 below the traceback of a thread."""

    def act() -> None:
        thread = threading.Thread(target=raising(ValueError("in a thread")))
        thread.start()
        thread.join()

    body("list", act)
    code = main(["list"])

    assert 70 == code
    assert "in a thread" in crash_file(tmp_path, capsys.readouterr().err)


def test_a_traceback_that_cannot_be_written_is_still_70(
    body: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk would turn a crash into a crash of the crash handler, with exit code 1."""
    monkeypatch.setattr("tempfile.tempdir", "/dev/full")
    body("list", raising(ValueError("odd")))
    code = main(["list"])
    err = capsys.readouterr().err

    assert 70 == code
    assert "bug in bench (ValueError in test_ends.py" in err
    assert "the traceback could not be written" in err
    assert "Traceback" not in err


def test_no_secret_is_in_the_traceback(
    body: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key would go into a file that a user attaches to a public issue."""
    (tmp_path / "key.txt").write_text("filekey-4444\n")
    (tmp_path / "c.toml").write_text('header = "X-Auth: tomlheader-5555"\n')
    secrets = ["envkey-1111", "named-2222", "headervalue-3333", "filekey-4444", "tomlheader-5555", "userpw-6666"]
    monkeypatch.setenv("OPENAI_API_KEY", secrets[0])
    monkeypatch.setenv("PLAIN_NAME", secrets[1])
    body("run", raising(ValueError(f"cannot send {' '.join(secrets)} Bearer abcdefgh sk-abcdefghijkl")))
    url = f"http://me:{secrets[5]}@h/v1"
    code = main([
        "run", "--backend", f"openai:url={url},key_env=PLAIN_NAME,key_file={tmp_path / 'key.txt'}",
        "--header", f"X-Secret: {secrets[2]}", "--config", str(tmp_path / "c.toml"),
    ])  # fmt: skip
    err = capsys.readouterr().err
    text = crash_file(tmp_path, err)

    assert 70 == code
    for secret in (*secrets, "abcdefgh"):
        assert secret not in text
        assert secret not in err
    assert "--header 'X-Secret: [hidden]'" in text or "[hidden]" in text


def deep(tmp_path: Path, kind: str) -> Path:
    file = tmp_path / f"deep.{kind}"
    many = 5_000 if kind == "toml" else 100_000  # tomllib is written in Python
    nested = "[" * many + "]" * many
    file.write_text({"toml": f"rate = {nested}", "json": nested, "jsonl": '{"a":' * many}[kind])
    return file


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("toml", ["run", "--config"]),
        ("json", ["run", "--config"]),
        ("toml", ["explain"]),
        ("json", ["report"]),
        ("json", ["slo", "--slo", "ttft=1"]),
        ("jsonl", ["trace", "info"]),
        ("json", ["trace", "generate", "--requests", "5", "-o", "out.csv"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_input_that_is_nested_without_end_is_2(
    kind: str, line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A RecursionError would look like a bug of bench."""
    code = main([*line, str(deep(tmp_path, kind))])

    assert 2 == code
    assert "nested more than 64 levels deep, the most that is read." in capsys.readouterr().err


def test_a_table_that_needs_more_memory_than_there_is_is_70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrow's own MemoryError is an ArrowException too, and was taken for a damaged file (2)."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"prefill_tokens": [1], "decode_seqs": [1], "context_tokens": [1], "seconds": [1.0]}), path)

    def exhausted(*_: object, **__: object) -> Any:
        raise pa.ArrowMemoryError("malloc of size 8000000000 failed")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile.read", exhausted)
    code = main(["fit", "--steps", str(path), "--latency", "linear"])

    assert 70 == code
    assert "memory was exhausted" in capsys.readouterr().err


def terminate() -> None:
    """SIGTERM to this process, and time for Python to notice."""
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(100):
        time.sleep(0.001)


@pytest.mark.parametrize("name", LINES)
def test_sigterm_in_any_command_is_4_with_a_sentence(name: str, body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that was ended from outside would leave no word, and the shell's 143."""
    before = signal.getsignal(signal.SIGTERM)
    body(name, terminate)
    code = main([name, *LINES[name]])

    assert 4 == code
    assert "bench: terminated by SIGTERM before there was anything to report.\n" == capsys.readouterr().err.lstrip("\n")
    assert before is signal.getsignal(signal.SIGTERM)


def test_a_closed_terminal_ends_a_command_as_sigterm_does(body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured over a connection that broke would be lost, with 129; or would be called SIGTERM."""
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    body("list", lambda: signal.raise_signal(signal.SIGHUP))

    assert 4 == main(["list"])
    assert "terminated by SIGHUP before" in capsys.readouterr().err
    assert signal.SIG_DFL is signal.signal(signal.SIGHUP, inherited)


def test_ctrl_c_that_a_library_turned_into_another_error_is_130(body: Any) -> None:
    """Ctrl-C in the import of a compiled module was reported as a bug in bench."""

    def act() -> None:
        error = ImportError("cannot import name 'x' from partially initialized module")
        error.__context__ = KeyboardInterrupt()
        raise error

    body("list", act)

    assert 130 == main(["list"])


@pytest.mark.parametrize(("own", "code"), [(0, 4), (1, 4), (5, 4), (3, 3), (2, 2), (4, 4)])
def test_sigterm_and_the_code_of_the_answer(own: int, code: int, body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several codes the first of 70, 2, 3, 4, 1, 5 counts."""

    def act() -> int:
        with pytest.raises(termination.Terminated):  # as a search does that answers with what there is
            terminate()
        return own

    body("list", act)

    assert code == main(["list"])
    assert (code == 4) == ("exit code 4: terminated by SIGTERM." in capsys.readouterr().err)


def test_sigterm_that_falls_into_a_destructor_counts(body: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Python prints what a destructor raises and goes on: the command would not end, and print a traceback."""

    class Odd:
        def __del__(self) -> None:
            terminate()

    went_on: list[str] = []

    def act() -> None:
        Odd()
        time.sleep(10)
        went_on.append("after the signal")

    body("list", act)

    assert 4 == main(["list"])
    assert [] == went_on
    assert "Exception ignored" not in capsys.readouterr().err


def test_sigterm_cancels_a_coroutine_in_order() -> None:
    """An event loop that is torn down by an exception leaves servers and processes behind."""
    import asyncio

    done: list[str] = []

    async def work() -> None:
        try:
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0)
            done.append("closed")

    with termination.Command().guarding() as command, pytest.raises(termination.Terminated):
        termination.run(work())

    assert ["closed"] == done
    assert command.received


def test_the_first_of_several_codes() -> None:
    assert [70, 2, 3, 4, 1, 5, 0] == [
        errors.first_of(*codes)
        for codes in ((5, 1, 4, 3, 2, 70), (5, 1, 4, 3, 2), (5, 4, 3), (5, 1, 4), (5, 1), (5, 0), (0,))
    ]


def test_a_long_traceback_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recursion through two functions would fill a file with thousands of equal lines."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def even(n: int) -> int:
        return odd(n + 1)

    def odd(n: int) -> int:
        return even(n + 1)

    with pytest.raises(RecursionError) as caught:
        even(0)
    text = crash_file(tmp_path, f"bench: {_crash.describe(caught.value, ['list'])}\n")

    assert text.count("\n") < 2 * _crash.MOST_LINES + 10
    assert "RecursionError" in text.splitlines()[-1]


@pytest.mark.parametrize("command", ["run", "sweep", "slo"])
def test_the_help_promises_5_for_overload_not_for_a_queue_that_grew(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose queue grew while the SLO was met ends with 0."""
    main([command, "--help"])
    five = re.split(r"\n {4}(?=5 |70 )", capsys.readouterr().out)[1]

    assert "overloaded" in five and "queue" not in five


@pytest.mark.parametrize(("presses", "ended"), [(1, "interrupted"), (2, "stopped")])
async def test_sigterm_with_nothing_in_flight_is_no_plain_end(presses: int, ended: str, tmp_path: Path) -> None:
    """A sender with nothing in flight is done by the first word to stop: SIGTERM passed for one Ctrl-C, exit code 0."""
    import asyncio
    from types import SimpleNamespace
    from typing import cast

    from harness.api import Outcome
    from harness.ipc import data_frame
    from harness.runner.live import Live
    from harness.runner.remote.coordinator import Senders, _Child
    from harness.runner.remote.hosts import Line
    from harness.runner.remote.sender import Done

    nothing = SimpleNamespace(start_clock=lambda _: None, error=None)
    senders = Senders(cast("Any", nothing), tmp_path, 1, None, 1.0, cast("Any", nothing), Live(), lambda _: None)
    reader = asyncio.StreamReader()
    reader.feed_data(data_frame(Done(Outcome("interrupted", 3, 7, 0), {})))
    writer = SimpleNamespace(is_closing=lambda: True)
    senders._children = [_Child(0, Line(cast("Any", None), reader, cast("Any", writer)))]
    for _ in range(presses):
        senders.interrupt()

    assert ended == (await senders.run()).ended


def test_a_bug_in_a_driver_is_70_and_keeps_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be called a backend that failed (3), with no word of where."""

    def broken(*_: object) -> Any:
        raise KeyError("no such line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("harness.runner.transport.StreamingTransport.carry", broken)
    out = tmp_path / "out"
    code = main(["run", "--backend", "null", "--requests", "3", "--quiet", "--no-html", "--out", str(out)])
    text = crash_file(tmp_path, capsys.readouterr().err)

    assert 70 == code
    assert "in broken\n    raise KeyError" in text
    assert "crash" not in json.loads((out / "run.json").read_text())["outcome"]


@pytest.mark.parametrize("command", [["sweep", "--rate", "1,2", "--requests", "5"]])
def test_a_worker_that_is_killed_is_70(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel kills what takes too much memory: that is no server that failed (3)."""
    from concurrent.futures.process import BrokenProcessPool

    def killed(*_: object) -> Any:
        raise BrokenProcessPool

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("concurrent.futures.process.ProcessPoolExecutor.submit", killed)
    code = main([*command, "--backend", "sim", "--workers", "2", "--quiet", "--out", str(tmp_path / "o")])
    err = capsys.readouterr().err

    assert 70 == code
    assert "a worker process was killed, most likely for want of memory; take fewer --workers; the traceback" in err


def test_worker_processes_leave_signals_to_the_command() -> None:
    """`timeout` and a terminal signal the whole group: a dead engine or worker would pass for a failed backend."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        termination.ignored()
        os.kill(os.getpid(), signal.SIGTERM)  # would end these tests
        os.kill(os.getpid(), signal.SIGINT)

        assert {signal.SIG_IGN} == {signal.getsignal(number) for number in before}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_ctrl_c_in_text_that_an_import_executes_keeps_the_exit_code(tmp_path: Path) -> None:
    """A script would see a process that was killed by SIGINT where the sentence says that all is stored."""
    (tmp_path / "slow.py").write_text("exec('raise KeyboardInterrupt')")
    (tmp_path / "program.py").write_text(
        "import sys; from harness import cli; from harness.cli import _commands, _terminal; "
        "_commands.run = lambda _: __import__('slow'); sys.exit(cli.main())"
    )
    command = [sys.executable, "-m", "program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (130, "bench: interrupted before there was anything to report.\n") == (done.returncode, done.stderr)


AT_IMPORTS = """
import json, os, signal, sys, tempfile
from pathlib import Path
from harness import cli

names, ends, parent = set(filter(None, sys.argv.pop(1).split(","))), [], os.getpid()

class Interrupts:
    def __init__(self):
        self.left = set(names)

    def find_spec(self, name, path=None, target=None):
        if names and name not in self.left:
            return None
        self.left.discard(name)
        with tempfile.TemporaryFile() as output:
            if not (child := os.fork()):
                sys.meta_path.remove(self)
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                signal.raise_signal(signal.SIGINT)
                return None
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            ends.append((name, code, output.read().decode()))
        if names and not self.left:
            finish()

def finish():
    Path("ends.json").write_text(json.dumps(ends))
    os._exit(0)

sys.meta_path.insert(0, Interrupts())
code = cli.main()
if os.getpid() == parent:
    finish()
sys.exit(code)
"""
"""A command with Ctrl-C at its imports of some modules, of all without names: a copy of the process gets it."""
RUN = "run --backend sim --requests 5 --quiet --no-html"


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("list", "click,harness.registry"),
        (RUN, "numpy,pyarrow,pyarrow.util,dateutil.relativedelta"),
        *(
            pytest.param(command, "", marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])
            for command in ("--help", "list", RUN)
        ),
    ],
)
def test_ctrl_c_in_an_import_is_130(command: str, names: str, tmp_path: Path) -> None:
    """Ctrl-C in an import that compiled code makes was lost, or a bug in bench."""
    words = [sys.executable, "-P", "-c", AT_IMPORTS, names, *command.split()]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    ends = json.loads((tmp_path / "ends.json").read_text())

    assert len(ends) >= (len(names.split(",")) if names else 100)
    twice = re.compile(r"\S*libmpdec.*\n\n")  # C code of decimal, whose import began again, writes it
    reported = [end for end in ends if end[1] == 0 and "INTERRUPTED: " in end[2]]  # once the run has begun
    assert len(reported) <= (0 if names or command != RUN else 4)
    assert [] == [
        end for end in ends if end not in reported
        and (end[1] != 130 or not twice.sub("", end[2]).startswith("bench: interrupted before "))
    ]  # fmt: skip
