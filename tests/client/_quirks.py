"""Everything that servers have been seen to do to a stream, one at a time, and what a client owes for it."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any


def case(script: dict | None = None, options: dict | None = None, api: str | None = None, **owed: Any) -> tuple:
    """A script, the options of the client, the only API for which it makes sense, and what the client owes."""
    full = {"status": "ok", "tokens": 8, "events": 8, "http": 200}
    return script or {}, options or {}, api, full | owed


NOTHING = {"tokens": 0, "events": 0}
ALL = tuple(range(8))

CASES = {
    "nothing odd": case(counted_by="usage", finish="length"),
    # the connection breaks
    "reset before the head": case({"fault": "reset"}, status="error", http=None, **NOTHING),
    "reset before the first token": case({"fault": "reset", "fault_at": 0}, status="error", **NOTHING),
    "reset in the middle": case({"fault": "reset", "fault_at": 3}, status="error", tokens=3, events=3),
    "reset before the finish": case({"fault": "reset", "fault_at": 8}, status="error"),
    "closed before the head": case({"fault": "close"}, status="error", http=None, **NOTHING),
    "closed before the first token": case({"fault": "close", "fault_at": 0}, status="truncated", **NOTHING),
    "closed in the middle": case({"fault": "close", "fault_at": 3}, status="truncated", tokens=3, events=3),
    "closed in the middle, usage on every chunk": case(
        {"fault": "close", "fault_at": 3, "usage": "every"}, status="truncated", tokens=3, events=3,
        counted_by="continuous usage",
    ),
    "closed in the middle of its length": case(
        {"fault": "close", "fault_at": 3, "framing": "length"}, status="error", tokens=3, events=3, error="shorter"
    ),
    "closed in the middle where the close is the end": case(
        {"fault": "close", "fault_at": 3, "framing": "close"}, status="truncated", tokens=3, events=3
    ),
    "closed before the finish": case({"fault": "close", "fault_at": 8}, status="truncated", counted_by="events"),
    "garbage in the middle": case({"fault": "garbage", "fault_at": 3}, status="error", tokens=3, events=3),
    "garbage for an answer": case({"fault": "garbage"}, status="error", http=None, **NOTHING),
    "left open after [DONE]": case({"left_open": True}),
    # silence
    "silent before the head": case({"fault": "silence"}, {"timeout_s": 0.4}, status="timeout", http=None, **NOTHING),
    "silent before the first token": case(
        {"fault": "silence", "fault_at": 0}, {"timeout_s": 0.4}, status="timeout", **NOTHING
    ),
    "silent in the middle": case(
        {"fault": "silence", "fault_at": 3}, {"timeout_s": 0.4}, status="timeout", tokens=3, events=3
    ),
    "silent before the finish": case({"fault": "silence", "fault_at": 8}, {"timeout_s": 0.4}, status="timeout"),
    "no first token in time": case(
        {"fault": "silence", "fault_at": 0}, {"first_token_s": 0.3}, status="timeout", error="first token", **NOTHING
    ),
    "a role chunk is no first token": case(
        {"fault": "silence", "fault_at": 0, "role": "early"}, {"first_token_s": 0.3}, "chat",
        status="timeout", error="first token", **NOTHING,
    ),
    "a first token in time": case({"fault": "stall", "fault_at": 1, "fault_s": 0.6}, {"first_token_s": 0.3}),
    "too long between tokens": case(
        {"fault": "silence", "fault_at": 3}, {"idle_s": 0.3}, status="timeout", tokens=3, events=3
    ),
    "pings keep a silent stream alive": case(
        {"fault": "stall", "fault_at": 3, "fault_s": 1.2, "stall_ping_s": 0.05}, {"idle_s": 0.5}
    ),
    "a stall": case({"fault": "stall", "fault_at": 3, "fault_s": 0.3}),
    "a stall before the head": case({"fault": "stall", "fault_s": 0.2}),
    # other statuses
    "500": case({"status": 500}, status="error", http=500, error="500", **NOTHING),
    "500 says why": case({"status": 500}, status="error", http=500, error="full of regrets", **NOTHING),
    "429 with Retry-After": case({"status": 429, "retry_after": "7"}, status="rejected", http=429, **NOTHING),
    "503 with Retry-After as a date": case(
        {"status": 503, "retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, status="rejected", http=503, **NOTHING
    ),
    "529": case({"status": 529}, status="rejected", http=529, **NOTHING),
    "401": case({"status": 401}, status="error", http=401, **NOTHING),
    "404": case({"status": 404}, status="error", http=404, **NOTHING),
    "a redirect is not followed": case(
        {"status": 307, "location": "/calm/v1/completions"}, status="error", http=307, error="/calm/v1/", **NOTHING
    ),
    "an error page under status 200": case({"page": "<html>502 Bad Gateway</html>"}, status="error", **NOTHING),
    # what cannot be read
    "JSON cut short inside an event": case({"cut_json_at": 3}, status="error", tokens=3, events=3),
    "an event that is no JSON": case({"malformed_at": 3}, status="error", tokens=3, events=3, error="this is no JSON"),
    "the first event is no JSON": case({"malformed_at": 0}, status="error", **NOTHING),
    "an error object as an event": case({"error_at": 3}, status="error", tokens=3, events=3, error="died of grief"),
    "an event named error": case(
        {"error_at": 3, "error_event": True}, status="error", tokens=3, events=3, error="died of grief"
    ),
    "an error object first": case({"error_at": 0}, status="error", error="died of grief", **NOTHING),
    "an error with half a character": case(
        {"error_at": 3, "error_text": "\ud800 is no character", "ascii": True},
        status="error", tokens=3, events=3, error="? is no character",
    ),
    "a text with half a character": case({"words": ("\ud83d", "x\udc00"), "ascii": True}),
    "a finish reason with half a character": case({"finish": "\udfff", "ascii": True}, finish="?"),
    "more tokens than can be": case({"usage_more": 10**12}, counted_by="events"),
    # events and reads
    "three events in one segment": case({"merge": 3, "itl_s": 0.01}),
    "all events in one segment": case({"merge": 8, "last_in_one": True}),
    "three tokens in an event": case({"per_event": 3}, events=3, n=None),
    "three tokens in an event, usage on every chunk": case(
        {"per_event": 3, "usage": "every"}, events=3, n=[3, 3, 2], counted_by="continuous usage"
    ),
    "three tokens in an event, no usage": case({"per_event": 3, "usage": None}, events=3, tokens=3),
    "cut into single bytes": case({"cut_bytes": 1, "odd": True}),
    "cut into pieces with pauses": case({"cut_bytes": 37, "pause_s": 0.0005, "odd": True}),
    "cut into pieces with CRLF": case({"cut_bytes": 5, "pause_s": 0.0, "odd": True, "eol": "\r\n"}),
    "HTTP chunks of three bytes": case({"chunk_bytes": 3, "odd": True}),
    "HTTP chunks with extensions and a trailer": case({"extensions": True, "chunk_bytes": 50}),
    "characters of many bytes and separators inside texts": case({"odd": True}),
    "last token, usage and [DONE] in one segment": case({"last_in_one": True}),
    # texts
    "reasoning first": case({"reasoning": 3}, api="chat", reasoning=3),
    "reasoning under the other name": case({"reasoning": 3, "reasoning_key": "reasoning"}, api="chat", reasoning=3),
    "reasoning only": case({"reasoning": 8}, api="chat", reasoning=8),
    "a tool call": case({"tools": "tool_calls"}, api="chat"),
    "a function call": case({"tools": "function_call"}, api="chat"),
    "an empty text at the beginning": case({"empty": (0,)}, events=7),
    "an empty text in the middle": case({"empty": (3,)}, events=7),
    "an empty text at the end": case({"empty": (7,)}, events=7),
    "every second text is empty": case({"empty": (1, 3, 5, 7)}, events=4, n=[2, 2, 2, 2]),
    "no text key where there is no text": case({"empty": (3,), "empty_key": False}, events=7),
    "empty texts, usage on every chunk": case({"empty": (0, 3), "usage": "every"}, n=[1] * 8),
    "no text at all": case({"empty": ALL}, status="empty", events=0, tokens=None, error="no text"),
    "no text at all, usage on every chunk": case({"empty": ALL, "usage": "every"}),
    # usage
    "no usage": case({"usage": None}, counted_by="events"),
    "usage on the finish chunk": case({"usage": "finish"}, counted_by="usage"),
    "usage on every chunk": case({"usage": "every"}, counted_by="continuous usage", n=[1] * 8),
    "usage beside choices, after the finish": case({"usage": "beside"}, counted_by="usage"),
    "usage beside choices without text": case({"usage": "beside", "empty_key": False}, counted_by="usage"),
    "usage on the last token": case({"usage": "last token"}, counted_by="usage"),
    "cached tokens": case({"cached": 4}, cached=4),
    "timings of llama.cpp": case({"timings": "llama.cpp", "cached": 3}, cached=3, prefill_s=0.0125, decode_s=0.05),
    "metrics of vLLM": case({"timings": "vllm"}, queue_s=0.003, ttft_s=0.021),
    # ends
    "no [DONE]": case({"done": False}),
    "[DONE] without a finish reason": case({"finish": None}, status="truncated", finish=None),
    "neither [DONE] nor a finish reason": case({"finish": None, "done": False}, status="truncated"),
    "content filter": case({"finish": "content_filter"}, status="truncated", finish="content_filter"),
    "finish reason missing instead of null": case({"finish_null": False}, finish="length"),
    "finish reason on the last token": case({"finish_with_token": True}, finish="length"),
    "finish reason and usage on the last token": case({"finish_with_token": True, "usage": "last token"}),
    "stop": case({"finish": "stop", "tokens": 5}, tokens=5, events=5, finish="stop"),
    "fewer tokens than requested": case({"tokens": 3}, tokens=3, events=3),
    "more tokens than requested": case({"tokens": 20}, tokens=20, events=20, counted_by="events"),
    "no tokens": case({"tokens": 0}, status="empty", error="no text", **NOTHING),
    "bytes after [DONE]": case({"trailing": ": bye\n\ndata: {'not': json}\n\ndata: x"}),
    "no empty line at the end": case({"last_blank": False}),
    "no empty line and no [DONE]": case({"last_blank": False, "done": False}, counted_by="usage"),
    "no empty line after the finish": case({"last_blank": False, "done": False, "usage": None}, finish="length"),
    # role chunks
    "role at once": case({"role": "early", "ttft_s": 0.05}, api="chat"),
    "role at once, content null": case({"role": "early", "role_content": None, "ttft_s": 0.05}, api="chat"),
    "role with the first token, content null": case({"role_content": None}, api="chat"),
    "no role chunk": case({"role": None}, api="chat"),
    # forms
    "CRLF": case({"eol": "\r\n"}),
    "CR": case({"eol": "\r"}),
    "line ends mixed": case({"eol": "mixed"}),
    "no space after data:": case({"space": False}),
    "pings before every second token": case({"pings": 2}),
    "pings with CRLF": case({"pings": 1, "eol": "\r\n"}),
    "event, id and retry lines": case({"fields": True}),
    "data over several lines": case({"split_data": True}),
    "data over several lines ended by CR": case({"split_data": True, "eol": "\r"}),
    "keys left out": case({"bare": True}),
    "choices numbered by token": case({"numbered": True}),
    # HTTP
    "close is the end": case({"framing": "close"}),
    "close is the end, no [DONE]": case({"framing": "close", "done": False}),
    "a length": case({"framing": "length"}),
    "the head with the first token": case({"late_head": True, "ttft_s": 0.05}),
    "early hints before the head": case({"early_hints": True}),
    "content type without charset": case({"content_type": "text/event-stream"}),
    "content type in capitals": case({"content_type": "Text/Event-Stream;Charset=UTF-8"}),
    "plain JSON for a stream": case({"plain": True}, status="error", error="does not stream", **NOTHING),
    "plain JSON as agreed": case({}, {"stream": False}, events=1),
    "plain JSON as agreed, no usage": case({"usage": None}, {"stream": False}, events=1, tokens=None),
}  # fmt: skip

QUIRKS: dict[str, dict] = {
    "odd texts": {"odd": True},
    "reasoning": {"reasoning": 3},
    "tool calls": {"tools": "tool_calls"},
    "empty at 0": {"empty": (0,)},
    "empty in the middle": {"empty": (2, 3, 5), "empty_key": False},
    "three tokens an event": {"per_event": 3},
    "role at once": {"role": "early", "role_content": None},
    "no role": {"role": None},
    "stop": {"finish": "stop", "tokens": 5},
    "no finish reason": {"finish": None},
    "finish missing, not null": {"finish_null": False},
    "finish with the token": {"finish_with_token": True},
    "no usage": {"usage": None},
    "usage on finish": {"usage": "finish"},
    "usage on every chunk": {"usage": "every"},
    "usage beside choices": {"usage": "beside"},
    "usage on the last token": {"usage": "last token"},
    "timings": {"timings": "llama.cpp", "cached": 3},
    "numbered choices": {"numbered": True},
    "no [DONE]": {"done": False},
    "CRLF": {"eol": "\r\n"},
    "CR": {"eol": "\r"},
    "mixed": {"eol": "mixed"},
    "no space": {"space": False},
    "pings": {"pings": 2},
    "fields": {"fields": True},
    "data over lines": {"split_data": True},
    "bare": {"bare": True},
    "no last empty line": {"last_blank": False},
    "trailing": {"trailing": ": x\n\ndata: nothing\n\n"},
    "merged": {"merge": 3},
    "last in one": {"last_in_one": True},
    "until close": {"framing": "close"},
    "length": {"framing": "length"},
    "small HTTP chunks": {"chunk_bytes": 4},
    "extensions": {"extensions": True},
    "early hints": {"early_hints": True},
    "error event": {"error_at": 4},
    "malformed": {"malformed_at": 4},
    "JSON cut short": {"cut_json_at": 4},
    "closed in the middle": {"fault": "close", "fault_at": 4},
    "closed before the finish": {"fault": "close", "fault_at": 8},
}
BREAKS = ("error event", "malformed", "JSON cut short")
CHAT_ONLY = ("reasoning", "tool calls", "role at once", "no role")


WIRE: dict[str, dict] = {
    "late head": {"late_head": True},
    "cut into pieces": {"cut_bytes": 100},
    "cut small, with pauses": {"cut_bytes": 301, "pause_s": 0.0002},
    "a stall": {"fault": "stall", "fault_at": 2, "fault_s": 0.03},
    "paced": {"ttft_s": 0.01, "itl_s": 0.002},
    "reset before the head": {"fault": "reset"},
    "reset in the middle": {"fault": "reset", "fault_at": 2},
    "closed before the head": {"fault": "close"},
}
"""What only a network can do."""


def fields_of(names: Sequence[str]) -> dict:
    """The fields of a script that has all these quirks."""
    return {k: v for name in names for k, v in (QUIRKS | WIRE)[name].items()}


def pairs(more: Mapping[str, dict] | None = None) -> list[tuple[str, str]]:
    """Two quirks that do not name the same field, and of which at most one breaks the stream.

    With `more`, only those of which one or both are among them.
    """
    table = QUIRKS | (more or {})
    return [
        (a, b)
        for a, b in combinations(table, 2)
        if (not more or a in more or b in more)
        and not table[a].keys() & table[b].keys()
        and not (a in BREAKS and b in BREAKS)
        and {a, b} != {"no [DONE]", "trailing"}  # only behind [DONE] may anything come
    ]
