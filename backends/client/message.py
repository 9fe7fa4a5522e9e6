"""The HTTP response in an answer: head, and the pieces of the body that each read brought. aiohttp's parser does it."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpResponseParser
from aiohttp.http_exceptions import ContentLengthError, TransferEncodingError

if TYPE_CHECKING:
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
    return _parsed(answer.data, ended=answer.how not in ("timeout", "cancelled"))


def _parsed(reads: Sequence[bytes], *, ended: bool) -> Message:
    idle = _Idle()
    parser = HttpResponseParser(
        cast("BaseProtocol", idle), cast("AbstractEventLoop", idle), _BODY_BYTES,
        max_line_size=_LINE_BYTES, max_field_size=_LINE_BYTES, read_until_eof=True,
    )  # fmt: skip
    found, body = Message(), cast("Any", None)
    for index, data in enumerate(reads):
        try:
            heads = parser.feed_data(data)[0]
            if heads and body is None:
                body = _enter(found, heads)
            piece = body.read_nowait(-1) if body is not None else b""
        except HttpProcessingError as error:
            if len(data) > 1:
                return _byte_by_byte(reads, index, ended=ended)
            found.fault = f"malformed HTTP: {_first_line(error.message)}"
            return found
        if piece:
            found.pieces.append(piece)
            found.reads.append(index)
        if body is not None and body.is_eof():
            return found
    if ended and body is not None:
        _end(parser, found)
    return found


def _byte_by_byte(reads: Sequence[bytes], index: int, *, ended: bool) -> Message:
    """The parser gives nothing of a read with a fault in it: feed that one in bytes, to keep what came before."""
    data = reads[index]
    found = _parsed([*reads[:index], *(data[i : i + 1] for i in range(len(data)))], ended=ended)
    found.reads = [min(read, index) for read in found.reads]
    return found


def _enter(found: Message, heads: Any) -> Any:  # aiohttp's messages carry no public types
    """The body of the first final response among the heads, None while there is none."""
    for head, body in heads:
        if head.code >= 200:
            found.status, found.reason, found.headers = head.code, head.reason, head.headers
            return body
    return None


def _end(parser: HttpResponseParser, found: Message) -> None:
    """The reads are over and the body is not, by its framing."""
    try:
        parser.feed_eof()
    except ContentLengthError:
        found.fault = "the body is shorter than its length"
    except TransferEncodingError:
        found.cut = True
    except HttpProcessingError as error:
        found.fault = f"malformed HTTP: {_first_line(error.message)}"


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200]
