"""The Python API where an event loop is running: a notebook, a handler of a web server, a test of pytest-asyncio."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import termination
from harness.errors import NotReady, UsageError

FEW = {"workload": "fixed:prompt=8,output=4", "rate": 50, "requests": 3}


class Answers(BaseHTTPRequestHandler):
    """Streams four tokens to every request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        usage = {"prompt_tokens": 8, "completion_tokens": 4}
        for n in range(4):
            choice = {"index": 0, "delta": {"content": "a "}, "finish_reason": "length" if n == 3 else None}
            self.wfile.write(f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[dict[str, Any]]:
    """The options of runs against a server in a thread."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        backend = f"openai:url=http://127.0.0.1:{http.server_port}/v1,model=m"
        yield {"backend": f"{backend},probe=off", "calibrate": "off", "senders": 1}
        http.shutdown()
        thread.join()


def with_a_loop(function: Callable[[], Any]) -> Any:
    """What the function returns in a thread whose event loop is running."""

    async def call() -> Any:
        return function()

    return asyncio.run(call())


def test_an_endpoint_is_measured_in_a_notebook(endpoint: dict[str, Any], tmp_path: Path) -> None:
    """Every cell ended in "asyncio.run() cannot be called from a running event loop"."""
    run = with_a_loop(lambda: harness.run(out=tmp_path / "run", **FEW, **endpoint))

    assert ["ok"] * 3 == run.frame().status.to_list()


def test_the_engine_runs_beside_a_loop_that_is_not_in_the_main_thread(tmp_path: Path) -> None:
    """A web server that runs its handlers in a thread could not call the API."""
    results: list[harness.RunResult] = []
    thread = threading.Thread(
        target=lambda: results.append(with_a_loop(lambda: harness.run(backend="engine", out=tmp_path / "run", **FEW)))
    )
    thread.start()
    thread.join()

    assert [["ok"] * 3] == [result.frame().status.to_list() for result in results]


def test_a_notebook_that_is_interrupted_keeps_what_it_measured(
    wait_for: Callable[[Callable[[], bool]], None], tmp_path: Path
) -> None:
    """The signal reached a thread that only waits, and the run went on without it."""

    def interrupt() -> None:
        rows = tmp_path / "run" / "requests.arrows"
        wait_for(lambda: rows.exists() and rows.stat().st_size > 4096)  # more than its schema
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt)
    user.start()
    run = with_a_loop(
        lambda: harness.run(
            backend="null:itl=1ms", rate=50, duration=600, workload=FEW["workload"], out=tmp_path / "run"
        )
    )
    user.join()

    assert "interrupted" == run.data.info.state
    assert 0 < len(run.frame()) < 30_000
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), *((number, termination.Terminated) for number in termination.ENDING)],
)
def test_a_signal_cancels_what_runs_beside_the_loop(number: signal.Signals, error: type[BaseException]) -> None:
    """A backend that is starting would be left behind, and the cell could not be ended."""
    closed = []
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it

    async def starting() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(600)
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt) as raised:
        with_a_loop(lambda: termination.run(starting()))
    signal.signal(signal.SIGHUP, inherited)

    assert ([True], error) == (closed, raised.type)


def test_errors_name_arguments_and_no_options(tmp_path: Path) -> None:
    """A notebook was advised to give --force."""
    sim = {"backend": "sim", **FEW}
    harness.run(out=tmp_path / "run", **sim)
    (tmp_path / "file").touch()
    sentences = {}
    for name, call in {
        "force": lambda: harness.run(out=tmp_path / "run", **sim),
        "slo": lambda: harness.run(fail_under=0.9, **sim),
        "over": lambda: harness.sweep(**{**sim, "rate": None}),
        "policy": lambda: harness.run(policy="vllm-v0,sarathi", **sim),
        "seeds": lambda: harness.capacity(horizon="0s", slo="ttft=1", backend="sim"),
        "run": lambda: harness.load(tmp_path / "run" / "none"),
        "gate": lambda: harness.compare(tmp_path / "run", tmp_path / "run", gate="ttft=5%=6"),
        "wait": lambda: harness.run(wait="2s", **sim),
        "wait for a sweep": lambda: harness.sweep(wait=2, **{**sim, "rate": "1,2"}),
        "wait for a search": lambda: harness.capacity(wait=2, slo="ttft=1", backend="sim"),
        "trace": lambda: harness.run(trace=tmp_path / "file", backend="sim"),
        "name": lambda: harness.run(fail_unde=0.9, **sim),
        "server": lambda: harness.run(base_url="http://127.0.0.1:1", **FEW),
        "removed": lambda: harness.run(kv="x", **sim),
        "digits": lambda: harness.run(**{**sim, "requests": 10**400}),
    }.items():
        with pytest.raises(UsageError) as raised:
            call()
        sentences[name] = str(raised.value)

    assert "give another out, or force=True to replace it." in sentences["force"]
    assert "such as slo='ttft=0.25,tpot=0.1'." in sentences["slo"]
    assert "give rate='1:4:0.5', over={'policy': 'sarathi,static'} or seeds=5." in sentences["over"]
    assert "compare several with bench sweep: over={'policy': 'vllm-v0|sarathi'}" in sentences["policy"]
    assert sentences["name"].startswith(
        "No option named 'fail_unde'. Did you mean 'fail_under'? Known: arrivals, backend, "
    )
    assert "No option 'base_url': give the server's URL as backend='http://HOST:PORT'." == sentences["server"]
    assert sentences["removed"].endswith("an argument of the backend, backend='sim:kv=reserve-oracle'.")
    assert "requests must be a whole number from 1 on, got one of more than 300 digits." == sentences["digits"]
    assert {"wait is for a server; the backend 'sim' needs none."} == {
        sentence for name, sentence in sentences.items() if name.startswith("wait")
    }
    assert [] == [sentence for sentence in sentences.values() if "--" in sentence]
    assert 0 == harness.run(out=tmp_path / "run", force=True, **sim).exit_code
    with pytest.raises(NotReady, match=r"; wait='10min' waits for it\.$"):
        harness.run(backend="http://127.0.0.1:1", **FEW)
