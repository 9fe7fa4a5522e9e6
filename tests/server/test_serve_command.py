"""`bench serve` as a process: ready line, port, Ctrl-C, and wrong usage."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `bench serve` on a free port; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness", "serve", "--port", "0", *arguments],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "SERVE_KEY": "s3cret"},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def answer_of(port: int, **fields: object) -> str:
    body = json.dumps({"prompt": "hello", **fields}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_lives_from_its_ready_line_to_ctrl_c(serve: Serve, tmp_path: Path, number: int) -> None:
    """A script could not start it, find it, and end it."""
    process = serve("--backend", "null:tokens=4", "--log", "truth.jsonl")
    assert process.stdout is not None
    port = int(process.stdout.readline())
    answer = answer_of(port, stream=True)
    process.send_signal(number)
    rest, notes = process.communicate(timeout=120)

    assert 4 == answer.count('"text":" ')
    assert (0, "") == (process.returncode, rest)
    ready, command, *_, last = notes.splitlines()
    assert f"http://127.0.0.1:{port}/v1" in ready
    assert "'null'" in ready
    assert command.strip().startswith(f"bench run --backend openai:url=http://127.0.0.1:{port}/v1,model=null")
    assert last.startswith("Tokens left p50 ")
    assert last.endswith("(4).")
    assert (
        4 == json.loads((tmp_path / "truth.jsonl").read_text(encoding="utf-8").splitlines()[-1])["lateness"]["tokens"]
    )


def test_a_second_ctrl_c_ends_the_grace(serve: Serve) -> None:
    """An answer without end would hold the terminal."""
    process = serve("--backend", "null:itl=50ms", "--grace", "1h")
    assert process.stdout is not None
    assert process.stderr is not None
    port = int(process.stdout.readline())
    body = json.dumps({"prompt": "hello", "stream": True, "max_tokens": 100_000}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
        answer.readline()
        process.send_signal(signal.SIGINT)
        notes = [process.stderr.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)

    assert "1 answers may finish" in notes[2]
    assert 0 == process.returncode


def test_the_key_is_in_no_output(serve: Serve, tmp_path: Path) -> None:
    """A key would be readable in the log."""
    process = serve("--backend", "null", "--api-key-env", "SERVE_KEY", "--log", "truth.jsonl")
    assert process.stdout is not None
    int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    out, notes = process.communicate(timeout=120)

    assert "s3cret" not in out + notes + (tmp_path / "truth.jsonl").read_text(encoding="utf-8")


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """The user would meet a traceback, or a server that does something else."""
    refusals("wrong-serve.txt")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the engine's process is found in /proc")
def test_a_server_whose_engine_has_died_ends_and_says_so(serve: Serve) -> None:
    """A server would go on refusing everything until the driver polls."""
    process = serve("--backend", "engine")
    assert process.stdout is not None
    int(process.stdout.readline())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, notes = process.communicate(timeout=120)

    assert 3 == process.returncode
    assert "The engine failed" in notes
