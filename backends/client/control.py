"""Plain conversations with a server before and after the run, over aiohttp. Nothing here is measured."""

from __future__ import annotations

import json
import re
import ssl
from asyncio import sleep
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

from backends.client import counting, framing, shapes
from backends.client.body import Sent
from backends.client.framing import Stream
from backends.client.secrets import FOREIGN_MOST, Redaction
from backends.client.target import key_header, without_version
from harness.api import Request
from harness.errors import BackendError, NotReady

if TYPE_CHECKING:
    from backends.client.body import Builder

MOST_BYTES = 1 << 24
LIMIT_S = 60.0
"""How long all requests of a client together wait where the server limits them and says until when."""
FIRST_PAUSE_S, PAUSES = 1.0, 4
"""The pauses where it does not say: the first, each twice as long as the one before, and how many."""
_LOADING = re.compile(r"\b(load|initiali[sz]|warm|start|boot|pull)(ing|ed)?\b", re.IGNORECASE)


@dataclass(slots=True)
class ProbeResponse:
    """An answer outside the run; `events` are those of tokens.

    `status` is 0 where the server took the connection and broke it off; `words` then say how.
    """

    status: int
    headers: Mapping[str, str]
    stream: Stream = field(default_factory=Stream)
    words: str = ""
    events: int = 0
    streamed: bool = False

    @property
    def tokens(self) -> int | None:
        """Completion tokens by the server's own count."""
        return self.stream.usage.completion

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens by the server's own count."""
        return self.stream.usage.prompt


class ControlClient:
    """Requests outside the measurement, all of them listed in `sent`. A failed connection raises a BackendError."""

    __slots__ = ("_proxy", "_redaction", "_session", "_timeout_s", "has_key", "pauses_s", "sent", "url")

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
        self.pauses_s: list[float] = []
        """The pauses that were made because the server limits requests."""
        self._proxy, self._timeout_s = proxy, timeout_s
        self._redaction = redaction or Redaction((key,) if key else ())
        defaults = [key_header(url, key)] if key else []
        overrides = {name.lower() for name, _ in headers}
        self.has_key = bool(key) or not overrides.isdisjoint(("authorization", "api-key", "x-api-key"))
        self._session = aiohttp.ClientSession(
            headers=[(n, v) for n, v in defaults if n.lower() not in overrides] + list(headers),
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
        parts = urlsplit(without_version(self.url) or self.url)
        return parts._replace(path=parts.path.rstrip("/") + path).geturl()

    async def fetch(self, url: str, purpose: str, value: Mapping[str, object] | None = None) -> tuple[int, object]:
        """Return status and JSON (None if it is none) of a small question, posted where it has a `value`."""
        method = "GET" if value is None else "POST"
        while True:
            try:
                async with self._session.request(
                    method, url, json=value, proxy=self._proxy, allow_redirects=False
                ) as answer:
                    self.sent.append(Sent(purpose, answer.status))
                    body = _json(await _whole(answer))
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise self._failed(error, f"{method} {urlsplit(url).path}") from None
            if not await self._limited(answer.status, answer.headers):
                return answer.status, body

    async def ask(self, builder: Builder, request: Request, path: str, purpose: str) -> ProbeResponse:
        """Send a request as it is sent in the run; close the connection when far more tokens come than requested.

        Raises ValueError for a prompt that the content cannot make.
        """
        most, body = 4 * request.output_tokens + 16, builder.body(request)
        while True:
            try:
                async with self._session.post(
                    self.at(path),
                    data=body,
                    headers=builder.headers(request),
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as answer:
                    self.sent.append(Sent(purpose, answer.status))
                    response = await self._hear(answer, most)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if _refused(error) or isinstance(error, TimeoutError):
                    raise self._failed(error, f"POST {urlsplit(self.at(path)).path}") from None
                self.sent.append(Sent(purpose, 0))
                return ProbeResponse(0, {}, words=_words(error))
            if not await self._limited(response.status, response.headers):
                return response

    async def _limited(self, status: int, headers: Mapping[str, str]) -> bool:
        """Whether the server limits requests and has been waited for, so that the request may be sent again."""
        after_s = _retry_after_s(headers)
        # 503 may mean anything, such as a model that loads: it is a limit only where it says until when.
        if status not in (429, 529) and (status != 503 or after_s is None):
            return False
        if after_s is None and len(self.pauses_s) == PAUSES:
            return False
        pause_s = max(0.5, after_s) if after_s is not None else FIRST_PAUSE_S * 2 ** len(self.pauses_s)
        if sum(self.pauses_s) + pause_s > min(LIMIT_S, self._timeout_s):
            return False
        self.pauses_s.append(pause_s)
        await sleep(pause_s)
        return True

    def not_ready(self, status: int, words: str) -> NotReady | None:
        """The error for a status of a server, or of a proxy before it, that may answer later; None for any other."""
        quoted = f"HTTP {status}" + (f": {self.quoted(words)}" if words else "")
        if status in (429, 529):
            return NotReady(f"The server at {self.where} limits requests and is not ready for more ({quoted})")
        if status in (409, 425, 502, 503, 504) and _LOADING.search(words):
            return NotReady(f"The server at {self.where} is loading its model and not ready ({quoted})")
        if status in (502, 504) or 520 <= status <= 530:  # from 520 on: of Cloudflare
            return NotReady(f"A proxy answers at {self.where}, but the server behind it is not ready ({quoted})")
        return NotReady(f"The server at {self.where} is not ready ({quoted})") if status in (425, 503) else None

    def refuses_key(self, status: int, words: str) -> BackendError:
        """The error for 401 and 403."""
        what = "refuses the key" if self.has_key else "needs a key"
        quoted = f": {self.quoted(words)}" if words else ""
        return BackendError(
            f"The server at {self.where} {what} (HTTP {status}{quoted}); set OPENAI_API_KEY, or name a variable by "
            "key_env or a file by key_file."
        )

    async def _hear(self, answer: aiohttp.ClientResponse, most_events: int) -> ProbeResponse:
        data, cut = bytearray(), False
        try:
            async for piece in answer.content.iter_any():
                data += piece
                if data.count(b"data:") > most_events or len(data) > MOST_BYTES:
                    cut = True
                    break
        except aiohttp.ClientPayloadError:
            cut = True
        response = ProbeResponse(answer.status, answer.headers)
        body = bytes(data)
        response.streamed = framing.is_stream(body)
        if response.status == 200 and response.streamed:
            response.stream = framing.follow(framing.events(body), whole=not cut)
        elif response.status == 200:
            kind = response.headers.get("Content-Type", "no content type")
            response.stream = framing.read_whole(body, streamed=False, kind=kind)
        else:
            page = re.search(rb"<title>([^<]+)", body[:FOREIGN_MOST])  # of a proxy: "502 Bad Gateway"
            text = (page[1] if page else body[:FOREIGN_MOST]).decode(errors="replace")
            response.words = self.shown(shapes.error_words(framing.decoded(body) or {}) or text)
        response.events = len(counting.count(response.stream).which)
        return response

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
        address = self.where
        if isinstance(error, TimeoutError) and not _refused(error):
            return BackendError(f"The server at {address} gave no answer within {self._timeout_s:g} s to {what}.")
        if isinstance(error, aiohttp.ClientConnectorSSLError) and "WRONG_VERSION_NUMBER" in str(error):
            plain = address.replace("https://", "http://", 1)
            return BackendError(f"No TLS at {address}: this port speaks http: use http://, as in url={plain}.")
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            why = self.shown(str(error))
            return BackendError(f"No trusted connection to {address}: {why}; name its authority with ca=FILE.")
        if isinstance(error, aiohttp.InvalidURL):
            return BackendError(f"No server answers at {address}: {self.shown(_words(error))}.")
        if _refused(error):
            return NotReady(f"No server answers at {address}: {self.shown(_words(error))}")
        broke = f"{address} accepts connections, but {what} broke off: {self.quoted(_words(error))}"
        # a port that docker or a proxy has opened for a server that does not listen yet
        closed = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError)
        return NotReady(broke) if closed else BackendError(f"{broke}.")


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds after which the server accepts another request; None where it names none."""
    with suppress(KeyError, ValueError):
        return float(headers["retry-after-ms"]) / 1e3
    text = headers.get("Retry-After", "")
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        until = parsedate_to_datetime(text)
        return (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None


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


def _json(data: bytes) -> object:
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed
