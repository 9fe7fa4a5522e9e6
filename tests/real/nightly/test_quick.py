"""`bench quick` on servers of three kinds: done in its three minutes, and not at odds with a search of ten."""

import contextlib
import json
import math
import subprocess
import sys
import time

import pytest

QUICK_S, LONG = 180, "10min"
LATE_S = 30
"""For what the command takes to load on a busy machine."""
SERVERS = {  # an SLO that each meets without load on two shared cores
    "llama.cpp": "ttft=2,tpot=0.1",
    "transformers": "ttft=4,tpot=0.5",
    "bench serve": "ttft=0.5,tpot=0.05",
}


@pytest.fixture
def address(request, kit, tmp_path):
    """`address(name)`: the URL of a server, and the name of its model where it lists none."""
    with contextlib.ExitStack() as stack:

        def start(name):
            if name == "llama.cpp":
                return request.getfixturevalue("llama_cpp")("ascii"), None
            if name == "transformers":
                return request.getfixturevalue("transformers_serve"), str(request.getfixturevalue("tiny")("ascii"))
            backend, log = "sim:model=llama2-7b,hardware=a100-80g", tmp_path / "log"
            command = [sys.executable, "-m", "harness", "serve", "--backend", backend, "--port", "0"]
            return f"http://127.0.0.1:{kit.first_line(stack.enter_context(kit.running(command, log)), log)}", None

        yield start


def answer(*words):
    """What a search prints as JSON, the rates between which it says that the capacity lies, and its seconds."""
    begun_s = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "harness", *words, "--format", "json"], capture_output=True, text=True)
    took_s = time.monotonic() - begun_s
    assert done.returncode in (0, 1, 5), done.stderr
    [found] = json.loads(done.stdout)["answers"]
    if found["state"] == "unreachable":
        return (0.0, 0.0), took_s
    bracket = found["bracket"] or {}
    low_rps, high_rps = found["low_rps"], found["high_rps"]
    if low_rps is None:
        low_rps, high_rps = bracket.get("low_rate_rps"), bracket.get("high_rate_rps")
    assert low_rps or high_rps, done.stdout
    return (low_rps or 0.0, high_rps or math.inf), took_s


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SERVERS)
def test_three_minutes_tell_a_range_that_ten_do_not_contradict(address, tmp_path, name):
    """A user would decide by an answer that a longer look takes back."""
    url, model = address(name)
    named, part = (["--model", model], f",model={model}") if model else ([], "")
    quick, took_s = answer("quick", url, *named, "--slo", SERVERS[name], "--out", str(tmp_path / "quick"))
    spec = f"openai:url={url}/v1{part}"
    options = ["--workload", "chatbot", "--backend", spec, "--slo", SERVERS[name], "--max-failed", "0.1"]
    long, _ = answer("capacity", *options, "--budget", LONG, "--out", str(tmp_path / "long"))
    print(f"{name}: {quick[0]:.3g} .. {quick[1]:.3g} req/s in {took_s:.0f} s; in {LONG} {long[0]:.3g} .. {long[1]:.3g}")

    assert took_s <= QUICK_S + LATE_S
    assert quick[0] <= long[1] and long[0] <= quick[1]
