"""Where an answer ends: the least that must be known of HTTP/1.1 while it arrives, so that its connection gets free.

Reads of a chunked body are looked at only when one of them may hold the last chunk; after the answer the same walk
gives its head and what each read brought of its body.

Server-sent events of a whole body: bytes in, events out, each with the place of the byte that completed it.

Source: the HTML standard, section 9.2.6 (line ends LF, CRLF or CR, mixed; comments; several `data:` lines), and what
servers do beside it (no space after the colon, no empty line at the end). Lines end at LF and CR bytes only: U+2028,
U+2029 and U+0085 are ordinary characters of a JSON text.

The content of the events of one answer, in order: token events, usage, the end. Without times.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from backends.client import shapes
from backends.client.reads import is_chunk
from backends.client.secrets import FOREIGN_MOST
from backends.client.shapes import Json, Usage
from backends.client.target import HEAD_BYTES

if TYPE_CHECKING:
    from backends.client.connection import Answer


Body = Literal["head", "none", "length", "chunked", "close"]
DIGITS = 18
"""Of the longest length; a server that promises more promises no number."""
ANY_BYTES = 1 << 30
"""Of the head of a whole answer, whose bytes were counted as they came."""
COMPRESSED = (b"gzip", b"x-gzip", b"deflate")
"""Codings of a proxy that compresses although the request asks for none."""
_HEAD_END = b"\r\n\r\n"
_DONE = (b"\ndata: [DONE]", b"\ndata:[DONE]", b"\rdata: [DONE]", b"\rdata:[DONE]")


_LINE = re.compile(rb"([^\r\n]*)(\r\n|\r|\n|\Z)")
_MARK = b"\xef\xbb\xbf"  # a byte order mark at the beginning is no part of the first line
_DECODER = json.JSONDecoder()


class BadFraming(ValueError):
    """The bytes are not HTTP/1.1; the message is a predicate without its subject."""


class Framing:
    """Follows one answer to its end. `take` gets all reads so far and parses the new ones.

    `body` says how the answer is framed (`head` until that is known), `status` is its HTTP status, `events` whether it
    is a stream of events, `keep` whether the connection can be used again, `done` whether all of it has come.
    `content` is what it gathers the body of the newest read in; None while an answer is under way, to be quick.
    """

    __slots__ = ("_fed", "_head_bytes", "_left", "_line", "_pending", "_trailer", "body", "content", "done", "events",
                 "fields", "keep", "quiet", "reason", "status")  # fmt: skip

    def __init__(self, head_bytes: int = HEAD_BYTES, *, content: list[bytes] | None = None) -> None:
        self._head_bytes = head_bytes
        self.content = content
        self.reason = b""
        self.fields: Mapping[bytes, bytes] = {}
        self.body: Body = "head"
        self.status: int | None = None
        self.events = False
        self.keep = False
        self.done = False
        self.quiet = False  # a chunked body: most reads need not be looked at
        self._fed = 0  # reads looked at
        self._pending = b""  # of the head
        self._left = 0  # bytes of the body, or of the chunk and the line end after it
        self._line = b""  # beginning of a line of the chunked framing, cut by the end of a read
        self._trailer = False

    @property
    def between(self) -> bool:
        """Whether the next read begins a chunk."""
        return self.quiet and not (self._left or self._line or self._trailer)

    def take(self, reads: Sequence[bytes], whole: int = 0) -> bool:
        """Look at the reads that are new; True when the answer is complete. Raises BadFraming.

        The first `whole` of them are known to be a chunk each.
        """
        self._fed += whole
        while self._fed < len(reads):
            if self.between and is_chunk(reads[self._fed]):
                if self.content is not None:
                    self.content.append(reads[self._fed].partition(b"\r\n")[2][:-2])
                self._fed += 1  # Note: most reads of a stream of events are one chunk each
                continue
            self._feed(reads[self._fed], reads[self._fed - 1] if self._fed else b"\n")
            self._fed += 1
        return self.done

    def _feed(self, data: bytes, before: bytes = b"\n") -> None:
        if self.done:
            self.keep = False  # bytes that belong to no answer
        elif self.body == "head":
            self._head(data)
        elif self.body == "chunked":
            self._chunks(data)
        elif self.body == "length":
            self._length(data)
        elif self.content is not None:
            self.content.append(data)
        elif self.body == "close":
            self.done = says_done(data, before)  # nothing follows, and a connection without a length is of no more use

    def _head(self, data: bytes) -> None:
        pending = self._pending + data if self._pending else data
        end = pending.find(_HEAD_END)
        if not pending.startswith(b"HTTP/1."[: len(pending)]):
            raise BadFraming(f"does not begin like an HTTP/1.1 answer: {pending[:60]!r}")
        if (end if end >= 0 else len(pending)) > self._head_bytes:
            raise BadFraming(f"has a header block larger than {self._head_bytes:,} bytes (max_head_bytes)")
        if end < 0:
            self._pending = pending
            return
        self._pending = b""
        rest = pending[end + 4 :]
        interim = not self._read_head(pending[:end])  # such as 100 Continue: the real one follows
        if rest and interim:
            self._head(rest)
        elif rest:
            self._feed(rest)

    def _read_head(self, head: bytes) -> bool:
        """Learn how the body is framed; False for an interim answer, which has none."""
        version, status, reason, fields = _parsed(head)
        if 100 <= status < 200 and status != 101:
            return False
        self.status, self.reason, self.fields = status, reason, fields
        self._frame(fields, one=version != b"HTTP/1.0")
        return True

    def _frame(self, fields: Mapping[bytes, bytes], one: bool) -> None:
        self.events = b"event-stream" in fields.get(b"content-type", b"").lower()
        connection = fields.get(b"connection", b"").lower()
        self.keep = b"close" not in connection if one else b"keep-alive" in connection
        if self.status in (204, 304):
            self.body, self.done = "none", True
        elif (coding := fields.get(b"transfer-encoding")) is not None:
            if coding.lower() != b"chunked":  # where its body ends, readers would not agree
                raise BadFraming(f"has a Transfer-Encoding that is not 'chunked': {coding[:60]!r}")
            self.body, self.quiet = "chunked", True
            # A proxy between may go by the length instead, and take what follows for the next answer (RFC 9112, 6.3).
            self.keep = self.keep and b"content-length" not in fields
        elif b"content-length" in fields:
            length = fields[b"content-length"]
            if not length.isdigit() or len(length) > DIGITS:
                raise BadFraming(f"has a Content-Length that is no number of bytes: {length[:60]!r}")
            self.body, self._left = "length", int(length)
            self.done = self._left == 0
        else:
            self.body, self.keep = "close", False

    def _length(self, data: bytes) -> None:
        if self.content is not None:
            self.content.append(data[: self._left])
        self._left -= len(data)
        self.done = self._left <= 0
        if self._left < 0:
            self.keep = False

    def _chunks(self, data: bytes) -> None:
        """Walk from chunk to chunk (RFC 9112, 7.1); the last one has no bytes, and trailers may follow it."""
        pos, size, chunk_bytes = self._left, len(data), 0
        if self.content is not None:
            self.content.append(data[: max(0, pos - 2)])
        if pos >= size:
            self._left = pos - size
            return
        while pos < size and not self.done:
            end = data.find(b"\n", pos)
            if end < 0:
                self._line += data[pos:]
                if len(self._line) > self._head_bytes:
                    raise BadFraming("has a chunk that does not say its size")
                break
            line = data[pos:end]
            pos = end + 1
            if self._line or self._trailer:
                chunk_bytes = self._chunk_line(self._line + line)
                self._line = b""
            else:
                chunk_bytes = self._chunk_line(line)
            if self.content is not None:
                self.content.append(data[pos : pos + max(0, chunk_bytes - 2)])
            pos += chunk_bytes
        self._left = max(0, pos - size) if chunk_bytes else 0
        if pos < size and self.done:
            self.keep = False

    def _chunk_line(self, line: bytes) -> int:
        """Bytes after this line that belong to its chunk, the line end after it included; 0 at the end."""
        if self._trailer:
            self.done = line in (b"", b"\r")
            return 0
        text = line.strip()
        if not text.isalnum():  # an extension of the chunk, or nonsense
            text = line.partition(b";")[0].strip()
        try:
            length = int(text, 16) if text.isalnum() else -1
        except ValueError:
            length = -1
        if length < 0:
            raise BadFraming(f"has a chunk whose size is no number: {line[:60]!r}")
        if length:
            return length + 2
        self._trailer = True
        return 0


@dataclass(slots=True)
class Message:
    """`pieces[i]` of the body came with read `reads[i]`. `cut`: fewer bytes than the framing promises.

    `fault` is an error of the framing: a body shorter than its length, or bytes that are not HTTP.
    `status` is None when no whole head came. `headers` have names in lower case.
    """

    status: int | None = None
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    cut: bool = False
    fault: str | None = None


def message_of(answer: Answer) -> Message:
    """Return the HTTP message in the reads of an answer, as far as they go. Interim responses (1xx) are skipped."""
    content: list[bytes] = []
    reads: list[bytes] = []
    framing, parsed, unpack = Framing(ANY_BYTES, content=content), Message(), None
    for index, data in enumerate(answer.data):
        reads.append(data)
        try:
            framing.take(reads)
        except BadFraming as error:
            parsed.fault = f"the answer {error}"
        piece = b"".join(content)
        content.clear()
        coding = framing.fields.get(b"content-encoding", b"identity").lower()
        if piece and coding in COMPRESSED:
            unpack = unpack or zlib.decompressobj(zlib.MAX_WBITS | 32)  # by its head gzip or zlib
            try:
                piece = unpack.decompress(piece)
            except zlib.error as error:
                piece, parsed.fault = b"", f"the body cannot be decompressed: {error}"
        elif piece and coding != b"identity":
            piece, parsed.fault = b"", f"the body is compressed by {_text(coding)}, which no request asks for"
        if piece:
            parsed.pieces.append(piece)
            parsed.reads.append(index)
        if framing.done or parsed.fault is not None:
            break
    headers = {_text(name): _text(value) for name, value in framing.fields.items()}
    parsed.status, parsed.reason, parsed.headers = framing.status, _text(framing.reason), headers
    if not framing.done and parsed.fault is None and answer.how not in ("timeout", "cancelled", "oversized"):
        parsed.cut = framing.body == "chunked"
        parsed.fault = "the body is shorter than its length" if framing.body == "length" else None
    return parsed


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def is_stream(body: bytes) -> bool:
    """Whether a body begins like a stream of events."""
    start = body[:64].removeprefix(_MARK).lstrip()
    return start.startswith((b"data:", b":", b"event:", b"id:", b"retry:"))


def says_done(data: bytes, before: bytes = b"\n") -> bool:
    """Whether a read ends with the line that ends a stream of events, `data: [DONE]`; `before` came before it."""
    tail = data[-40:].rstrip()
    return tail.endswith(_DONE) or (tail in (b"data: [DONE]", b"data:[DONE]") and before.endswith((b"\n", b"\r")))


@lru_cache(maxsize=64)  # those of a server are alike but for its clock
def _parsed(head: bytes) -> tuple[bytes, int, bytes, Mapping[bytes, bytes]]:
    """Version, status, reason, and the fields by lower-cased name; of a repeated one the values are joined."""
    first, *lines = head.split(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[1].isdigit() or len(words[1]) != 3:
        raise BadFraming(f"begins with a line that has no status: {first[:60]!r}")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        key = name.strip().lower()
        fields[key] = fields[key] + b", " + value.strip() if key in fields else value.strip()
    return words[0], int(words[1]), b"".join(words[2:]), fields


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


@dataclass(slots=True)
class Stream:
    """The decoded content of an answer.

    Item i of the lists belongs to the i-th event that may be a token event: where in the body it was complete
    (`end`), its text, and the completion tokens of its usage (None without). An event without text is among
    them when it came with usage before the end: it may carry a token that decodes to nothing. `thinking` are the texts
    that are no part of the answer itself, `silent` the events between the first token and the finish that have no text.
    `unknown` are the strings in fields that no known server has: path, place in the body, string; `unknown_text` are
    the paths of those that turned out to be text. `events` counts all events, `first_event` and `first_answer` are
    places in the body, `finish_at` is the item with the finish reason, None if it came in an event of its own.
    `answer` are the texts of the answer itself, `ids` its token ids where the server gives them (`token_ids` of vLLM),
    of several answers those of the first. `choices` says which answer item i belongs to, `finished` how many ended.
    `other_api` is the error where the events are those of an API that is not read.
    """

    end: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    counted: list[int | None] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    finished: int = 0
    thinking: list[str] = field(default_factory=list)
    silent: int = 0
    unknown: list[tuple[str, int, str]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: Json = field(default_factory=dict)
    metrics: Json = field(default_factory=dict)
    finish_reason: str | None = None
    finish_at: int | None = None
    done: bool = False
    fault: str | None = None
    events: int = 0
    first_event: int | None = None
    first_answer: int | None = None
    other_api: str | None = None
    unknown_text: tuple[str, ...] = ()
    answer: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether there was text of any kind."""
        return self.first_answer is not None or bool(self.thinking)


def follow(events: Iterable[Event], *, whole: bool) -> Stream:
    """Read events up to `[DONE]`, an error, or their end; `whole`: the body ended as its framing says."""
    stream = Stream()
    for data, end, name, complete in events:
        if data[:1] != b"{" and data.strip() == b"[DONE]":
            stream.done = True
            break
        chunk = decoded(data)
        if chunk is None:
            # The last event of an answer that broke off is cut anywhere, which is no fault of its JSON.
            if complete or whole:
                stream.fault = f"malformed event: {data[:FOREIGN_MOST].decode(errors='replace')}"
            break
        stream.events += 1
        if stream.first_event is None:
            stream.first_event = end
        suspect = name is not None or "error" in chunk or chunk.get("object") == "error"
        if suspect and _failed(stream, name, data, chunk):
            break
        take(stream, chunk, end)
    if stream.unknown:
        _take_unknown(stream)
    # Events of a server may be of no known form here and there; only an answer of nothing else is one of another API.
    if not stream.begun and stream.finish_reason is None:
        stream.fault = stream.fault or stream.other_api
    return stream


def read_whole(body: bytes, *, streamed: bool, kind: str) -> Stream:
    """Read a complete body of this content type that is no stream of events: one JSON object; `streamed`: events were
    requested.

    Where it is none, the first object of a list or of lines of JSON may tell the API that it belongs to.
    """
    stream, chunk = Stream(), decoded(body)
    first = chunk or next(filter(None, map(decoded, re.split(rb",?\r?\n", body.lstrip(b"[")))), shapes.NONE)
    stream.other_api = shapes.other_api(first)
    stream.fault = (chunk and shapes.error_text(chunk)) or stream.other_api
    if stream.fault is None and chunk is None:
        stream.fault = f"malformed answer ({kind}): {body[:FOREIGN_MOST].decode(errors='replace')}"
    elif stream.fault is None and streamed:
        stream.fault = f"the server does not stream: it answered with {kind}; use stream=false"
    elif stream.fault is None and chunk is not None:
        take(stream, chunk, len(body))
        stream.events = 1
    return stream


def _take_unknown(stream: Stream) -> None:
    """Take for text what stands in fields that no known server has, where it goes on from event to event.

    It counts as thinking: what is new is mostly another name for that. A string that is always the same is a name or a
    mark, and one that comes once may be anything.
    """
    strings: dict[str, set[str]] = {}
    for path, _, text in stream.unknown:
        strings.setdefault(path, set()).add(text)
    stream.unknown_text = tuple(path for path, different in strings.items() if len(different) > 1)
    by_end = dict(zip(stream.end, zip(stream.text, stream.counted, stream.choices, strict=True), strict=True))
    finish = None if stream.finish_at is None else stream.end[stream.finish_at]
    for path, end, text in stream.unknown:
        before, counted, index = by_end.get(end, ("", None, 0))
        if path in stream.unknown_text and not before:
            stream.thinking.append(text)
            by_end[end] = text, counted, index
    stream.end = sorted(by_end)
    stream.text = [by_end[end][0] for end in stream.end]
    stream.counted = [by_end[end][1] for end in stream.end]
    stream.choices = [by_end[end][2] for end in stream.end]
    stream.finish_at = None if finish is None else stream.end.index(finish)


def _failed(stream: Stream, name: bytes | None, data: bytes, chunk: Json) -> bool:
    """Whether the event is an error (`"error": null` does not)."""
    stream.fault = shapes.error_text(chunk)
    if stream.fault is None and name == b"error":
        stream.fault = data[:FOREIGN_MOST].decode(errors="replace")
    return stream.fault is not None


def decoded(data: bytes) -> Json | None:
    """The JSON object in the data of an event, None if it holds none."""
    text = data.decode(errors="replace").strip(" \t\r\n")  # what JSON takes for space
    try:
        parsed, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return parsed if end == len(text) and isinstance(parsed, dict) else None


def take(stream: Stream, chunk: Json, end: int) -> None:
    """Add the content of one object; `end` is where it was complete."""
    choices, fresh = shapes.choices(chunk), not stream.begun
    used = shapes.usage(chunk, choices[0] if choices else None)
    if used is not None:
        stream.usage = stream.usage.merged(used)
    for choice in choices:
        _say(stream, choice, used, end, fresh=fresh)
    if not choices and stream.other_api is None:
        stream.other_api = shapes.other_api(chunk)
    if "timings" in chunk:
        stream.timings = shapes.inside(chunk["timings"]) or stream.timings
    if "metrics" in chunk:
        stream.metrics = shapes.inside(chunk["metrics"]) or stream.metrics


def _say(stream: Stream, choice: Json, used: Usage | None, end: int, *, fresh: bool) -> None:
    """The words of a choice, and whether it ends the answer."""
    words, index = shapes.words(choice, fresh=fresh), shapes.whole(choice.get("index")) or 0
    text = words.thinking + words.text if words.thinking else words.text
    if text or (used is not None and stream.finish_reason is None):
        stream.end.append(end)
        stream.text.append(text)
        stream.counted.append(None if used is None else used.completion)
        stream.choices.append(index)
    if words.unknown:
        stream.unknown += ((path, end, part) for path, part in words.unknown.items())
    elif not text and stream.begun and not (stream.finish_reason or choice.get("finish_reason")):
        stream.silent += 1
    if words.text:
        if not index:
            stream.answer.append(words.text)
        stream.first_answer = end if stream.first_answer is None else stream.first_answer
    if isinstance(ids := choice.get("token_ids"), list) and not index:
        stream.ids += [i for i in ids if type(i) is int]
    if words.thinking:
        stream.thinking.append(words.thinking)
    reason = choice.get("finish_reason")
    stream.finished += bool(reason)
    if stream.finish_reason is None and reason:
        stream.finish_reason = shapes.finish_reason(reason)
        stream.finish_at = len(stream.end) - 1 if stream.end and stream.end[-1] == end else None
