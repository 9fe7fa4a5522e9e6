"""What a scripted server answers, to the byte, and what a client must make of it by the specification of endpoints.

Nothing here does I/O: `answer(script, api, body)` gives the frames with the times at which they are due, and
`expected(script, api, body)` what the client owes, counted from the script and never from the client's code.
"""

import json
from dataclasses import dataclass, field, replace
from itertools import accumulate

WORDS = tuple(f"tok{i} " for i in range(7))
ODD = ("é", "漢字", "😀", "\u2028", "x\u2029y", "\u0085", "data: [DONE]", 'a "quoted\\" word\r\n\r\n', "\ufeff", "़ि")
"""Texts that break clients which split lines at the wrong bytes or decode before an event is complete."""
REJECTED = (429, 503, 529)


@dataclass(frozen=True, slots=True)
class Script:
    """How a server answers. The defaults are a well-behaved server; every field is one quirk or one fault.

    `tokens` None answers as many as were requested. Events are counted from 0; `fault` ("reset", "close", "silence",
    "stall", "garbage": bytes that are no HTTP) happens before event `fault_at`, or before the head when that is None;
    a count of events means the end of the answer, before its finish. Times are in seconds after the request.
    """

    # the answer
    tokens: int | None = None
    ttft_s: float = 0.0
    itl_s: float = 0.0
    odd: bool = False
    words: tuple[str, ...] = WORDS
    reasoning: int = 0
    reasoning_key: str = "reasoning_content"
    tools: str | None = None
    empty: tuple[int, ...] = ()
    empty_key: bool = True
    per_event: int = 1
    role: str | None = "first"
    role_content: str | None = ""
    finish: str | None = "length"
    finish_null: bool = True
    finish_with_token: bool = False
    usage: str | None = "own"
    usage_more: int = 0
    hidden: int = 0
    cached: int | None = None
    overhead: int = 0
    timings: str | None = None
    numbered: bool = False
    done: bool = True
    # its form
    eol: str = "\n"
    space: bool = True
    pings: int = 0
    fields: bool = False
    split_data: bool = False
    ascii: bool = False
    bare: bool = False
    last_blank: bool = True
    trailing: str = ""
    merge: int = 1
    last_in_one: bool = False
    # its framing
    framing: str = "chunked"
    chunk_bytes: int | None = None
    extensions: bool = False
    cut_bytes: int | None = None
    pause_s: float = 0.0
    late_head: bool = False
    left_open: bool = False
    early_hints: bool = False
    content_type: str = "text/event-stream; charset=utf-8"
    # its faults
    status: int = 200
    retry_after: str | None = None
    location: str | None = None
    refuse: tuple[str, ...] = ()
    refuse_status: int = 422
    plain: bool = False
    page: str | None = None
    error_at: int | None = None
    error_event: bool = False
    error_text: str = "the engine died of grief"
    malformed_at: int | None = None
    cut_json_at: int | None = None
    fault: str | None = None
    fault_at: int | None = None
    fault_s: float = 0.0
    stall_ping_s: float | None = None
    every: int = 1
    echo: bool = False
    # the server around it
    kept_s: float | None = None
    close_next: int = 0
    slots: int | None = None
    model: str = "m"
    models: int | None = 1
    tokenize: bool = False
    metrics: str | None = None
    needs_key: str | None = None

    def calm(self) -> "Script":
        """The same server on a good day: quirks stay, faults do not happen."""
        return replace(
            self,
            ttft_s=0.0,
            itl_s=0.0,
            status=200,
            plain=False,
            page=None,
            error_at=None,
            malformed_at=None,
            cut_json_at=None,
            fault=None,
            close_next=0,
            every=1,
            left_open=False,
            location=None,
            tokens=None,
            finish=self.finish or "length",
            echo=False,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """An event that shows or counts tokens: `tokens` of them, the last one `end` bytes into its frame."""

    end: int
    tokens: int
    text: str
    counted: bool = False

    @property
    def seen(self) -> bool:
        """Whether the event is a token event: text, or usage that grew."""
        return bool(self.text) or (self.counted and self.tokens > 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes that are written together, `due_s` after the request; `first` events came before it."""

    due_s: float
    data: bytes
    marks: tuple[Mark, ...] = ()
    first: int = 0
    tail: bool = False
    usage: int | None = None
    finish: str | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole answer: head, frames as they go over the wire, and the bytes that end it."""

    head: bytes
    frames: tuple[Frame, ...]
    end: bytes = b""
    keeps: bool = True


@dataclass(frozen=True, slots=True)
class Expected:
    """What the client owes: status, tokens, token events, how they were counted, and words in the error."""

    status: str
    tokens: int = 0
    events: int = 0
    counted_by: str | None = None
    http: int | None = 200
    finish: str | None = None
    error: str | None = None


def requested_tokens(body: dict) -> int:
    """How many tokens a request asks for."""
    limit = body.get("max_completion_tokens")
    return limit if limit is not None else body.get("max_tokens", 16)


def prompt_tokens(script: Script, body: dict) -> int:
    """Ids count themselves, words count one each, and a chat has the template's tokens on top."""
    prompt = body.get("prompt")
    if prompt is None:
        texts = [m.get("content") or "" for m in body.get("messages", ())]
        return script.overhead + sum(len(t.split()) for t in texts)
    if isinstance(prompt, str):
        return script.overhead + len(prompt.split())
    if prompt and isinstance(prompt[0], list):
        return script.overhead + len(prompt[0])
    return script.overhead + len(prompt)


# --- the events of a stream --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writer:
    """Makes events of one answer; `made` counts the token-carrying events so far, `total` their tokens."""

    script: Script
    api: str
    prompt: int
    made: int = 0
    total: int = 0
    frames: list[Frame] = field(default_factory=list)

    def chunk(self, delta: dict, finish: str | None = None, choices: bool = True) -> dict:
        s = self.script
        chat = self.api == "chat"
        if s.bare and not choices:
            return {"choices": None}
        choice: dict = {"index": self.made if s.numbered else 0}
        choice |= {"delta": delta} if chat else {"text": delta["content"]} if "content" in delta else {}
        if finish is not None or s.finish_null:
            choice["finish_reason"] = finish
        out: dict = {
            "id": "cmpl-1",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1700000000,
            "model": s.model,
        }
        if s.bare:
            out, choice = {}, {k: v for k, v in choice.items() if k != "index"}
        return out | {"choices": [choice] if choices else []}

    def usage(self) -> dict:
        usage: dict = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.total + self.script.usage_more + self.script.hidden,
            "total_tokens": self.prompt + self.total + self.script.hidden,
        }
        if self.script.cached is not None and self.script.timings != "llama.cpp":
            usage["prompt_tokens_details"] = {"cached_tokens": self.script.cached}
        if self.script.hidden:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.script.hidden}
        elif self.script.reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": min(self.script.reasoning, self.total)}
        return usage

    def event(self, value: dict | str, name: str | None = None) -> bytes:
        """One server-sent event of this value, in the form the script names."""
        s = self.script
        eol = s.eol if s.eol != "mixed" else ("\n", "\r\n", "\r")[len(self.frames) % 3]
        if isinstance(value, str):
            texts = [value]
        elif s.split_data:
            texts = json.dumps(value, ensure_ascii=s.ascii, indent=1).split("\n")
        else:
            texts = [json.dumps(value, ensure_ascii=s.ascii, separators=(",", ":"))]
        lines = [f"event: {name}"] if name else []
        if s.fields:
            lines += ["event: message", f"id: {len(self.frames)}", "retry: 1000"]
        lines += [("data: " if s.space else "data:") + t for t in texts]
        return (eol.join(lines) + eol + eol).encode()

    def ping(self) -> bytes:
        s = self.script
        eol = s.eol if s.eol != "mixed" else ("\n", "\r\n", "\r")[len(self.frames) % 3]
        return f": ping{eol}{eol}".encode() if s.pings and self.made % s.pings == 0 else b""


def _delta(script: Script, n: int, text: str, api: str) -> dict:
    if api != "chat":
        return {} if not text and not script.empty_key else {"content": text}
    if n < script.reasoning:
        return {script.reasoning_key: text} | ({"content": None} if script.reasoning_key == "reasoning" else {})
    if script.tools == "tool_calls":
        function = {"name": "look", "arguments": ""} if n == 0 else {"arguments": text}
        return {"tool_calls": [{"index": 0, "function": function}]}
    if script.tools == "function_call":
        return {"function_call": {"name": "look"} if n == 0 else {"arguments": text}}
    return {} if not text and not script.empty_key else {"content": text}


def _body(script: Script, api: str, body: dict) -> list[Frame]:
    """The frames of the stream without HTTP framing, one per event or more where the script joins them."""
    n = script.tokens if script.tokens is not None else requested_tokens(body)
    w = _Writer(script, api, prompt_tokens(script, body))
    texts = ODD if script.odd else script.words
    role = b""
    if script.role and api == "chat":
        role = w.event(w.chunk({"role": "assistant", "content": script.role_content}))
        if script.role == "early":
            w.frames.append(Frame(0.001, role))
            role = b""
    events = -(-n // script.per_event)
    for k in range(events):
        due_s = script.ttft_s + k * script.itl_s
        data, role = role + w.ping(), b""
        if script.error_at == k:
            w.frames.append(_error_frame(w, due_s, data))
            return w.frames
        if script.malformed_at == k:
            w.frames.append(Frame(due_s, data + w.event("this is no JSON {"), first=k, broken=True))
            return [*w.frames, *_tail(w, due_s)]
        count = min(script.per_event, n - w.total)
        text = "" if k in script.empty else "".join(texts[(w.total + i) % len(texts)] for i in range(count))
        last = k == events - 1
        delta = _delta(script, w.total, text, api)
        w.total += count
        chunk = w.chunk(delta, script.finish if script.finish_with_token and last else None)
        rides = script.usage == "every" or (script.usage == "last token" and last)
        if rides:
            chunk["usage"] = w.usage()
        elif script.usage and script.finish_null:
            chunk["usage"] = None
        event = w.event(chunk)
        if script.cut_json_at == k:
            half = json.dumps(chunk, ensure_ascii=False)[:25]
            w.frames.append(Frame(due_s, data + w.event(half), first=k, broken=True))
            return [*w.frames, *_tail(w, due_s)]
        shown = "look" if script.tools and w.api == "chat" and k == 0 else text
        data += event
        mark = Mark(len(data), count, shown, counted=script.usage == "every")
        finish = script.finish if script.finish_with_token and last else None
        w.frames.append(Frame(due_s, data, (mark,), first=k, usage=w.total if rides else None, finish=finish))
        w.made += 1
    due_s = script.ttft_s + max(events - 1, 0) * script.itl_s
    if role:
        w.frames.append(Frame(due_s, role))
    return _joined(script, w.frames, _tail(w, due_s))


def _error_frame(w: _Writer, due_s: float, data: bytes) -> Frame:
    error = {"error": {"message": w.script.error_text, "type": "server_error", "code": 500}}
    data += w.event(error, "error" if w.script.error_event else None) + w.event("[DONE]")
    return Frame(due_s, data, first=w.made, broken=True)


def _tail(w: _Writer, due_s: float) -> list[Frame]:
    """Finish, usage, the word DONE, and what some send after it."""
    s = w.script
    frames = []

    def add(value: dict | str, usage: int | None = None, finish: str | None = None) -> None:
        frames.append(Frame(due_s, w.event(value), (), w.made, True, usage, finish))

    if s.finish and not s.finish_with_token:
        chunk = w.chunk({} if w.api == "chat" or not s.empty_key else {"content": ""}, s.finish)
        rides = s.usage in ("finish", "every")
        if rides:
            chunk["usage"] = w.usage()
        if s.timings == "llama.cpp":
            cached = {} if s.cached is None else {"cache_n": s.cached}
            chunk["timings"] = {"prompt_ms": 12.5, "predicted_ms": 50.0, "predicted_n": w.total, **cached}
        add(chunk, w.total if rides else None, s.finish)
    if s.usage in ("own", "beside", "every"):
        chunk = w.chunk({"content": ""} if s.empty_key else {}, None, choices=s.usage == "beside")
        chunk["usage"] = w.usage()
        if s.timings == "vllm":
            chunk["metrics"] = {"queue_time_ms": 3.0, "time_to_first_token_ms": 21.0}
        add(chunk, w.total)
    if s.done:
        add("[DONE]")
    if s.trailing:
        frames.append(Frame(due_s, s.trailing.encode(), (), w.made, True))
    if not s.last_blank and frames:
        frames[-1] = replace(frames[-1], data=frames[-1].data.rstrip(b"\r\n"))
    return frames


def _join(frames: list[Frame]) -> Frame:
    """One frame of several, due when the last of them is."""
    offsets = [0, *accumulate(len(f.data) for f in frames)]
    marks = tuple(replace(m, end=m.end + o) for f, o in zip(frames, offsets, strict=False) for m in f.marks)
    usages = [f.usage for f in frames if f.usage is not None]
    finishes = [f.finish for f in frames if f.finish]
    return Frame(
        frames[-1].due_s,
        b"".join(f.data for f in frames),
        marks,
        frames[0].first,
        all(f.tail for f in frames),
        usages[-1] if usages else None,
        finishes[-1] if finishes else None,
        any(f.broken for f in frames),
    )


def _joined(script: Script, frames: list[Frame], tail: list[Frame]) -> list[Frame]:
    size = max(script.merge, 1)
    merged = [_join(frames[i : i + size]) for i in range(0, len(frames), size)]
    if script.last_in_one and merged and tail:
        return [*merged[:-1], _join([merged[-1], *tail])]
    return [*merged, *tail]


# --- HTTP ---------------------------------------------------------------------------------------------------------

REASONS = {200: "OK", 307: "Temporary Redirect", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           422: "Unprocessable Content", 429: "Too Many Requests", 500: "Internal Server Error",
           503: "Service Unavailable", 529: "Overloaded"}  # fmt: skip


def head(status: int, headers: dict[str, str]) -> bytes:
    """The head of an HTTP/1.1 answer."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Odd')}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def whole(status: int, value: object, **more: str) -> bytes:
    """An answer in one piece: JSON, or text as it is."""
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    kind = "text/plain" if isinstance(value, str) else "application/json"
    headers = {"Content-Type": kind, "Content-Length": str(len(data))}
    return head(status, headers | {k.replace("_", "-"): v for k, v in more.items()}) + data


def error_body(message: str, kind: str = "invalid_request_error", param: str | None = None) -> dict:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": None}}


def _chunked(script: Script, frame: Frame) -> Frame:
    """The frame as HTTP chunks of `chunk_bytes`, or as one; the marks move with their bytes."""
    size = script.chunk_bytes or len(frame.data) or 1
    pieces = [frame.data[i : i + size] for i in range(0, len(frame.data), size)]
    extension = ";name=value" if script.extensions else ""
    heads = [f"{len(p):x}{extension}\r\n".encode() for p in pieces]
    starts = [0, *accumulate(len(h) + len(p) + 2 for h, p in zip(heads, pieces, strict=True))]

    def moved(end: int) -> int:
        i = (end - 1) // size
        return starts[i] + len(heads[i]) + end - i * size

    data = b"".join(h + p + b"\r\n" for h, p in zip(heads, pieces, strict=True))
    return replace(frame, data=data, marks=tuple(replace(m, end=moved(m.end)) for m in frame.marks))


def answer(script: Script, api: str, body: dict) -> Plan:
    """The answer to a request that streams."""
    if script.status != 200:
        more = {"Retry_After": script.retry_after} if script.retry_after is not None else {}
        more |= {"Location": script.location} if script.location else {}
        data = whole(script.status, error_body("the queue is full of regrets", "overloaded"), **more)
        return Plan(data, ())
    if script.page is not None:
        data = script.page.encode()
        return Plan(head(200, {"Content-Type": "text/html", "Content-Length": str(len(data))}) + data, ())
    if script.plain or not body.get("stream", False):
        return Plan(whole(200, plain(script, api, body)), ())
    frames = _body(script, api, body)
    headers = {"Content-Type": script.content_type, "Cache-Control": "no-cache"}
    if script.framing == "close":
        return Plan(_hints(script) + head(200, headers | {"Connection": "close"}), tuple(frames), keeps=False)
    if script.framing == "length":
        length = str(sum(len(f.data) for f in frames))
        return Plan(_hints(script) + head(200, headers | {"Content-Length": length}), tuple(frames))
    end = b"0\r\nX-Trailer: yes\r\n\r\n" if script.extensions else b"0\r\n\r\n"
    headers |= {"Transfer-Encoding": "chunked"}
    return Plan(_hints(script) + head(200, headers), tuple(_chunked(script, f) for f in frames if f.data), end)


def _hints(script: Script) -> bytes:
    return b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" if script.early_hints else b""


def plain(script: Script, api: str, body: dict) -> dict:
    """The answer to a request that does not stream."""
    n = script.tokens if script.tokens is not None else requested_tokens(body)
    w = _Writer(script, api, prompt_tokens(script, body), total=n)
    text = "".join(WORDS[i % len(WORDS)] for i in range(n))
    content = {"message": {"role": "assistant", "content": text}} if api == "chat" else {"text": text}
    choice = {"index": 0, **content, "finish_reason": script.finish}
    out = {"id": "1", "object": "chat.completion", "created": 1, "model": script.model, "choices": [choice]}
    return out | ({"usage": w.usage()} if script.usage else {})


# --- what the client owes ------------------------------------------------------------------------------------------


def faulted(script: Script, frames: tuple[Frame, ...] | list[Frame]) -> int:
    """How many frames go out before the fault; all of them where none happens."""
    if script.fault is None:
        return len(frames)
    if script.fault_at is None:
        return 0
    for i, f in enumerate(frames):
        if f.marks and f.first + len(f.marks) > script.fault_at:
            return i
        if f.tail and f.first >= script.fault_at:
            return i
    return len(frames)


def expected(script: Script, api: str, body: dict) -> Expected:
    """What the specification says of this answer. A script that falls silent needs a client with a limit."""
    if script.status != 200:
        return Expected("rejected" if script.status in REJECTED else "error", http=script.status)
    if script.page is not None or script.plain:
        return Expected("error", error="stream" if script.plain else None)
    frames = _until_broken(answer(script, api, body).frames)
    cut = script.fault in ("reset", "close", "silence", "garbage")
    sent = frames[: faulted(script, frames)] if cut else frames
    before_head = cut and (script.fault_at is None or (script.late_head and not sent))
    if before_head:
        ends = "timeout" if script.fault == "silence" else "error"
        return Expected(ends, http=None)
    marks = [m for f in sent for m in f.marks]
    seen = [m for m in marks if m.seen]
    usages = [f.usage for f in sent if f.usage is not None]
    finishes = [f.finish for f in sent if f.finish]
    tokens, by = (usages[-1], "usage") if usages else (len(seen), "events")
    if script.usage == "every" and usages:
        by = "continuous usage"
    requested = requested_tokens(body)
    if tokens > requested + 1 + requested // 100:  # no count that can be: as many as there are events
        tokens, by = len(seen), "events"
    status, error = _status(script, seen, finishes, cut, body, broken=any(f.broken for f in sent))
    return Expected(status, tokens, len(seen), by, 200, finishes[-1] if finishes else None, error)


def _until_broken(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Nothing counts that comes after an event that cannot be read."""
    for i, f in enumerate(frames):
        if f.broken:
            return frames[: i + 1]
    return frames


def _status(
    script: Script, seen: list[Mark], finishes: list[str], cut: bool, body: dict, *, broken: bool
) -> tuple[str, str | None]:
    if broken:
        return "error", "grief" if script.error_at is not None else None
    if script.fault == "silence" and cut:
        return "timeout", None
    if script.fault in ("reset", "garbage"):
        return "error", None
    if script.fault == "close" and script.framing == "length":
        return "error", None
    if not finishes or finishes[-1] == "content_filter":
        return "truncated", None
    if not seen and requested_tokens(body) > 0:
        return "empty", "no text"
    return "ok", None
