"""Transports between a driver and a backend: answers are read token by token, or deferred to another process."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

from harness.api import Backend, Ended, Remote, Request, RequestRecord, Status, Step, TokenEvent
from harness.data.dependencies import record_of
from harness.errors import BackendError

NO_END = "the backend never reported how this request ended"


class StreamingTransport:
    """Reads each token when it comes (`harness.api.Backend.submit`)."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._epoch_s = 0.0
        self._tasks: dict[int, asyncio.Task[object]] = {}
        self._cuts: dict[int, tuple[Status, str]] = {}
        self.failure: str | None = None

    def start(self, epoch_s: float) -> None:
        self._epoch_s = epoch_s
        self._backend.start_clock(epoch_s)

    def prepare(self, request: Request) -> None:
        """Nothing to prepare."""

    async def carry(self, request: Request, sent_s: float) -> RequestRecord:
        """Submit one request, collect its tokens and return its record, whatever happens."""
        token_s, token_n = array("d"), array("i")
        ended: Ended | None = None
        self._tasks[request.id] = cast("asyncio.Task[object]", asyncio.current_task())
        try:
            await self._not_cut_yet(request)
            # The contract says that closing the iterator cancels the request, so it can be closed.
            coming = cast("AsyncGenerator[TokenEvent | Ended, None]", self._backend.submit(request))
            async with aclosing(coming) as events:
                async for event in events:
                    if isinstance(event, Ended):
                        ended = event
                        break
                    token_s.append(event.at_s)
                    token_n.append(event.tokens)
        except asyncio.CancelledError:
            status, why = self._cuts.pop(request.id, ("cancelled", "the run was stopped"))
            ended = Ended(request.id, self._now_s(), status, error=why)
        except BackendError as error:
            ended = self._failed(request, str(error))
        except MemoryError:  # is this process's, and no failure of the backend
            raise
        except Exception as error:  # noqa: BLE001  # whatever a backend throws must leave a row and stop the run
            ended = self._failed(request, f"{type(error).__name__}: {error}")
        finally:
            del self._tasks[request.id]
        if ended is None:
            ended = Ended(request.id, self._now_s(), "error", error=NO_END)
        return record_of(request, ended, sent_s, token_s, token_n)

    def record(self, request: Request, sent_s: float, record: object) -> RequestRecord:  # noqa: ARG002
        """Give what `carry` gave."""
        return cast("RequestRecord", record)

    def cut(self, request: Request, status: Status, why: str) -> None:
        """Close the iterator of a request."""
        self._cuts[request.id] = status, why
        if request.id in self._tasks:
            self._tasks[request.id].cancel()

    def steps(self) -> Sequence[Step]:
        return self._backend.steps()

    async def _not_cut_yet(self, request: Request) -> None:
        if request.id in self._cuts:
            raise asyncio.CancelledError

    def _failed(self, request: Request, message: str) -> Ended:
        self.failure = self.failure or message
        return Ended(request.id, self._now_s(), "error", error=message)

    def _now_s(self) -> float:
        return time.monotonic() - self._epoch_s


class DeferredTransport:
    """Receives answers as bytes and stamps, which another process reads (`harness.api.Remote.fetch`).

    `pass_on` gets them all. Those to the requests in `waited` are read here too, at once, because others leave when
    they have ended.
    """

    def __init__(self, backend: Remote, waited: frozenset[int], pass_on: Callable[[Request, object], None]) -> None:
        self._backend = backend
        self._waited = waited
        self._pass_on = pass_on
        self.failure: str | None = None

    def start(self, epoch_s: float) -> None:
        self._backend.start_clock(epoch_s)

    def prepare(self, request: Request) -> None:
        self._backend.prepare(request)

    def carry(self, request: Request, sent_s: float) -> Awaitable[object]:  # noqa: ARG002
        """Send, and keep what comes."""
        return self._backend.fetch(request)

    def record(self, request: Request, sent_s: float, answer: object) -> RequestRecord | None:
        """Pass on what came."""
        self._pass_on(request, answer)
        return read(self._backend, request, answer, sent_s) if request.id in self._waited else None

    def cut(self, request: Request, status: Status, why: str) -> None:
        """Close the connection of the request."""
        self._backend.hang_up(request.id, status, why)

    def steps(self) -> Sequence[Step]:
        """None: a remote endpoint does not report its steps."""
        return ()


def read(backend: Remote, request: Request, answer: object, sent_s: float | None = None) -> RequestRecord:
    """The record of an answer that was kept unread. A bug that it meets ends this request and no other."""
    token_s, token_n = array("d"), array("i")
    ended: Ended | None = None
    try:
        for event in backend.read(request, answer):
            if isinstance(event, Ended):
                ended = event
                break
            token_s.append(event.at_s)
            token_n.append(event.tokens)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a server sent must leave a row
        why = backend.redact(f"{type(error).__name__}: {error}")
        ended = Ended(request.id, request.scheduled_s, "error", error=f"the answer could not be read: {why}"[:300])
    if ended is None:
        ended = Ended(request.id, request.scheduled_s, "error", error=NO_END)
    return record_of(request, ended, sent_s, token_s, token_n)
