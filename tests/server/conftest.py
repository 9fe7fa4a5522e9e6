"""Set-up that tests of the server share: a service whose tokens the test tells itself, and clients of bytes."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from backends.server.front import Options
from backends.server.run import Running, serving
from backends.server.service import EndReason, Listener, Sampling, Stats, Ticket, Tokenizer
from backends.server.tokenizer import Builtin
from harness.api import Step
from harness.errors import BackendError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for modules of this folder

Play = Callable[..., AbstractAsyncContextManager["Stage"]]


@dataclass(slots=True)
class Submitted:
    """One request as the service got it."""

    token_ids: Sequence[int]
    sampling: Sampling
    listener: Listener
    received_s: float | None = None
    ticket: Ticket | None = None
    aborted: bool = False

    def tell(self, *token_ids: int, end: EndReason | None = None, error: str = "") -> None:
        """These tokens are ready now."""
        now_s = time.monotonic()
        self.listener.step(token_ids, now_s, now_s, end, error)


@dataclass(slots=True)
class ByHand:
    """A service that does nothing until the test tells a token."""

    model: str = "by-hand"
    max_model_len: int = 100
    tokenizer: Tokenizer = field(default_factory=lambda: Builtin(512))
    submitted: list[Submitted] = field(default_factory=list)
    waiting: int = 0
    cached_tokens: int = 0
    cleared: int = 0
    refuses: Exception | None = None
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _aborted: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None: ...

    def submit(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        listener: Listener,
        received_s: float | None = None,
    ) -> Ticket:
        if self.refuses is not None:
            raise self.refuses
        submitted = Submitted(token_ids, sampling, listener, received_s)
        submitted.ticket = Ticket(lambda: self._abort(submitted), time.monotonic(), self.cached_tokens)
        self.submitted.append(submitted)
        self._arrived.set()
        return submitted.ticket

    async def next(self, count: int = 1) -> Submitted:
        """The `count`-th request, as soon as it has come."""
        while len(self.submitted) < count:
            self._arrived.clear()
            await self._arrived.wait()
        return self.submitted[count - 1]

    async def abort_of(self, submitted: Submitted) -> None:
        """Returns when this request has been aborted."""
        while not submitted.aborted:
            self._aborted.clear()
            await self._aborted.wait()

    def _abort(self, submitted: Submitted) -> None:
        submitted.aborted = True
        self._aborted.set()

    def stats(self) -> Stats:
        failure = str(self.refuses) if isinstance(self.refuses, BackendError) else None
        return Stats(running=len(self.submitted), waiting=self.waiting, kv_usage=0.25, preemptions=3, failure=failure)

    def steps(self) -> Sequence[Step]:
        return (Step(0, 0.0, 0.1, 20, 4, 0, 0, 0, 0),)

    def clear_cache(self) -> None:
        self.cleared += 1

    def describe(self) -> Mapping[str, object]:
        return {"backend": "by hand"}

    async def close(self) -> None: ...


@dataclass(slots=True)
class Stage:
    """A server that runs, and a client in front of it."""

    running: Running
    http: aiohttp.ClientSession
    service: ByHand

    @property
    def root(self) -> str:
        return self.running.url.removesuffix("/v1")

    async def post(self, path: str, fields: object, **headers: str) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and text of the answer to a JSON body."""
        async with self.http.post(self.root + path, json=fields, headers=headers) as answer:
            return answer.status, answer.headers, await answer.text()

    async def get(self, path: str, **headers: str) -> tuple[int, Mapping[str, str], str]:
        """The same of a GET."""
        async with self.http.get(self.root + path, headers=headers) as answer:
            return answer.status, answer.headers, await answer.text()

    async def stream(self, path: str, fields: Mapping[str, object]) -> list[object]:
        """The events of a stream: objects, and texts where they are none."""
        _, _, text = await self.post(path, {**fields, "stream": True})
        return events(text)

    async def raw(self, path: str, fields: Mapping[str, object], version: str = "1.1") -> tuple[bytes, bool]:
        """All bytes until the server closes or resets, and whether it reset."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        writer.write(request_bytes(path, fields, version))
        data, reset = b"", False
        try:
            while piece := await reader.read(65536):
                data += piece
        except ConnectionResetError:
            reset = True
        finally:
            writer.transport.abort()
        return data, reset


def request_bytes(path: str, fields: Mapping[str, object], version: str = "1.1") -> bytes:
    """A request that asks for the connection to be closed after its answer."""
    body = json.dumps(fields).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def events(text: str) -> list[object]:
    """What stands behind `data:` in each event."""
    assert text.endswith("\n\n")
    lines = [event.removeprefix("data: ") for event in text[:-2].split("\n\n")]
    return [json.loads(line) if line.startswith("{") and line.endswith("}") else line for line in lines]


@pytest.fixture
def play() -> Play:
    """`async with play(service, **options) as stage`: a server that runs; null without a service."""

    @asynccontextmanager
    async def start(service: ByHand | None = None, **options: object) -> AsyncIterator[Stage]:
        timeout = aiohttp.ClientTimeout(total=120)
        async with (
            serving(Options(**{"backend": "null", "port": 0, **options}), service) as running,  # type: ignore[arg-type]  # as the test names them
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as http,
        ):
            yield Stage(running, http, service or ByHand())

    return start


@pytest.fixture
def by_hand() -> Callable[..., ByHand]:
    """Makes a service whose tokens the test tells itself."""
    return ByHand


@pytest.fixture
def wire_request() -> Callable[..., bytes]:
    """Makes the bytes of a request."""
    return request_bytes
