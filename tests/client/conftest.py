"""A server that answers byte for byte as scripted, and a client that reads its answers."""

import asyncio
import importlib.util
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.api import Ended, Request, TokenEvent


def _helper(name: str) -> ModuleType:
    """A module beside this one; the tests are no package."""
    known = f"bench_tests{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


_script = _helper("_script")
_server = _helper("_scripted_server")
_helper("_quirks")


@dataclass(frozen=True, slots=True)
class Words:
    """A content of plain words, one token each for the scripted server."""

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        return np.arange(request.id, request.id + request.prompt_tokens, dtype=np.int64) % vocab_size

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  # of the protocol
        return " ".join(f"w{request.id}x{i}" for i in range(request.prompt_tokens))


@dataclass(slots=True)
class Outcome:
    """What the client made of one request: its token events, its end, and what the server saw of all of them."""

    events: list[TokenEvent]
    ended: Ended
    seen: list = field(default_factory=list)
    epoch_s: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(e.tokens for e in self.events)

    @property
    def stamps_s(self) -> list[float]:
        """Of the monotonic clock, to hold against what the server wrote when."""
        return [e.at_s + self.epoch_s for e in self.events]


@pytest.fixture(scope="session")
def script() -> ModuleType:
    """`script.Script(...)`, `script.answer(...)`, `script.expected(...)`: what is played, and what is owed for it."""
    return _script


@pytest.fixture
def scripted() -> Iterator[Callable]:
    """`scripted(name={...}, ...)` starts a server that plays scripts of these fields under these names.

    A list of such fields under a name gives request i the script at place i, in turn.
    """
    started = []

    def start(tls: ssl.SSLContext | None = None, hold: bool = False, /, **scripts: dict):
        made = {
            name: [_script.Script(**f) for f in fields] if isinstance(fields, list) else _script.Script(**fields)
            for name, fields in scripts.items()
        }
        server = _server.ScriptedServer(made or {"calm": _script.Script()}, tls, hold)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


async def _one(backend: object, request: Request) -> tuple[list[TokenEvent], Ended]:
    events: list[TokenEvent] = []
    async for event in backend.submit(request):
        if isinstance(event, Ended):
            return events, event
        events.append(event)
    raise AssertionError("the answer ended without an Ended")


@pytest.fixture
def opened() -> Callable:
    """`async with opened(url, **options) as backend`: the client, open and with a running clock."""
    from contextlib import asynccontextmanager

    from backends.openai import OpenAI

    @asynccontextmanager
    async def make(url: str, **options: object):
        options = {"model": "m", "warm": 0} | options
        backend = OpenAI(url=url, **options)
        try:
            await backend.open(Words())
            backend.start_clock(time.monotonic())
            await backend.connect(0, 1.0, 8.0)
            yield backend
        finally:
            await backend.close()

    return make


@pytest.fixture
def ask(opened: Callable) -> Callable:
    """`await ask(server, name, requests=1, output_tokens=8, **options)`: outcomes of requests sent one by one.

    Whatever hangs fails.
    """

    async def run(
        server, name: str, requests: int = 1, output_tokens: int = 8, at_once: bool = False, **options: object
    ):
        async with asyncio.timeout(120), opened(server.url(name), **options) as backend:
            epoch_s = time.monotonic()
            backend.start_clock(epoch_s)
            server.arm(name)
            wanted = [Request(i, 0.0, 5, output_tokens) for i in range(requests)]
            if at_once:
                ends = await asyncio.gather(*(_one(backend, r) for r in wanted))
            else:
                ends = [await _one(backend, r) for r in wanted]
            outcomes = [Outcome(events, ended, epoch_s=epoch_s) for events, ended in ends]
        for outcome in outcomes:
            outcome.seen = server.of(name)
        return outcomes

    return run


@pytest.fixture
def run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], late_is_valid: None
) -> Callable:
    """`run_here(*arguments, **environment)`: `bench` in this process and an empty folder; (exit code, out, err)."""
    from harness.cli import main

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        for name, value in ({"COLUMNS": "100"} | environment).items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        code = main(list(arguments))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err, err
        return code, out, err

    return run
