"""What is sent: the bytes of a request, built before they are needed, so that sending is one write.

The fields of a request that can be left out, and what a server accepts and tells of itself: found before the run, and
kept in a file by which the runs of one command share it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
import numpy as np

from harness.api import Content, ExactWords, RecordedContent, Request, TextContent
from harness.data.storage import write_json
from harness.errors import UsageError
from harness.version import __version__

Api = Literal["chat", "completions"]
PATHS: Mapping[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
SALT_TOKENS = 4
RESTS = 4096
"""Bodies without their prompt that are kept, one for each output length: half of what building one takes."""
SMALL_VOCABULARY = 1000  # no model in use has fewer tokens
_FILLED = re.compile(r"\{(tag|priority|session|turn|slo_ttft_s|slo_tpot_s|slo_e2e_s|slo_task_s)\}")
"""What the value of a header has of each request: its tier (tag), priority and bounds."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


_SHORTER = "answers may be shorter than requested"
SPELLING = {"include_usage": "(include_usage|stream_options)"}
Mode = Literal["off", "short"]
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
Piece: TypeAlias = "str | list[int]"


class Message(NamedTuple):
    """What one side writes: text or token ids, and how many tokens of the plan it stands for."""

    role: Literal["user", "assistant"]
    piece: Piece
    tokens: int


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The fields of a request: those of the user's options, and after the probe those that the server accepts.

    `prompt` says whether token ids or text are sent, `vocab_size` below which number the ids lie (the probe settles
    it where it is left open). `length_field` is the field that bounds the answer. `temperature`, `top_p`, `seed`
    and `stop` are sent only when named. `extra` is merged into the body last, `headers` likewise into the headers.
    `salt` opens every prompt, so that a prefix cache that an earlier run has warmed does not help; None leaves it
    out. `overhead_tokens` is what the server adds to every prompt (template): it is taken off the planned
    text. `affinity` names the session of a request in headers, for routers that keep conversations together.
    `token_ids` asks for those of the answer, which follow-ups repeat.
    """

    model: str = ""
    api: Api = "chat"
    stream: bool = True
    prompt: Literal["ids", "text"] = "text"
    vocab_size: int | None = None
    length_field: Literal["max_completion_tokens", "max_tokens"] | None = None
    include_usage: bool = True
    continuous_usage: bool = True
    ignore_eos: bool = True
    min_tokens: bool = False
    generation_config: bool = False
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    salt: str | None = None
    overhead_tokens: int = 0
    affinity: bool = False
    token_ids: bool = False

    @property
    def length(self) -> str:
        """The field that bounds the answer: `max_completion_tokens` in chat unless the server ignores it."""
        return self.length_field or ("max_completion_tokens" if self.api == "chat" else "max_tokens")

    @property
    def enforces_length(self) -> bool:
        """Whether a field asks for answers of exactly the requested length, and none asks for an earlier end."""
        ends = self.stop or any(self.extra.get(name) for name in ("stop", "stop_token_ids"))
        return not ends and (self.ignore_eos or self.min_tokens or self.generation_config)


@dataclass(frozen=True, slots=True, repr=False)
class Builder:
    """Makes the bytes of requests. The bytes on the wire are `first(url)` and then `rest(request)`, in one write."""

    ask: RequestFormat
    content: Content
    key: str | None = None
    _same: tuple[tuple[str, str], ...] = field(init=False, compare=False)  # the headers that all requests have
    _lines: str = field(init=False, compare=False)
    _names: frozenset[str] = field(init=False, compare=False)  # of the user's headers, in lower case
    _recorded: RecordedContent | None = field(init=False, compare=False)
    _rests: dict[tuple[str | None, int, int], bytes] = field(init=False, compare=False)  # by model, tokens, answers

    def __post_init__(self) -> None:
        names = frozenset(name.lower() for name, _ in self.ask.headers)
        usual = [pair for pair in fixed_headers(self.key, stream=self.ask.stream) if pair[0].lower() not in names]
        same = (pair for pair in self.ask.headers if not _FILLED.search(pair[1]))
        object.__setattr__(self, "_same", (*usual, *same))
        object.__setattr__(self, "_lines", "".join(f"{name}: {value}\r\n" for name, value in self._same))
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_rests", {})
        object.__setattr__(self, "_recorded", self.content if isinstance(self.content, RecordedContent) else None)

    def __repr__(self) -> str:
        return f"<Builder for {self.ask.api} of {self.ask.prompt}>"

    def first(self, url: str, *, proxy: bool = False) -> bytes:
        """Request line and Host; for a `proxy` with the whole URL."""
        parts = urlsplit(url)
        path = parts.path.rstrip("/") + PATHS[self.ask.api] + (f"?{parts.query}" if parts.query else "")
        target = f"{parts.scheme}://{host_header(parts)}{path}" if proxy else path
        return f"POST {target} HTTP/1.1\r\nHost: {host_header(parts)}\r\n".encode("ascii")

    def rest(self, request: Request, messages: Sequence[Message] | None = None) -> bytes:
        """The other headers, the empty line and the body, whose prompt are `messages` where they are given.

        Raises ValueError for a prompt that the content cannot make.
        """
        body = self.body(request, messages)
        lines = "".join([f"{name}: {value}\r\n" for name, value in self._own(request)])
        return f"{self._lines}{lines}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body

    def headers(self, request: Request) -> list[tuple[str, str]]:
        """Headers except Host and Content-Length; the user's take precedence."""
        return [*self._same, *self._own(request)]

    def _own(self, request: Request) -> list[tuple[str, str]]:
        """The headers of this request alone."""
        pairs = [("x-request-id", str(request.id))]
        if self.ask.affinity and request.session is not None:
            name = f"session-{request.session}"
            pairs += [("x-session-affinity", name), ("x-correlation-id", name)]
        pairs = [pair for pair in pairs if pair[0] not in self._names]
        for name, template in self.ask.headers:
            text, values = template, {field: getattr(request, field) for field in _FILLED.findall(template)}
            if values and None not in values.values():
                for field, value in values.items():  # a tag is text of a trace, and may hold anything
                    text = text.replace(f"{{{field}}}", quote(str(value), safe=" "))
                pairs.append((name, text))
        return pairs

    def body(self, request: Request, messages: Sequence[Message] | None = None) -> bytes:
        """The JSON body. Ids are put in by msgspec: 100,000 of them hold others up for 3 ms, with `json` for 10."""
        if self._recorded is not None:
            return _json(self.fields(request, messages))
        listed: object
        if self.ask.prompt == "ids" and messages is not None:
            name, listed = "prompt", [*chain.from_iterable(cast("list[int]", message.piece) for message in messages)]
        else:
            ((name, listed),) = self._prompt(request, messages).items()
        encoded = msgspec.json.encode(listed) if self.ask.prompt == "ids" else _encode(listed).encode()
        # all that `_around` reads of a request
        key = request.extra.model if request.extra else None, request.output_tokens, request.answers
        if (rest := self._rests.get(key)) is None:
            if len(self._rests) >= RESTS:
                self._rests.clear()
            rest = self._rests[key] = _json(self._around(request, {name: []}))
        return rest.replace(b'"%b":[]' % name.encode(), b'"%b":%b' % (name.encode(), encoded), 1)

    def fields(self, request: Request, messages: Sequence[Message] | None = None) -> dict[str, object]:
        """The body as plain data."""
        return self._around(request, self._prompt(request, messages))

    def _around(self, request: Request, prompt: Mapping[str, object]) -> dict[str, object]:
        ask = self.ask
        model = (request.extra and request.extra.model) or ask.model
        body: dict[str, object] = {"model": model} if model else {}
        body |= prompt
        body["stream"] = ask.stream
        if ask.stream and ask.include_usage:
            body["stream_options"] = {"include_usage": True}
            if ask.continuous_usage and request.answers == 1:  # of several it would be that of one
                body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        body[ask.length] = request.output_tokens
        if request.answers > 1:
            body["n"] = request.answers
        if ask.token_ids:
            body["return_token_ids"] = True
        if ask.ignore_eos:
            body["ignore_eos"] = True
        if ask.min_tokens:
            body["min_tokens"] = request.output_tokens
        if ask.generation_config:
            exact = {"min_new_tokens": request.output_tokens, "max_new_tokens": request.output_tokens}
            body["generation_config"] = json.dumps(exact)
        params = {"temperature": ask.temperature, "top_p": ask.top_p, "seed": ask.seed, "stop": list(ask.stop) or None}
        body |= {name: value for name, value in params.items() if value is not None}
        return _merged(body, ask.extra)

    def _prompt(self, request: Request, messages: Sequence[Message] | None) -> Mapping[str, object]:
        if self._recorded is not None:
            return _in_form_of(self.ask.api, self._recorded.fields(request))
        if self.ask.prompt == "ids":
            return {"prompt": salted_ids(self.content, request, self.ask).tolist()}
        conversation = messages or (Message("user", salted_text(self.content, request, self.ask), 0),)
        if self.ask.api == "chat":
            return {"messages": [{"role": message.role, "content": message.piece} for message in conversation]}
        return {"prompt": "".join(str(message.piece) for message in conversation)}


def _in_form_of(api: Api, recorded: Mapping[str, object]) -> Mapping[str, object]:
    """The fields of a recorded request; a text is the one message of a chat. Raises ValueError for a chat as text."""
    if api == "chat" and "messages" not in recorded:
        rest = {name: value for name, value in recorded.items() if name != "prompt"}
        return {"messages": [{"role": "user", "content": recorded["prompt"]}], **rest}
    if api == "completions" and "messages" in recorded:
        raise ValueError("The trace holds messages of chats, which api=completions does not take; use api=chat.")
    return recorded


def _json(fields: Mapping[str, object]) -> bytes:
    return _encode(fields).encode()


def _merged(base: dict[str, object], extra: Mapping[str, object]) -> dict[str, object]:
    """`extra` over `base`, object within object."""
    merged = dict(base)
    for name, value in extra.items():
        under = merged.get(name)
        merged[name] = _merged(under, value) if isinstance(under, dict) and isinstance(value, Mapping) else value
    return merged


def salted_ids(content: Content, request: Request, ask: RequestFormat) -> np.ndarray:
    """The prompt as token ids, the first of them those of the salt: the length stays, what is shared stays shared."""
    size = ask.vocab_size or SMALL_VOCABULARY
    ids = content.token_ids(_shortened(request, ask), size)
    if ask.salt is not None:
        ids, drawn = ids.copy(), _drawn(ask.salt)[: len(ids)]
        ids[: len(drawn)] = [number % min(size, SMALL_VOCABULARY) for number in drawn]
    return ids


def salted_text(content: Content, request: Request, ask: RequestFormat) -> str:
    """The prompt as text, shorter by what the server adds; the salt stands behind a first word that is always the same.

    So the end of a template and what follows it are the same tokens in every prompt, and what is added is constant.
    """
    words = cast("TextContent", content)  # the probe has seen to it; isinstance takes 5 us to see a protocol
    return words.text(_shortened(request, ask), (0, *(() if ask.salt is None else _drawn(ask.salt))))


@lru_cache
def _drawn(salt: str) -> Sequence[int]:
    """`SALT_TOKENS` numbers that belong to a salt."""
    drawn = hashlib.sha256(salt.encode()).digest()
    return [int.from_bytes(drawn[4 * i : 4 * i + 4]) for i in range(SALT_TOKENS)]


def _shortened(request: Request, ask: RequestFormat) -> Request:
    """The request without the tokens that the server will add."""
    if not ask.overhead_tokens:
        return request
    return replace(request, prompt_tokens=max(1, request.prompt_tokens - ask.overhead_tokens))


def fixed_headers(key: str | None, *, stream: bool = True) -> list[tuple[str, str]]:
    """The headers of every request. `identity`: compression would join tokens."""
    headers = [
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream" if stream else "application/json"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", f"bench/{__version__}"),
    ]
    return [("Authorization", f"Bearer {key}"), *headers] if key else headers


def host_header(parts: SplitResult) -> str:
    """Host and port as the Host header has them: the port only when it is not that of the scheme."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    usual = 443 if parts.scheme == "https" else 80
    return host if parts.port in (None, usual) else f"{host}:{parts.port}"


def sound_headers(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The user's headers, checked. Raises UsageError for a name or a value that HTTP does not allow."""
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError(f"'{name}' is not a header name; give --header 'Name: value'.")
        if name.lower() in ("host", "content-length", "transfer-encoding", "connection", "expect", "upgrade"):
            raise UsageError(f"The header {name} is set by the client, by the URL and the request; leave it out.")
        if any(ord(c) < 32 and c != "\t" for c in value) or not value.isprintable() or not value.isascii():
            raise UsageError(f"The value of the header {name} holds characters that HTTP does not allow.")
    names = [name.lower() for name, _ in headers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"The header {twice} is given twice; give it once.")
    return headers


@dataclass(frozen=True, slots=True)
class OptionalField:
    """A field that a server may refuse: the `attribute` of the format that sends it unless it is `off`.

    It is sent only with those in `needs`. `cost` is the effect of leaving it out, where there is one; an `extension` is
    none of OpenAI's fields; `instead` is the field that asks for the same in another way.
    """

    name: str
    attribute: str
    off: object
    cost: str = ""
    needs: tuple[str, ...] = ()
    extension: bool = False
    instead: str = ""

    def is_sent(self, ask: RequestFormat) -> bool:
        """Return whether requests of this format have it."""
        value = ask.length if self.attribute == "length_field" else getattr(ask, self.attribute)
        return value != self.off and all(getattr(ask, name) for name in self.needs)

    def without(self, ask: RequestFormat) -> RequestFormat:
        """Return the format without it."""
        return changed(ask, self.attribute, self.off)


def changed(ask: RequestFormat, attribute: str, value: Any) -> RequestFormat:
    """Return the format with another value of an attribute."""
    return replace(ask, **{attribute: value})


FIELDS: Mapping[str, OptionalField] = {
    each.name: each
    for each in (
        OptionalField(
            "continuous_usage_stats", "continuous_usage", False,
            "tokens are attributed to events by the length of their text", ("stream", "include_usage"), extension=True,
        ),
        OptionalField("return_token_ids", "token_ids", False, "follow-ups repeat no ids of answers", extension=True),
        OptionalField("ignore_eos", "ignore_eos", False, _SHORTER, extension=True, instead="min_tokens"),
        OptionalField("min_tokens", "min_tokens", False, _SHORTER, extension=True, instead="generation_config"),
        OptionalField("generation_config", "generation_config", False, _SHORTER, extension=True),
        OptionalField("max_completion_tokens", "length_field", "max_tokens"),
        OptionalField(
            "include_usage", "include_usage", False,
            "the server reports no token counts: a tokenizer after the run, or the number of events, is used",
            ("stream",),
        ),
        OptionalField("seed", "seed", None, "answers differ from run to run"),
        OptionalField("stop", "stop", (), "answers do not end at the texts named"),
        OptionalField("top_p", "top_p", None, "the server samples from its own share of the tokens"),
        OptionalField("temperature", "temperature", None, "the server samples at its own temperature"),
    )
}  # fmt: skip
"""The fields that can be left out, the least important first."""


class Sent(NamedTuple):
    """A request that was not measured: what it was to find out, and the status of its answer (0: broken off)."""

    purpose: str
    status: int


class Lesson(NamedTuple):
    """A text, and how many tokens the server counted."""

    text: str
    counted: int


class Dropped(NamedTuple):
    """A field that the server refuses, and the effect of leaving it out."""

    field: str
    cost: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Result of the probe. `ask` is the request format from now on. None: not found out.

    `requests` are those that found it. `words` are a token each for the server; else `lessons` teach a content what it
    counts. `overhead_tokens` is what the server counts beyond the planned prompt, `turn_tokens` what it counts in a
    chat beyond their texts for an answer and the message behind it. `at_root`: the routes of the server stand beside
    the `/v1` of its URL. `warnings` are sentences for the user. `ignore_eos` in `describe`: whether the server accepts
    it, None if not sent.
    """

    ask: RequestFormat = field(default_factory=RequestFormat)
    requests: tuple[Sent, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    words: ExactWords | None = None
    overhead_tokens: int | None = None
    turn_tokens: int | None = None
    at_root: bool = False
    max_model_len: int | None = None
    server: str | None = None
    kind: str | None = None
    warnings: tuple[str, ...] = ()

    def describe(self) -> dict[str, object]:
        """Facts for run.json; the caller removes secrets."""
        return {
            "accepted": accepted(self.ask),
            "ignore_eos": self.ask.ignore_eos or (False if "ignore_eos" in dict(self.dropped) else None),
            "dropped": [{"field": name, "cost": cost} for name, cost in self.dropped],
            "prompt": "token ids" if self.ask.prompt == "ids" else "text",
            "max_model_len": self.max_model_len,
            "server": self.server,
            "kind": self.kind,
            "prompt_overhead_tokens": self.overhead_tokens,
            "turn_overhead_tokens": self.turn_tokens,
        }


def accepted(ask: RequestFormat) -> list[str]:
    """The fields beyond model, prompt and stream that are sent."""
    fields = (field.name for field in FIELDS.values() if field.is_sent(ask))
    return list(dict.fromkeys([ask.length, *fields, *ask.extra]))


@dataclass(frozen=True, slots=True)
class Shared:
    """A file of what was found, by the question: `wanted` of these servers, for a kind of content.

    Nothing that may be secret is in it: headers, extra fields and the salt come from the run that reads it. Of headers
    and extra fields it has a hash, because a server may answer to others otherwise; of the salt only its length counts.
    """

    path: Path
    servers: Sequence[str]
    wanted: RequestFormat
    about: Mapping[str, object]

    @property
    def _key(self) -> str:
        salt = self.wanted.salt
        question = [self.servers, asdict(replace(self.wanted, salt=None)), salt and len(salt), self.about]
        return hashlib.sha256(json.dumps(question, default=str).encode()).hexdigest()[:16]

    def read(self) -> tuple[Capabilities, ...]:
        """What an earlier run has found; empty where none sent the same question."""
        if not self.path.exists():
            return ()
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8")).get(self._key, [])
            caps = msgspec.convert(entries, tuple[Capabilities, ...], strict=False)
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(
                f"'{self.path}' is not what a probe has found ({type(error).__name__}); remove it."
            ) from None
        form = self.wanted
        return tuple(
            replace(cap, ask=replace(cap.ask, headers=form.headers, extra=form.extra, salt=form.salt)) for cap in caps
        )

    def write(self, found: Sequence[Capabilities]) -> None:
        stored = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        plain = [replace(cap, ask=replace(cap.ask, headers=(), extra={}, salt=None)) for cap in found]
        write_json(self.path, {**stored, self._key: [asdict(cap) for cap in plain]})
