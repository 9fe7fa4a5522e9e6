"""Servers and clients of other projects, and the model they serve, made on the spot."""

import asyncio
import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from backends.openai import OpenAI
from harness.api import Content, Ended, Exchange, Request, TokenEvent

HERE = Path(__file__).resolve().parent
NIGHTLY = HERE.parents[1] / ".nightly"
TINY = runpy.run_path(str(HERE / "tiny_model.py"))
READY_S = 180.0  # vLLM compiles while it starts
OFFLINE = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
}  # fmt: skip


def free_port() -> int:
    """A port of the loopback that was free just now, for servers that cannot tell which one they took."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def headers(key: str) -> dict[str, str]:
    """What every client sends."""
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}


def ask(url: str, body: object = None, timeout_s: float = 120.0, key: str = "none") -> Any:
    """The JSON that a server answers to a GET, or to a POST of `body`; the text where it is not JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers(key))
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        raw = answer.read().decode()
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def status_of(url: str, body: object) -> int:
    """The HTTP status of a POST."""
    try:
        ask(url, body)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def events(url: str, body: Mapping[str, object], key: str = "none") -> list[tuple[float, Any]]:
    """(monotonic seconds, JSON or "[DONE]") of each event of a streamed answer, read line by line."""
    request = urllib.request.Request(url, json.dumps(body).encode(), headers(key))
    seen: list[tuple[float, Any]] = []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            at_s = time.monotonic()
            if line.startswith(b"data:"):
                raw = line[5:].strip()
                seen.append((at_s, "[DONE]" if raw == b"[DONE]" else json.loads(raw)))
    return seen


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process with all its children, ended on leaving; standard error goes to `log`."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env={**os.environ, **OFFLINE, **(env or {})},
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def first_line(process: subprocess.Popen[str], log: Path) -> str:
    """What a process prints first; AssertionError with its complaints when it ended before."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, log.read_text()[-2000:]
    threading.Thread(target=process.stdout.read, daemon=True).start()  # so that it never waits for a reader
    return line


def wait_ready(url: str, process: subprocess.Popen[str], log: Path, within_s: float = READY_S) -> None:
    """Return when `url` answers 200; AssertionError when the process ends or takes longer."""
    assert process.stdout is not None
    threading.Thread(target=process.stdout.read, daemon=True).start()
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        assert process.poll() is None, log.read_text()[-4000:]
        with contextlib.suppress(OSError):
            ask(url, timeout_s=2)
            return
        time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {within_s:.0f} s:\n{log.read_text()[-4000:]}")


@dataclass(frozen=True, slots=True)
class FixedTexts:
    """A content of given texts: request i says text i. `ids` are their tokens."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  # of the protocol
        return self.texts[request.id % len(self.texts)]

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:  # noqa: ARG002  # they are what they are
        return np.array(self.ids[request.id % len(self.ids)], np.int64)


@dataclass(frozen=True, slots=True)
class Received:
    """What our client made of one request; `describe` is that of the backend after all."""

    events: tuple[TokenEvent, ...]
    ended: Ended
    describe: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return sum(event.tokens for event in self.events)

    @property
    def exchange(self) -> Exchange:
        assert self.ended.exchange is not None
        return self.ended.exchange


async def listen(
    backend: OpenAI, content: Content, requests: Sequence[Request], together: bool = False
) -> list[Received]:
    """Send requests by our client, one after the other or all at once."""

    async def one(request: Request) -> tuple[tuple[TokenEvent, ...], Ended]:
        *events, ended = [event async for event in backend.submit(request)]
        assert isinstance(ended, Ended)
        return tuple(event for event in events if isinstance(event, TokenEvent)), ended

    await backend.open(content)
    await backend.connect(0, 1.0, 1.0)
    backend.start_clock(time.monotonic())
    try:
        received = await asyncio.gather(*map(one, requests)) if together else [await one(r) for r in requests]
        facts = backend.describe()
    finally:
        await backend.close()
    return [Received(events, ended, facts) for events, ended in received]


def until(happened: Callable[[], bool], within_s: float = 240.0) -> None:
    """Return when it has happened; AssertionError when it takes longer."""
    end_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.02)


class Kit:
    """What the tests of this folder share."""

    ask = staticmethod(ask)
    status_of = staticmethod(status_of)
    events = staticmethod(events)
    running = staticmethod(running)
    first_line = staticmethod(first_line)
    wait_ready = staticmethod(wait_ready)
    free_port = staticmethod(free_port)
    words = staticmethod(TINY["words"])
    listen = staticmethod(listen)
    until = staticmethod(until)
    texts = FixedTexts
    nightly = NIGHTLY


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture(scope="session")
def clients() -> dict[str, Any]:
    """What clients.py defines."""
    return runpy.run_path(str(HERE / "clients.py"))


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """The folder of programs of a nightly environment; skips where `make nightly` has not built it."""

    def programs(name: str) -> Path:
        if not (NIGHTLY / name / ".built").is_file():
            pytest.skip(f"'{name}' is not installed; 'make nightly' builds it under .nightly/")
        return NIGHTLY / name / "bin"

    return programs


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the small model with a vocabulary, `ascii` or `bytes`; model.gguf lies inside."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = TINY["build"](tmp_path_factory.mktemp("tiny") / kind, kind)
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny: Callable[[str], Path]) -> Callable[[str], Tokenizer]:
    """The tokenizer of a vocabulary, as Hugging Face's library reads it."""
    tokenizers = pytest.importorskip("tokenizers")
    return lambda kind: tokenizers.Tokenizer.from_file(str(tiny(kind) / "tokenizer.json"))


@pytest.fixture(scope="session")
def greedy(tiny: Callable[[str], Path]) -> Callable[..., list[int]]:
    """Greedy tokens of our engine: `greedy(kind, prompt_ids, most)`, to the end of the sequence or `most` tokens."""
    from backends.executors.llama import Llama
    from harness.api import Piece

    def tokens(kind: str, prompt_ids: Sequence[int], most: int, ignore_eos: bool = False) -> list[int]:
        executor = Llama(model=str(tiny(kind)), threads=1)
        blocks = list(range(-(-(len(prompt_ids) + most) // 16)))
        executor.allocate(len(blocks), 16)
        made: list[int] = []
        feed, position = list(prompt_ids), 0
        while len(made) < most:
            if ignore_eos:
                logits = executor.logits([Piece(0, feed, position, blocks, sample=True)])[0]
                token: int | None = int(logits[1:].argmax()) + 1
            else:
                [token] = executor.execute([Piece(0, feed, position, blocks, sample=True)])
            assert token is not None
            position, feed = position + len(feed), [token]
            made.append(token)
            if token == 0:
                break
        return made

    return tokens


@pytest.fixture(scope="session")
def llama_cpp(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """The address of llama.cpp's server with a vocabulary, one for all tests: 4 slots of 2,048 tokens."""
    pytest.importorskip("xllamacpp")
    started: dict[str, str] = {}
    with contextlib.ExitStack() as stack:

        def address(kind: str) -> str:
            if kind not in started:
                log = tmp_path_factory.mktemp("llama-cpp") / "log"
                script, model = HERE / "llama_cpp_server.py", tiny(kind) / "model.gguf"
                command = [sys.executable, script, model, f"tiny-{kind}", "4", "2048"]
                started[kind] = first_line(stack.enter_context(running(command, log)), log)
            return started[kind]

        yield address
