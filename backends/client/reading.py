"""From the bytes of an answer to its token events and how it ended. Pure: the same events wherever it is done."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from backends.client import counting, framing, shapes
from backends.client.counting import Counted
from backends.client.framing import Message, Stream
from backends.client.secrets import FOREIGN_MOST, Redaction
from backends.client.stamps import held_back
from harness.api import Ended, Exchange, Request, Status, TokenEvent

if TYPE_CHECKING:
    from backends.client.connection import Answer

REJECTED = (429, 503, 529)
ERROR_CHARACTERS = 300
"""Of the one line that is kept of an error, without secrets."""
SHORT_TOKEN = 3
"""Characters of a short token: text of so many times as many characters has at least so many tokens."""
CUT_OFF = ("content_filter", "abort")
"""Finish reasons of an incomplete answer: its tokens count, the request does not succeed."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads answers. `stream`: events are expected, and one JSON object is not an answer."""

    stream: bool = True
    redaction: Redaction = field(default_factory=Redaction)

    def read(
        self, answer: Answer, request: Request, parsed: ParsedAnswer | None = None
    ) -> Iterator[TokenEvent | Ended]:  # fmt: skip
        """The token events, then how the request ended. Works on any part of an answer."""
        parsed = parsed or self.parse(answer)
        counted = counting.count(parsed.stream, request.answers * request.output_tokens)
        if request.answers > 1:
            counted = counting.rounds(parsed.stream, counted)
        reads = parsed.reads_at([parsed.stream.end[i] for i in counted.which])
        stamps_s = [*accumulate([answer.stamp_s[read] for read in reads], max)]  # times of tokens never fall
        yield from map(TokenEvent, repeat(request.id), stamps_s, counted.token_n)
        status, error = self._status(answer, parsed, request, counted)
        shared = sum(map(operator.eq, reads, reads[1:]))
        held = self._held_back(answer, parsed.stream, counted, stamps_s)
        stream, usage = parsed.stream, parsed.stream.usage
        yield Ended(
            request_id=request.id,
            at_s=answer.ended_s,
            status=status,
            error=None if error is None else self.redaction.foreign(error, ERROR_CHARACTERS),
            sent_s=answer.sent_s,
            prompt_tokens_server=usage.prompt,
            cached_tokens=usage.cached if usage.cached is not None else shapes.whole(stream.timings.get("cache_n")),
            unseen_tokens=counted.unseen or None,
            exchange=_exchange(answer, parsed, counted, shared, held),
        )

    def started(self, answer: Answer) -> bool:
        """Whether a first token is among the bytes that have come so far."""
        return bool(counting.count(self.parse(answer).stream).which)

    def parse(self, answer: Answer) -> ParsedAnswer:
        """Token events and end of an answer."""
        head = framing.message_of(answer)
        body = b"".join(head.pieces)
        ends = list(accumulate(map(len, head.pieces)))
        if head.status != 200:
            return ParsedAnswer(head, framing.Stream(), ends, body=body)
        # What was hung up on is no broken JSON or missing end: how it ended is known already.
        ended = answer.how in ("complete", "closed") and not head.cut and head.fault is None
        kind = head.headers.get("content-type", "")
        # where a server names another type, by how the body begins
        if "event-stream" in kind.lower() or framing.is_stream(body):
            stream = framing.follow(framing.events(body), whole=ended and answer.how == "complete")
        elif ended:
            stream = framing.read_whole(body, streamed=self.stream, kind=kind or "no content type")
        else:
            stream = framing.Stream()
        stream.fault = None if stream.fault is None else self.redaction.foreign(stream.fault, ERROR_CHARACTERS)
        return ParsedAnswer(head, stream, ends, body=body)

    def _held_back(
        self, answer: Answer, stream: Stream, counted: Counted, event_s: Sequence[float]
    ) -> tuple[int, float]:
        """See `stamps.held_back`; nothing where the answer was requested in one piece."""
        if not self.stream:
            return 0, 0.0
        characters = sum(len(stream.text[i]) for i in counted.which[:1])  # hidden tokens came in no event
        return held_back(answer.sent_s, event_s, min(sum(counted.token_n), characters // SHORT_TOKEN))

    def _status(
        self, answer: Answer, parsed: ParsedAnswer, request: Request, counted: Counted
    ) -> tuple[Status, str | None]:
        """Source: the table of statuses in the guide on endpoints."""
        events = len(counted.which)
        head, stream = parsed.head, parsed.stream
        if answer.how == "oversized":
            return "error", answer.why
        # Such an answer is whole however its connection ended: some servers leave it open, and some proxies cut it.
        agreed = stream.done and stream.finish_reason is not None and stream.fault is None
        if answer.how in ("timeout", "cancelled") and not agreed:
            return ("timeout" if answer.how == "timeout" else "cancelled"), answer.why
        if head.status is None:
            return "error", _no_head(answer, head)
        if head.status in REJECTED:
            return "rejected", _http_error(head, parsed.body, self.redaction.foreign)
        if head.status != 200:
            return "error", _http_error(head, parsed.body, self.redaction.foreign)
        if stream.fault is not None:
            return "error", stream.fault
        if not agreed and (broken := head.fault or _broken(answer, events)) is not None:
            return "error", broken
        return _end_of_stream(stream, request, events, counted.unseen)


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """An answer as far as it has come; `ends[i]` is where in the body piece i of the message ends."""

    head: Message
    stream: Stream
    ends: list[int]
    body: bytes

    @property
    def texts(self) -> list[str]:
        """The text of each token event of an answer that was counted by events, for a tokenizer after the run."""
        return [text.encode(errors="replace").decode() for text in self.stream.text if text]

    @property
    def counted(self) -> tuple[int, int] | None:
        """Tokens of the prompt and of the answer without its reasoning, by the server's count."""
        usage = self.stream.usage
        if usage.prompt is None or usage.completion is None:
            return None
        return usage.prompt, max(0, usage.completion - (usage.reasoning or 0))

    def read_at(self, end: int) -> int:
        """The read that brought the byte before place `end` of the body."""
        return self.head.reads[bisect_left(self.ends, end)]

    def reads_at(self, places: list[int]) -> list[int]:
        """The same for places that never fall, in one walk."""
        ends, reads, place_reads, i = self.ends, self.head.reads, [], 0
        for place in places:
            while ends[i] < place:
                i += 1
            place_reads.append(reads[i])
        return place_reads


def _no_head(answer: Answer, head: Message) -> str:
    if answer.how in ("complete", "closed"):
        what = "before its answer was complete" if answer.data else "without an answer"
        return head.fault or f"the server closed the connection {what}"
    return answer.why or f"the connection was {answer.how}"


def _broken(answer: Answer, events: int) -> str | None:
    if answer.how in ("complete", "closed", "timeout", "cancelled"):
        return None
    return f"{answer.why or f'the connection was {answer.how}'}, after {events} token events"


def _http_error(head: Message, body: bytes, foreign: Callable[[str], str]) -> str:
    """Status and the server's own error message."""
    words = shapes.error_words(framing.decoded(body) or {}) or body[:FOREIGN_MOST].decode(errors="replace")
    parts = [f"HTTP {head.status} {foreign(head.reason)}".rstrip()]
    if (after := head.headers.get("retry-after")) is not None:
        parts.append(f"(Retry-After {foreign(after)})")
    if 300 <= (head.status or 0) < 400:
        parts.append(f"(redirects are not followed; it points to {foreign(head.headers.get('location', 'nowhere'))})")
    return " ".join(parts) + (f": {foreign(words)}" if words else "")


def _end_of_stream(stream: Stream, request: Request, events: int, unseen: int) -> tuple[Status, str | None]:
    """Status of an answer whose body arrived completely."""
    if stream.finish_reason is None:
        return "truncated", f"the stream ended without finish_reason after {events} token events"
    if stream.finished < request.answers:
        return "truncated", f"{stream.finished} of {request.answers} choices ended"
    if stream.finish_reason in CUT_OFF:
        return "truncated", f"finish_reason {stream.finish_reason}"
    if stream.finish_reason == "error":
        return "error", "finish_reason error"
    if not events and request.output_tokens > 0:
        counted = "" if stream.usage.completion is None else f", tokens by the server's count: {unseen:,}"
        return "empty", f"no text: finish_reason {stream.finish_reason}{counted}"
    return "ok", None


def _exchange(answer: Answer, parsed: ParsedAnswer, counted: Counted, shared: int, held: tuple[int, float]) -> Exchange:
    """The row of the wire. Timings are those of llama.cpp (`timings`) and of vLLM (`metrics`, with include_metrics)."""
    stream = parsed.stream
    lags = list(map(operator.sub, answer.read_s, answer.stamp_s))

    def stamp(end: int | None) -> float | None:
        return None if end is None else answer.stamp_s[parsed.read_at(end)]

    return Exchange(
        sender=answer.sender,
        address=answer.address,
        http_status=parsed.head.status,
        finish_reason=stream.finish_reason,
        counted_by=counted.by if counted.which or counted.by == "usage" else None,
        refused_tokens=counted.refused_tokens,
        written_s=answer.written_s,
        connect_s=answer.connect_s,
        resent=answer.resent,
        first_event_s=stamp(stream.first_event),
        first_content_s=stamp(stream.first_answer),
        reasoning_tokens=stream.usage.reasoning,
        server_queue_s=shapes.seconds(stream.metrics.get("queue_time_ms")),
        server_ttft_s=shapes.seconds(stream.metrics.get("time_to_first_token_ms")),
        server_prefill_s=shapes.seconds(stream.timings.get("prompt_ms")),
        server_decode_s=shapes.seconds(stream.timings.get("predicted_ms", stream.metrics.get("generation_time_ms"))),
        reads=len(answer.data),
        read_lag_s=max(0.0, *lags) if lags else None,
        shared_events=shared,
        held_events=held[0],
        held_s=held[1],
        process_stamps=answer.process_stamps,
        unknown_text=", ".join((path if path.isprintable() else repr(path))[:80] for path in stream.unknown_text)
        or None,
    )
