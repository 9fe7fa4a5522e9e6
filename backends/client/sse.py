"""Server-sent events of a whole body: bytes in, events out, each with the place of the byte that completed it.

Source: the HTML standard, section 9.2.6 (line ends LF, CRLF or CR, mixed; comments; several `data:` lines), and what
servers do beside it (no space after the colon, no empty line at the end). Lines end at LF and CR bytes only: U+2028,
U+2029 and U+0085 are ordinary characters of a JSON text.
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")
_MARK = b"\xef\xbb\xbf"  # a byte order mark at the beginning is no part of the first line


class Event(NamedTuple):
    """`data` of an event, the offset in the body where it was complete, its name if not the usual one.

    `whole` is False for the last event of a body that ends without the empty line behind it.
    """

    data: bytes
    end: int
    name: bytes | None = None
    whole: bool = True


_event = partial(tuple.__new__, Event)  # a third of the time of Event(...)


def events(body: bytes) -> Iterator[Event]:
    """Events that carry data, in order. Comments, ids and retry times are left out; nothing is decoded."""
    start = len(_MARK) if body.startswith(_MARK) else 0
    eol = _only_line_end(body)
    if eol is None:
        yield from _lines(body, start, len(body))
        return
    gap = eol + eol
    *blocks, tail = (body[start:] if start else body).split(gap)
    for block in blocks:
        end = start + len(block) + len(gap)
        if block[:5] == b"data:" and eol not in block:  # one line: nearly every event
            yield _event((block[6:] if block[5:6] == b" " else block[5:], end, None, True))
        else:
            yield from _lines(body, start, end)
        start = end
    if tail:
        yield from _lines(body, start, len(body))


def _only_line_end(body: bytes) -> bytes | None:
    """The line end of a body that knows only one, else None."""
    returns = body.count(b"\r")
    if not returns:
        return b"\n"
    feeds = body.count(b"\n")
    if not feeds:
        return b"\r"
    return b"\r\n" if returns == feeds == body.count(b"\r\n") else None


def _lines(body: bytes, start: int, end: int) -> Iterator[Event]:
    """The events of `body[start:end]`, line by line."""
    data: list[bytes] = []
    name: bytes | None = None
    for line in _LINE.finditer(body, start, end):
        field, _, value = line[1].partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value if value != b"message" else None
        last = line.end() == end and not (line[2] and not line[1])
        if data and (not line[1] or last):
            yield Event(b"\n".join(data), line.end(), name, whole=not last)
        if not line[1]:
            data, name = [], None
        if line.end() == end:
            return
