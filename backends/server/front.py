"""The HTTP side of `bench serve`: routes, limits, and the life of a request from its bytes to its record."""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
import uuid
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.typedefs import Handler

from backends.server import answers, fields, metrics
from backends.server.answers import Fault
from backends.server.fields import Refused
from backends.server.metrics import AnswerRecord, TruthLog
from backends.server.service import Listener, Service
from harness.errors import BackendError
from harness.version import __version__

T = TypeVar("T")
STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
RETRY_AFTER_S = 1.0
LONG_BYTES = 1 << 16
_ID_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `bench serve`. `port` 0 takes a free one; `log` is the file of true send times; a body must have come
    within `body_s`.

    `max_queue` requests may wait in the service; one more is refused with 429. None: any number.
    """

    backend: str = "engine"
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    log: Path | None = None
    grace_s: float = 10.0
    max_queue: int | None = None
    max_body_bytes: int = 2**24
    body_s: float = 60.0
    faults: tuple[str, ...] = ()
    api_key: str | None = None


@dataclass(slots=True)
class Front:
    """A server in front of one service. `names` are the models it answers to, the first one as its own name.

    `hosts` are the names that a request may call the server by, None: any; where they are given, pages of other sites
    may not post either.
    """

    service: Service
    truth: TruthLog
    names: Sequence[str]
    options: Options
    hosts: Container[str] | None
    faults: Callable[[], tuple[Fault, ...]]
    """Those of the next request for tokens."""
    metrics: metrics.Metrics = field(default_factory=metrics.Metrics)
    draining: bool = False
    open: int = 0
    served: set[web.RequestHandler] = field(default_factory=set)
    """Connections that have brought a request."""
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self._idle.set()

    def application(self) -> web.Application:
        """The routes of it all."""
        app = web.Application(middlewares=[self._with_error_body], client_max_size=self.options.max_body_bytes)
        app.router.add_post("/v1/chat/completions", partial(self._tokens, api="chat"))
        app.router.add_post("/v1/completions", partial(self._tokens, api="completions"))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/reset_prefix_cache", self._clear_cache)
        app.router.add_post("/flush_cache", self._clear_cache)
        return app

    async def idle(self) -> None:
        """Returns when no answer is under way."""
        await self._idle.wait()

    def count_steps(self) -> None:
        """Take the steps of the service into the metrics."""
        self.metrics.steps(self.service.steps())

    @web.middleware
    async def _with_error_body(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every refusal and every error leaves as OpenAI's error object."""
        self.served.add(request.protocol)
        try:
            self._check_origin(request)
            _check_coding(request)
            self._authorize(request)
            response = await handler(request)
        except Refused as refused:
            response = _error(refused.status, str(refused), refused.param, refused.code)
            response.headers.update(refused.headers)
        except web.HTTPRequestEntityTooLarge:
            message = f"The body has more than {self.options.max_body_bytes} bytes (see --max-body)."
            response = _error(413, message, code="request_too_large")
        except web.HTTPException as error:
            response = _error(error.status, f"{request.method} {request.path}: {error.reason}.")
            response.headers.update({k: v for k, v in error.headers.items() if k == "Allow"})
        if not response.prepared:
            response.headers["Server"] = f"bench/{__version__}"
            response.headers.setdefault("X-Request-Id", _given_id(request) or _new_id())
        return response

    def _check_origin(self, request: web.Request) -> None:
        """A page in a browser must not reach a server that is there for this machine alone."""
        if self.hosts is None:
            return
        host = request.headers.get("Host")  # HTTP/1.0 has none, and no browser
        if host is not None and _host_name(f"//{host}") not in self.hosts:
            message = f"This server is not '{host}'; to serve other names, listen with --host 0.0.0.0."
            raise Refused(403, message, code="wrong_host")
        origin = request.headers.get("Origin")
        if request.method == "POST" and origin is not None and _host_name(origin) not in self.hosts:
            raise Refused(403, f"Pages of '{origin}' may not use this server.", code="cross_site")

    def _authorize(self, request: web.Request) -> None:
        if self.options.api_key is None or request.path == "/health":
            return
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")  # any case: RFC 9110, 11.1
        right = hmac.compare_digest(key.strip(" ").encode("utf-8", "surrogateescape"), self.options.api_key.encode())
        if scheme.lower() != "bearer" or not right:
            raise Refused(401, "The API key is missing or wrong.", code="invalid_api_key")

    async def _tokens(self, request: web.Request, api: fields.Api) -> web.StreamResponse:
        """One request for tokens; its outcome is in the log."""
        received_s = time.monotonic()
        client_id = _given_id(request)
        prefix = "chatcmpl-" if api == "chat" else "cmpl-"
        record = AnswerRecord(prefix + (client_id or _new_id()), client_id, api, False, received_s)
        faults = self.faults()
        record.faults = tuple(fault.text for fault in faults)
        self.open += 1
        self._idle.clear()
        try:
            return await self._answer(request, api, record, faults)
        except Refused as refused:
            record.status, record.error = refused.status, str(refused)
            raise
        except web.HTTPException as error:
            record.status, record.error = error.status, error.reason
            raise
        finally:
            self.open -= 1
            if not self.open:
                self._idle.set()
            record.ended_s = time.monotonic()
            self.truth.ended(record)

    async def _answer(
        self, request: web.Request, api: fields.Api, record: AnswerRecord, faults: Sequence[Fault]
    ) -> web.StreamResponse:
        self._admit()
        await self._fail_first(request, faults)
        ask = await _aside(await self._body(request, record), partial(self._ask, api))
        record.prompt_tokens, record.stream = len(ask.prompt), ask.stream
        outcome = answers.AnswerLog(ask, record, self.metrics)
        if ask.stream:
            return await self._streamed(request, outcome, faults)
        return await self._whole(request, outcome, faults)

    def _parsed(self, body: bytes) -> dict[str, object]:
        parsed = fields.parse(body)
        fields.check_model(parsed, self.names)
        return parsed

    def _ask(self, api: fields.Api, body: bytes) -> fields.GenerationRequest:
        return fields.ask(api, self._parsed(body), self.service.tokenizer, self.service.max_model_len)

    def _admit(self) -> None:
        headers = {"Retry-After": str(math.ceil(RETRY_AFTER_S))}
        if self.draining:
            raise Refused(503, "The server is shutting down.", code="shutting_down", headers=headers)
        if self.options.max_queue is not None and self.service.stats().waiting >= self.options.max_queue:
            message = f"The queue is full: {self.options.max_queue} requests wait."
            raise Refused(429, message, code="queue_full", headers=headers)

    async def _fail_first(self, request: web.Request, faults: Sequence[Fault]) -> None:
        """The faults that come before anything of the answer."""
        for fault in faults:
            if fault.kind == "429":
                headers = {"Retry-After": str(math.ceil(fault.retry_after_s))}
                raise Refused(429, "Refused on purpose (--fault).", code="fault", headers=headers)
            if fault.kind == "reset" and fault.token == 0:
                answers.reset(_transport(request))
                await asyncio.get_running_loop().create_future()  # until the client's end cancels this task

    async def _streamed(
        self, request: web.Request, outcome: answers.AnswerLog, faults: Sequence[Fault]
    ) -> web.StreamResponse:
        record = outcome.record
        response = web.StreamResponse(headers=self._headers(STREAM_HEADERS, record))
        created, name, api = int(time.time()), self.names[0], outcome.ask.api
        transport = _transport(request)
        framed = request.version >= (1, 1)
        if not framed:
            response.force_close()  # without chunks only the end of the connection tells the end of the answer
        done = asyncio.get_running_loop().create_future()
        each = [
            answers.StreamedAnswer(
                outcome, self.service.tokenizer, done,
                answers.Chunks(api, record.id, created, name, record.prompt_tokens, index), transport, framed,
            )
            for index in range(outcome.ask.n)
        ]  # fmt: skip
        await self._run(request, outcome, each, faults, head=response)
        await response.write_eof()
        return response

    async def _whole(
        self, request: web.Request, outcome: answers.AnswerLog, faults: Sequence[Fault]
    ) -> web.StreamResponse:
        record = outcome.record
        done = asyncio.get_running_loop().create_future()
        each = [answers.CompleteAnswer(outcome, self.service.tokenizer, done) for _ in range(outcome.ask.n)]
        await self._run(request, outcome, each, faults)
        if record.finish_reason == "error":
            raise Refused(500, record.error or "The backend failed.")
        content = answers.whole(outcome.ask, record, int(time.time()), self.names[0], each)
        text = json.dumps(content, ensure_ascii=False)
        headers = self._headers({"Content-Type": "application/json"}, record)
        record.status = 200
        return web.Response(body=text.encode(), headers=headers)

    async def _run(
        self,
        request: web.Request,
        outcome: answers.AnswerLog,
        each: Sequence[answers.StreamedAnswer | answers.CompleteAnswer],
        faults: Sequence[Fault],
        head: web.StreamResponse | None = None,
    ) -> None:
        """Give the request to the service, once for each answer, and wait for the last token, or for the client to
        hang up.

        Source of the fan-out: vllm-project/vllm, `vllm/v1/engine/parallel_sampling.py` (seeds count up, too).
        """
        listeners: Sequence[Listener] = each
        troubles: Sequence[answers.FaultyAnswer] = ()
        if faults:
            listeners = troubles = [
                answers.FaultyAnswer(answer, faults, lambda: answers.reset(_transport(request))) for answer in each
            ]
        sampling, tickets = outcome.ask.sampling, []
        try:
            for number, listener in enumerate(listeners):
                seeded = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + number)
                tickets.append(self.service.submit(outcome.ask.prompt, seeded, listener, outcome.record.read_s))
        except ValueError as error:
            raise Refused(400, str(error), code="context_length_exceeded") from None
        except BackendError as error:
            raise Refused(500, str(error), code="backend_failed") from None
        outcome.ticket = tickets[0]
        outcome.record.submitted_s = time.monotonic()
        try:
            if head is not None:
                writer = await head.prepare(request)  # the head leaves at once
                assert isinstance(writer, StreamWriter)
                writer.chunked = False  # the answer frames its chunks itself, and aiohttp adds nothing
                outcome.record.status = head.status
            await each[0].done
        finally:
            # Also where the client hangs up, which cancels this task wherever it waits; after the end it does nothing.
            for ticket in tickets:
                ticket.abort()
            for trouble in troubles:
                trouble.stop()
            outcome.record.output_tokens = outcome.made
            outcome.close()

    def _headers(self, own: dict[str, str], record: AnswerRecord) -> dict[str, str]:
        plain_id = record.x_request_id or record.id.split("-", 1)[1]
        return own | {"X-Request-Id": plain_id, "Server": f"bench/{__version__}"}

    async def _models(self, request: web.Request) -> web.Response:
        """The list of models, which holds the first name only, or the entry of the name in the path."""
        name = request.match_info.get("name", self.names[0])
        fields.check_model({"model": name}, self.names)
        entry = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "bench",
            "root": self.service.model,
            "parent": None,
            "max_model_len": self.service.max_model_len,
        }
        return web.json_response(entry if "name" in request.match_info else {"object": "list", "data": [entry]})

    async def _health(self, _: web.Request) -> web.Response:
        stats = self.service.stats()
        return web.Response(status=200 if stats.failure is None and stats.up else 503)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    async def _metrics(self, _: web.Request) -> web.Response:
        self.count_steps()
        page = self.metrics.text(self.names[0], self.service.stats(), self.truth.lateness)
        return web.Response(body=page.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _tokenize(self, request: web.Request) -> web.Response:
        limit = self.service.max_model_len

        def tokenized(body: bytes) -> list[int]:
            parsed = self._parsed(body)
            read = fields.chat_prompt if "messages" in parsed else fields.text_prompt
            return read(parsed, self.service.tokenizer, limit)

        tokens = await _aside(await self._body(request), tokenized)
        return web.json_response({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})

    async def _clear_cache(self, _: web.Request) -> web.Response:
        self.service.clear_cache()
        return web.Response()

    async def _body(self, request: web.Request, record: AnswerRecord | None = None) -> bytes:
        """The body; `record` learns when all of it had come."""
        try:
            async with asyncio.timeout(self.options.body_s):
                body = await request.read()
        except TimeoutError:
            message = f"The body did not come within {self.options.body_s:g} s."
            raise Refused(408, message, code="request_timeout", headers={"Connection": "close"}) from None
        except web.RequestPayloadError as error:
            text = " ".join(str(error).split())
            raise Refused(400, f"The body cannot be read: {text}", code="invalid_body") from None
        if record is not None:
            record.read_s = time.monotonic()
        return body


async def _aside(body: bytes, read: Callable[[bytes], T]) -> T:
    """What `read` makes of a body: of a long one in a thread, so that the tokens of other answers leave in time."""
    return await asyncio.to_thread(read, body) if len(body) > LONG_BYTES else read(body)


def _host_name(url: str) -> str | None:
    """The host of an address, without its port; None where there is none."""
    try:
        return urlsplit(url).hostname
    except ValueError:  # no address at all
        return None


def _check_coding(request: web.Request) -> None:
    """aiohttp reads 'gzip, chunked' as if it were 'chunked'; a proxy may not."""
    if request.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
        raise Refused(501, "The only transfer coding is 'chunked'.", headers={"Connection": "close"})


def _transport(request: web.Request) -> asyncio.Transport:
    if request.transport is None:  # the client has gone while we read its request
        raise ConnectionResetError
    return request.transport


def _given_id(request: web.Request) -> str | None:
    """The client's own name for its request, where it is one that can be repeated."""
    name = request.headers.get("X-Request-Id", "")
    return name if name and len(name) <= _ID_CHARACTERS and name.isascii() and name.isprintable() else None


def _new_id() -> str:
    return uuid.uuid4().hex


def _error(status: int, message: str, param: str | None = None, code: str | None = None) -> web.Response:
    text = fields.body(status, message, param, code)
    return web.Response(status=status, body=text.encode(), headers={"Content-Type": "application/json"})
