"""Runs a server until a signal ends it: start, ready line, drain, lateness of its tokens."""

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from backends.client.target import allow_open_files
from backends.server.answers import in_turn, parse_fault
from backends.server.front import Front, Options
from backends.server.metrics import TruthLog, lateness_line
from backends.server.service import Service
from harness import termination
from harness.errors import BackendError, UsageError, no_such
from harness.spec import Spec, parse
from harness.timer import WaitingLoop

SERVICES = ("engine", "null", "sim")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  to warn of it
KEEP_ALIVE_S = 75.0
"""A connection without a request, or with half of a head, is closed after this."""
LINGERING_S = 2.0
"""The rest of a refused body is read this long, so that the client sees the answer."""
GARBAGE_S = 600.0
CONNECTIONS = 1 << 20
"""The limit on open files that is requested: a connection is one."""
NOT_OURS = (HttpProcessingError, web.RequestPayloadError, ConnectionResetError)
_HOUSEKEEPING_S = 1.0
_SWITCH_S = 0.0005  # a turn of a thread, as of one that reads a long prompt
_LOGGER = logging.getLogger(__name__)
# only for internal errors: input that is not HTTP got its 400, and a client that has gone needs no answer
_LOGGER.addFilter(lambda row: not (row.exc_info and isinstance(row.exc_info[1], NOT_OURS)))


def make_service(text: str) -> Service:
    """The service of a backend's spec; raises UsageError."""
    spec = parse(text)
    if spec.name not in SERVICES:
        raise no_such("backend to serve", spec.name, SERVICES)
    make = cast("Callable[[Spec], Service]", importlib.import_module(f"backends.server.{spec.name}_service").make)
    return make(spec)


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers: `url` is what an OpenAI client takes as its base."""

    front: Front
    url: str
    port: int


@contextlib.asynccontextmanager
async def serving(options: Options, service: Service | None = None) -> AsyncIterator[Running]:
    """A server in this event loop, from its first answer to its last. Raises UsageError or BackendError.

    It stands before `service`, or before a new one of `options.backend`. At the end running answers may
    finish within `grace_s`; then connections are cut.
    """
    faults = in_turn([parse_fault(text) for text in options.faults])
    service = make_service(options.backend) if service is None else service
    file = options.log.open("w", encoding="utf-8") if options.log is not None else None
    truth = None
    try:
        await service.start()
        names = list(dict.fromkeys([options.name or service.model, service.model]))
        truth = TruthLog(file, {**service.describe(), "model": service.model, "names": names, "faults": options.faults})
        hosts = LOOPBACK if options.host in LOOPBACK else None
        front = Front(service, truth, names, options, hosts, faults)
        async with _listening(front, options) as running:
            yield running
    finally:
        await service.close()
        if truth is not None:
            truth.close()
        elif file is not None:
            file.close()


@contextlib.asynccontextmanager
async def _listening(front: Front, options: Options) -> AsyncIterator[Running]:
    runner = web.AppRunner(
        front.application(),
        access_log=None,
        logger=_LOGGER,
        handle_signals=False,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_S,
        lingering_time=LINGERING_S,
        shutdown_timeout=0.1,
    )
    await runner.setup()
    site = web.TCPSite(runner, options.host, options.port, backlog=4096)
    counting = asyncio.create_task(_keep_house(front, runner))
    try:
        try:
            await site.start()
        except OSError as error:
            raise UsageError(f"{options.host}:{options.port} cannot be listened on: {error.strerror}.") from None
        port = runner.addresses[0][1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        yield Running(front, f"http://{host}:{port}/v1", port)
        front.draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(front.idle(), options.grace_s)
    finally:
        counting.cancel()
        await runner.cleanup()


async def _keep_house(front: Front, runner: web.AppRunner) -> None:
    """Count steps, which would pile up if /metrics is not scraped, and close connections that bring no request; aiohttp
    does that only after the first one."""
    opened_s: dict[web.RequestHandler, float] = {}  # the others
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        front.count_steps()
        now_s = time.monotonic()
        connections = runner.server.connections if runner.server is not None else []
        front.served.intersection_update(connections)
        opened_s = {handler: opened_s.get(handler, now_s) for handler in connections if handler not in front.served}
        for handler, since_s in opened_s.items():
            if now_s - since_s > KEEP_ALIVE_S:
                handler.force_close()


def serve(options: Options, say: Callable[[str], None], ready: Callable[[Running], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; a second one ends the grace. `say` gets notes for the user.

    Raises BackendError when what computes the answers has died.
    """
    with asyncio.Runner(loop_factory=WaitingLoop) as runner:
        runner.run(_serve(options, say, ready))


async def _serve(options: Options, say: Callable[[str], None], ready: Callable[[Running], None]) -> None:
    with contextlib.suppress(ValueError, OSError):  # not every platform lets its limits be raised
        allow_open_files(CONNECTIONS)
    sys.setswitchinterval(_SWITCH_S)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signals = 0

    def end() -> None:
        nonlocal signals
        signals += 1
        ended.set()
        if signals > 1:
            task.cancel()

    for number in (signal.SIGINT, *termination.ENDING):
        loop.add_signal_handler(number, end)
    running: Running | None = None
    try:
        async with serving(options) as running:
            ready(running)
            if options.host in EVERYWHERE and options.api_key is None:
                say("Anyone who reaches this machine can use the server; --api-key-env asks for a key.")
            tidy = asyncio.create_task(_tidy(running.front, ended))
            await ended.wait()
            tidy.cancel()
            pending = running.front.open
            if pending:
                say(f"Ending: {pending} answers may finish within {options.grace_s:g} s; Ctrl-C again ends them now.")
    except asyncio.CancelledError:
        if signals < 2:
            raise
    if running is not None:
        say(lateness_line(running.front.truth.lateness))
        if (failure := running.front.service.stats().failure) is not None:
            raise BackendError(failure)


async def _tidy(front: Front, ended: asyncio.Event) -> None:
    """Collect garbage when no answer is in flight, and at least every ten minutes; end when the service has died.

    All streams stand still meanwhile (40 ms with 1,000 of them); only closed connections leave cycles, some 3 kB each.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    last_s = time.monotonic()
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        if not front.open or time.monotonic() - last_s > GARBAGE_S:
            gc.collect()
            last_s = time.monotonic()
        if front.service.stats().failure is not None:
            ended.set()  # it has nothing to give any more
