"""Plain conversations with a server before and after the run, over aiohttp. Nothing here is measured."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from backends.client import counting, framing, message
from backends.client.capabilities import Sent
from backends.client.framing import Stream
from backends.client.secrets import FOREIGN_MOST, Redaction
from backends.client.target import likely_url
from harness.api import Request
from harness.errors import BackendError

if TYPE_CHECKING:
    from backends.client.body import Builder

EARLY_S = 0.005
"""A role chunk that precedes the first token by more is called early."""
MOST_BYTES = 1 << 24


@dataclass(slots=True)
class ProbeResponse:
    """An answer outside the run. `events` token events; `early` whether a chunk without text came well before them.

    `status` is 0 where the server took the connection and broke it off; `words` then say how.
    """

    status: int
    headers: Mapping[str, str]
    stream: Stream = field(default_factory=Stream)
    words: str = ""
    events: int = 0
    streamed: bool = False
    early: bool = False
    cut: bool = False

    @property
    def tokens(self) -> int | None:
        """Completion tokens by the server's own count."""
        return message.whole(self.stream.usage.get("completion_tokens"))

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens by the server's own count."""
        return message.whole(self.stream.usage.get("prompt_tokens"))


class ControlClient:
    """Requests outside the measurement, all of them listed in `sent`. A failed connection raises a BackendError."""

    __slots__ = ("_key", "_proxy", "_redaction", "_session", "_ssl", "_timeout_s", "sent", "url")

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        redaction: Redaction | None = None,
        ssl: ssl.SSLContext | bool = True,
        proxy: str | None = None,
        timeout_s: float = 600.0,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.url = url.rstrip("/")
        self.sent: list[Sent] = []
        self._key, self._ssl, self._proxy, self._timeout_s = key, ssl, proxy, timeout_s
        self._redaction = redaction or Redaction((key,) if key else ())
        ours = {"Authorization": f"Bearer {key}"} if key else {}
        named = {name.lower() for name, _ in headers}
        self._session = aiohttp.ClientSession(
            headers=[(n, v) for n, v in ours.items() if n.lower() not in named] + list(headers),
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=10.0),
            connector=aiohttp.TCPConnector(ssl=ssl, force_close=True),
        )

    def __repr__(self) -> str:
        return f"<ControlClient of {self._redaction.url(self.url)}>"

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def at(self, path: str) -> str:
        """The address of a path below the base; a query of the base stays."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path.rstrip("/") + path).geturl()

    def beside(self, path: str) -> str:
        """The same for a path that stands beside `/v1`."""
        parts = urlsplit(self.url)
        return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1") + path).geturl()

    @property
    def hint(self) -> str:
        """What is probably wrong with the URL, and which one to try; empty for a plausible URL."""
        likely = likely_url(self.url)
        if likely is None:
            return ""
        return f"the URL should end in /v1, without the route; try url={self._redaction.url(likely)}"

    async def get(self, url: str, purpose: str) -> tuple[int, object]:
        """Status and JSON (None if it is none)."""
        return await self._simple("GET", url, purpose)

    async def post(self, url: str, value: Mapping[str, object], purpose: str) -> tuple[int, object]:
        """Status and JSON of a small question."""
        return await self._simple("POST", url, purpose, value)

    async def _simple(
        self, method: str, url: str, purpose: str, value: Mapping[str, object] | None = None
    ) -> tuple[int, object]:
        try:
            async with self._session.request(
                method, url, json=value, proxy=self._proxy, allow_redirects=False
            ) as answer:
                self.sent.append(Sent(purpose, answer.status))
                return answer.status, _json(await _whole(answer))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error, f"{method} {urlsplit(url).path}") from None

    async def ask(self, builder: Builder, request: Request, path: str, purpose: str) -> ProbeResponse:
        """Send a request as it is sent in the run; close the connection when far more tokens come than requested.

        Raises ValueError for a prompt that the content cannot make.
        """
        most, body = 4 * request.output_tokens + 16, builder.body(request)
        try:
            async with self._session.post(
                self.at(path),
                data=body,
                headers=builder.headers(request),
                proxy=self._proxy,
                allow_redirects=False,
            ) as answer:
                self.sent.append(Sent(purpose, answer.status))
                return await self._hear(answer, most)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if _refused(error) or isinstance(error, TimeoutError):
                raise self._failed(error, f"POST {urlsplit(self.at(path)).path}") from None
            self.sent.append(Sent(purpose, 0))
            return ProbeResponse(0, {}, words=_words(error))

    async def _hear(self, answer: aiohttp.ClientResponse, most_events: int) -> ProbeResponse:
        data, ends, at_s, cut = bytearray(), [], [], False
        try:
            async for piece in answer.content.iter_any():
                at_s.append(time.monotonic())
                data += piece
                ends.append(len(data))
                if data.count(b"data:") > most_events or len(data) > MOST_BYTES:
                    cut = True
                    break
        except aiohttp.ClientPayloadError:
            cut = True
        response = ProbeResponse(answer.status, answer.headers, cut=cut)
        self._fill(response, bytes(data), list(zip(ends, at_s, strict=True)))
        return response

    def _fill(self, response: ProbeResponse, body: bytes, arrivals: list[tuple[int, float]]) -> None:
        response.streamed = body.lstrip().startswith((b"data:", b":", b"event:", b"id:"))
        if response.status == 200 and response.streamed:
            stream = response.stream = framing.follow(framing.events(body), whole=not response.cut)
            tokens = counting.count(stream).which
            response.events = len(tokens)
            if stream.fault is not None:
                response.words = self.shown(stream.fault)
            if tokens and stream.first_role is not None:
                gap_s = _arrival(arrivals, stream.end[tokens[0]]) - _arrival(arrivals, stream.first_role)
                response.early = gap_s > EARLY_S
            return
        found = _json(body)
        chunk = found if isinstance(found, dict) else {}
        words = message.error_text(chunk) or chunk.get("message") or chunk.get("detail")
        response.words = (
            self.shown(str(words or body[:FOREIGN_MOST].decode(errors="replace"))) if response.status != 200 else ""
        )
        if response.status == 200:
            framing.take(response.stream, chunk, len(body))
            response.stream.events = 1
            response.events = len(counting.count(response.stream).which)
            response.words = self.shown(message.error_text(chunk) or "")

    def shown(self, text: str) -> str:
        """A server's words in one line, without secrets; long enough to look for the name of a field in them."""
        return self._redaction.foreign(text, 300)

    def brief(self, text: str) -> str:
        """The same as it is shown in a message."""
        return self._redaction.foreign(text)

    def quoted(self, text: str) -> str:
        """The same in quotation marks."""
        return f"'{self.brief(text)}'"

    @property
    def where(self) -> str:
        """The address, without secrets."""
        return self._redaction.url(self.url)

    def _failed(self, error: BaseException, what: str) -> BackendError:
        where = self.where
        if isinstance(error, TimeoutError) and not _refused(error):
            return BackendError(f"The server at {where} gave no answer within {self._timeout_s:g} s to {what}.")
        if isinstance(error, aiohttp.ClientConnectorSSLError) and "WRONG_VERSION_NUMBER" in str(error):
            plain = where.replace("https://", "http://", 1)
            return BackendError(f"No TLS at {where}: this port speaks http: use http://, as in url={plain}.")
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            why = self.shown(str(error))
            return BackendError(f"No trusted connection to {where}: {why}; name its authority with ca=FILE.")
        if not _refused(error):
            return BackendError(f"{where} accepts connections, but {what} broke off: {self.quoted(_words(error))}.")
        return BackendError(f"No server answers at {where}: {self.shown(_words(error))}.")


def _refused(error: BaseException) -> bool:
    """Whether no connection could be made."""
    return isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL)


def _words(error: BaseException) -> str:
    return str(error).replace(" ssl:default", "") or type(error).__name__


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """The body, or `MOST_BYTES` of it and a little more. Note: `read(n)` gives what has come, which may be a part."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > MOST_BYTES:
            break
    return bytes(data)


def _arrival(arrivals: list[tuple[int, float]], end: int) -> float:
    return next(at_s for reached, at_s in arrivals if reached >= end)


def _json(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found
