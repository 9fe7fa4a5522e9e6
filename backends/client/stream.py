"""What the events of one answer say, in order: token events, usage, the end. Knows nothing of times."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backends.client import chunks
from backends.client.chunks import Json
from backends.client.sse import Event

if TYPE_CHECKING:
    from backends.client.capabilities import UsageForm

_DECODER = json.JSONDecoder()


@dataclass(slots=True)
class Stream:
    """What was said.

    Item i of the lists belongs to the i-th event that may be a token event: where in the body it was complete
    (`end`), its text, and the completion tokens that its usage told (None without). An event without text is among
    them when it came with usage before the end: it may carry a token that decodes to nothing. `first_event`,
    `first_answer` are places in the body,
    `finish_at` is the item that told the finish reason, None if it came in an event of its own.
    """

    end: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    counted: list[int | None] = field(default_factory=list)
    usage: Json = field(default_factory=dict)
    timings: Json = field(default_factory=dict)
    metrics: Json = field(default_factory=dict)
    finish_reason: str | None = None
    finish_at: int | None = None
    done: bool = False
    fault: str | None = None
    first_event: int | None = None
    first_answer: int | None = None
    first_role: int | None = None
    usage_at: UsageForm | None = None


def follow(events: Iterable[Event], *, whole: bool) -> Stream:
    """Read events up to `[DONE]`, an error, or their end; `whole`: the body ended as its framing says."""
    stream = Stream()
    for data, end, name, complete in events:
        if data[:1] != b"{" and data.strip() == b"[DONE]":
            stream.done = True
            return stream
        chunk = decoded(data)
        if chunk is None:
            if complete or whole:
                stream.fault = f"malformed event: {data[:1000].decode(errors='replace')}"
            return stream
        if stream.first_event is None:
            stream.first_event = end
        suspect = name is not None or "error" in chunk or chunk.get("object") == "error"
        if suspect and _failed(stream, name, data, chunk):
            return stream
        take(stream, chunk, end)
    return stream


def _failed(stream: Stream, name: bytes | None, data: bytes, chunk: Json) -> bool:
    """Whether the event tells of an error (`"error": null` does not)."""
    stream.fault = chunks.error_text(chunk)
    if stream.fault is None and name == b"error":
        stream.fault = data[:1000].decode(errors="replace")
    return stream.fault is not None


def decoded(data: bytes) -> Json | None:
    """The JSON object in the data of an event, None if it holds none."""
    text = data.decode(errors="replace").strip(" \t\r\n")  # what JSON takes for space
    try:
        found, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return found if end == len(text) and isinstance(found, dict) else None


def _place(stream: Stream, choice: Json | None) -> UsageForm:
    """Where the latest usage rides, after what came before."""
    if choice is None:
        return "a chunk of its own"
    return "after the finish" if stream.finish_reason is not None else "the finish chunk"


def take(stream: Stream, chunk: Json, end: int) -> None:
    """Add what one object says; `end` is where it was complete."""
    choice = chunks.first_choice(chunk)
    used = chunks.usage(chunk, choice) if "usage" in chunk or (choice is not None and "usage" in choice) else None
    if used is not None:
        stream.usage, stream.usage_at = used, _place(stream, choice)
    if choice is not None:
        _say(stream, choice, used, end)
    if "timings" in chunk:
        stream.timings = chunks.inside(chunk["timings"]) or stream.timings
    if "metrics" in chunk:
        stream.metrics = chunks.inside(chunk["metrics"]) or stream.metrics


def _say(stream: Stream, choice: Json, used: Json | None, end: int) -> None:
    """The text of a choice, and whether it ends the answer."""
    text, reasoning = chunks.said(choice)
    if text and stream.first_answer is None:
        stream.first_answer = end
    if text or reasoning or (used is not None and stream.finish_reason is None):
        stream.end.append(end)
        stream.text.append(reasoning + text if reasoning else text)
        stream.counted.append(None if used is None else chunks.whole(used.get("completion_tokens")))
    elif stream.first_role is None:
        stream.first_role = end
    if stream.finish_reason is None and (reason := choice.get("finish_reason")):
        stream.finish_reason = chunks.finish_reason(reason)
        stream.finish_at = len(stream.end) - 1 if stream.end and stream.end[-1] == end else None
