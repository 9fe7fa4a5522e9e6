"""The HTTP response in an answer: head, and the pieces of the body that each read brought. aiohttp's parser does it."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aiohttp.http import HttpProcessingError, HttpResponseParser
from aiohttp.http_exceptions import ContentLengthError, TransferEncodingError

if TYPE_CHECKING:
    from aiohttp.base_protocol import BaseProtocol

    from backends.client.answer import Answer

_BODY_BYTES = 1 << 30  # the parser never has to ask for a pause: all bytes are here
_LINE_BYTES = 1 << 16


@dataclass(slots=True)
class Message:
    """`pieces[i]` of the body came with read `reads[i]`. `cut`: fewer bytes than the framing promises.

    `fault` tells what is wrong with the framing: a body shorter than its length, or bytes that are no HTTP.
    `status` is None when no whole head came.
    """

    status: int | None = None
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    cut: bool = False
    fault: str | None = None


class _Idle:
    """What the parser wants for a transport and a loop: nothing here can be paused, and nobody waits."""

    __slots__ = ()

    def pause_reading(self, *_: object, **__: object) -> None: ...

    def resume_reading(self, *_: object, **__: object) -> None: ...


def message(answer: Answer) -> Message:
    """Parse the reads of an answer, as far as they go. Interim responses (1xx) are skipped."""
    idle = _Idle()
    parser = HttpResponseParser(
        cast("BaseProtocol", idle), cast("AbstractEventLoop", idle), _BODY_BYTES,
        max_line_size=_LINE_BYTES, max_field_size=_LINE_BYTES, read_until_eof=True,
    )  # fmt: skip
    found, body = Message(), cast("Any", None)
    try:
        for index, data in enumerate(answer.data):
            heads = parser.feed_data(data)[0]
            if heads and body is None:
                body = _enter(found, heads)
            if body is not None:
                if piece := body.read_nowait(-1):
                    found.pieces.append(piece)
                    found.reads.append(index)
                if body.is_eof():
                    return found
        _end(parser, answer, found, body)
    except HttpProcessingError as error:
        found.fault = f"malformed HTTP: {_first_line(error.message)}"
        _rest(found, body, len(answer.data) - 1)
    return found


def _enter(found: Message, heads: Any) -> Any:  # aiohttp's messages carry no public types
    """The body of the first final response among the heads, None while there is none."""
    for head, body in heads:
        if head.code >= 200:
            found.status, found.reason, found.headers = head.code, head.reason, head.headers
            return body
    return None


def _end(parser: HttpResponseParser, answer: Answer, found: Message, body: object) -> None:
    """The reads are over and the body is not, by its framing."""
    if body is None or answer.how in ("timeout", "cancelled"):
        return
    try:
        parser.feed_eof()
    except ContentLengthError:
        found.fault = "the body is shorter than its length"
    except TransferEncodingError:
        found.cut = True


def _rest(found: Message, body: Any, index: int) -> None:  # a stream of aiohttp, or None
    """What the parser had understood of a read before it met the fault."""
    try:
        piece = body.read_nowait(-1) if body is not None else b""
    except Exception:  # noqa: BLE001  # the stream itself holds the fault
        return
    if piece:
        found.pieces.append(piece)
        found.reads.append(index)


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200]
