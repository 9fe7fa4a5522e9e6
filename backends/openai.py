"""A server that speaks OpenAI's API, anywhere, measured by the times at which the kernel received its bytes.

`openai:url=http://HOST:8000/v1,model=NAME,api=chat` asks a running server; `url=A|B` sends to several. Answers are kept
as bytes with their times and read afterwards, so that reading never makes a departure or a stamp late.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets as random_text
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from backends.client import stamps, target
from backends.client.body import (  # harness.spec reads the annotations of fields
    Api,
    Builder,
    Capabilities,
    Mode,
    RequestFormat,
    Shared,
    sound_headers,
)
from backends.client.connection import Answer
from backends.client.counting import Recount, by_server, local
from backends.client.history import History
from backends.client.pool import ConnectionPool, Route, Target
from backends.client.reading import Reader
from backends.client.secrets import DEFAULT_KEY_ENV, Redaction, load_key, redaction
from backends.client.target import Limits, allow_open_files
from harness.api import (
    Content,
    CountedBy,
    Ended,
    LearningContent,
    NullServer,
    RecordedContent,
    Request,
    Scraper,
    Sourced,
    Status,
    Step,
    TokenEvent,
)
from harness.bounds import AtLeastOne, AtLeastZero, Positive, check
from harness.errors import BackendError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


FILES_BESIDES, FILES_WANTED = 64, 65536
"""Open files: what a sender may need for other things than connections, and the limit that it asks for in any case."""
TOKEN_S = 0.03
FIRST_S = 0.5
"""How long an answer takes, for want of anything better, when connections are opened ahead."""
WARM_MOST = 512
SPARE, SPARE_S = 2, 0.02
"""Connections kept unused: so many, and what arrives in the time it takes to open one (20 ms at least)."""
RECOUNT_S = 60.0
"""How long the server may take to count the tokens of an answer, after the run."""
RECORDED = (
    "recorded prompts are sent as they are: the server's own usage counts their tokens, no salt opens them (what an "
    "earlier run left in a prefix cache helps), and answers end where the server ends them unless output_lengths=exact"
)
THREADED = frozenset({"llama.cpp"})
"""Servers that give each open connection a thread of few: an idle one would keep a request waiting."""


@dataclass(slots=True)
class OpenAI:
    """An OpenAI-compatible server: chat or completions, streaming or not, text or token ids.

    Limits in seconds: `connect_s`, `timeout_s` in all, `first_token_s`, `idle_s` of silence; of what the server sends:
    `max_body_bytes` of an answer (default: 1 MiB and 8 KiB for each requested token), `max_event_bytes` of an event,
    `max_head_bytes` of the header block. `route` (round-robin,
    least-outstanding) picks among several URLs. `salt` opens every prompt: auto draws one, none leaves
    it out. `warm` connections are opened ahead (default: as the rate needs). Keys come from `key_env` or `key_file`.
    `source` names addresses to send from, A|B or a network such as 10.0.0.0/24, of which each sender takes in turn
    those of its machine: one address has 28,232 ports to a server.
    `tokenizer` is a file that counts answers after the run where the server reports no tokens and has no tokenizer.
    `metrics` are the server's Prometheus metrics: auto (where it is known to keep them), none, or their URL.
    `prompt` is sent as text or as token ids (completions only; auto: ids where the server takes them). `affinity` names
    each request's session in a header, for routers. `header` ('Name: value'; {tag}, {priority} or {slo_e2e_s} in it are
    those of each request) and `extra_body` (a JSON object) go with every request; commas are safe in --header and
    --extra-body. `output_lengths`: exact makes a run with shorter
    answers than requested not valid (default where the server takes ignore_eos, or a field that does the same); server
    lets answers end where the server likes, and does not send ignore_eos. `proxy` is an http proxy's URL; `ca`
    (authorities to trust) and `client_cert` (with its key) are PEM files; `insecure` trusts any server. `probe` is what
    is sent before the run, unmeasured: short (two requests, one more for each refused field) or off (none: `model` must
    be named, and every field is assumed to be accepted).
    `gpus`, `watts` (of all GPUs) and `usd_per_hour` are facts of the deployment that no server tells: results per GPU,
    kW and dollar need them.
    """

    default_content: ClassVar[str] = "text"
    answer: ClassVar[type] = Answer

    url: str | None = None
    model: str | None = None
    api: Api = "chat"
    stream: bool = True
    prompt: Literal["auto", "ids", "text"] = "auto"
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | None = None
    header: str | None = None
    extra_body: str | None = None
    output_lengths: Literal["exact", "server"] | None = None
    salt: str | None = "auto"
    affinity: bool = False
    key_env: str = DEFAULT_KEY_ENV
    key_file: str | None = None
    route: Route = "round-robin"
    connect_s: Positive = 10.0
    timeout_s: Positive = 600.0
    first_token_s: Positive | None = None
    idle_s: Positive | None = None
    max_body_bytes: AtLeastOne | None = None
    max_event_bytes: AtLeastOne = target.EVENT_BYTES
    max_head_bytes: AtLeastOne = target.HEAD_BYTES
    proxy: str | None = None
    ca: str | None = None
    client_cert: str | None = None
    insecure: bool = False
    source: str | None = None
    warm: AtLeastZero | None = None
    metrics: str = "auto"
    tokenizer: str | None = None
    probe: Mode = "short"
    gpus: AtLeastOne | None = None
    watts: Positive | None = None
    usd_per_hour: Positive | None = None
    _places: tuple[target.Place, ...] = field(default=(), init=False, repr=False)
    _builder: Builder | None = field(default=None, init=False, repr=False)
    _reader: Reader = field(default_factory=Reader, init=False, repr=False)
    _redaction: Redaction = field(default_factory=Redaction, init=False, repr=False)
    _known: tuple[Capabilities, ...] = field(default=(), init=False, repr=False)
    _shared: bool = field(default=False, init=False, repr=False)
    _notes: tuple[str, ...] = field(default=(), init=False, repr=False)
    _recount: Recount = field(default_factory=Recount, init=False, repr=False)
    _epoch_s: float = field(default=0.0, init=False, repr=False)
    _ready: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)
    _pool: ConnectionPool | None = field(default=None, init=False, repr=False)
    _keyless: bool = field(default=False, init=False, repr=False)
    _history: History | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)
        if self.prompt == "ids" and self.api == "chat":
            raise ValueError("prompt=ids needs api=completions: a chat is made of text.")

    @property
    def from_environment(self) -> Mapping[str, str]:
        """Arguments that the environment gave: the address, where OPENAI_BASE_URL named it. Raises UsageError."""
        url, from_environ = target.base_url(self.url, os.environ)
        return {"url": url} if from_environ else {}

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """For a sender: everything that `open` found, no connections."""
        state = {name: getattr(self, name) for name in self.__slots__}
        return None, {**state, "_pool": None, "_ready": {}, "_recount": Recount()}  # the form of a class with slots

    async def open(self, content: Content, shared: Path | None = None, history: str | None = None) -> None:
        """Look up the addresses and ask each server, in a few unmeasured requests, what it can do; see `Remote`."""
        urls, notes = self._urls()
        key, headers = self._key(), _headers(self.header)
        if key is not None and (pair := target.key_header(urls[0], key))[0] != "Authorization":
            headers, key = sound_headers((*headers, pair)), None
        if self.tokenizer is not None:
            local(self.tokenizer)  # a wrong path fails now, not after the run
        if self.source is not None:
            target.networks(self.source)
        extra = _extra(self.extra_body)
        recorded = isinstance(content, RecordedContent)
        question = self._ask(self.model or target.deployment(urls[0]) or "", headers, extra, recorded=recorded)
        question = replace(question, token_ids=history == "live" and question.prompt == "ids")
        if recorded:
            try:
                Builder(question, content, key).fields(Request(0, 0.0, 1, 1))
            except ValueError as error:  # if the first cannot be sent in this form, hardly any can
                raise UsageError(str(error)) from None
        self._redaction = redaction(key, headers, extra, [*urls, self.proxy or ""])
        self._reader = Reader(self.stream, self._redaction)
        self._places = tuple([await target.find(url, self.proxy) for url in urls])
        capabilities = await self._ask_servers(question, content, key, shared)
        self._known = tuple(capabilities)
        self._places = tuple([
            replace(place, url=target.without_version(place.url) or place.url) if server.at_root else place
            for place, server in zip(self._places, capabilities, strict=True)
        ])  # fmt: skip
        notes = [*notes, *([RECORDED] if recorded else []), self._probed()]
        self._builder = Builder(capabilities[-1].ask, content, key)
        live, text = history == "live", self._builder.ask.prompt == "text"
        if not recorded and (live or (history == "recorded" and text)):
            turn_tokens = capabilities[-1].turn_tokens
            self._history = History(self._builder.ask, content, live, turn_tokens or 0.0, turn_tokens is None)
        self._notes = (*notes, *(note for server in capabilities for note in server.warnings))

    async def connect(self, sender: int, rate_rps: float, output_tokens: float) -> None:
        """Open the connections that such a rate needs by Little's law, and keep some unused from now on.

        Raises UsageError when this machine may not open as many files.
        """
        expected = math.ceil(rate_rps * (FIRST_S + TOKEN_S * output_tokens))
        allowed = allow_open_files(max(2 * expected + FILES_BESIDES, FILES_WANTED))
        if allowed < expected + FILES_BESIDES:
            raise UsageError(
                f"About {expected} connections are needed, and this machine allows {allowed} open files; raise the "
                "hard limit ('ulimit -Hn'), or use more senders."
            )
        ports = target.ports_per_address() * len(self._places) * max(1, *map(len, self._sources().values()), 0)
        if ports < expected:
            raise UsageError(
                f"About {expected} connections are needed, and this machine has {ports} ports for them; send from more "
                "of its addresses (source=A|B or source=NETWORK), or from more hosts (--senders)."
            )
        pool = self._connections(sender)
        stamps.kernel_stamps()  # the kernel has begun to stamp when this returns
        idle_is_harmless = not any(server.kind in THREADED for server in self._known)
        if self.warm is not None:
            await pool.warm(self.warm)
        elif idle_is_harmless:
            await pool.warm(min(WARM_MOST, expected))
        if self.warm != 0 and idle_is_harmless:
            pool.spare = SPARE + math.ceil(rate_rps / len(self._places) * max(SPARE_S, 2 * pool.slowest_connect_s))

    def start_clock(self, epoch_s: float) -> None:
        """Stamps count from `epoch_s` of the monotonic clock."""
        self._epoch_s = epoch_s
        if self._pool is not None:
            self._pool.start_clock(epoch_s)

    def prepare(self, request: Request) -> None:
        """Build the bytes of a request; errors are raised when it is sent."""
        try:
            self._ready[request.id] = self._build(request)
        except ValueError:
            self._ready.pop(request.id, None)

    def fetch(self, request: Request) -> asyncio.Future[Answer]:
        """What came, when its end has come. The request leaves in this call, whenever its answer is awaited."""
        rest = self._ready.pop(request.id, None)
        pool, loop = self._connections(), asyncio.get_running_loop()
        if rest is None:
            try:
                rest = self._build(request)
            except ValueError as error:
                failed: asyncio.Future[Answer] = loop.create_future()
                failed.set_result(Answer(how="failed", why=str(error), ended_s=pool.clock.now_s()))
                return failed
        answer = pool.send(request.id, rest, request.answers * request.output_tokens)
        if (history := self._history) is not None:
            # after the turn of the loop in which an answer that is waited for is read
            answer.add_done_callback(lambda _: loop.call_soon(history.forget, request.id))
        return answer

    def hang_up(self, request_id: int, status: Status, why: str) -> None:
        """Close the connection of a request under way."""
        self._connections().hang_up(request_id, "timeout" if status == "timeout" else "cancelled", why)

    def read(self, request: Request, answer: object) -> Iterator[TokenEvent | Ended]:
        """The token events of an answer, then how it ended."""
        assert isinstance(answer, Answer)
        parsed = self._reader.parse(answer)
        for event in self._reader.read(answer, request, parsed):
            by_events = isinstance(event, Ended) and event.exchange and event.exchange.counted_by == "events"
            if by_events and request.answers == 1:  # the texts of several come side by side
                self._recount.keep(request.id, parsed.texts)
            if isinstance(event, Ended) and event.status == "ok" and self._history is not None:
                text = "".join(parsed.stream.answer).encode(errors="replace").decode()
                self._history.take(request, text, parsed.stream.ids, parsed.counted)
            yield event

    async def submit(self, request: Request) -> AsyncIterator[TokenEvent | Ended]:
        """Send now; the events come when the answer has ended, with the times at which they arrived."""
        try:
            answer = await self.fetch(request)
        except asyncio.CancelledError:
            self._connections().hang_up(request.id, "cancelled", "the request was cancelled")
            raise
        for event in self.read(request, answer):
            yield event

    async def recount(self) -> Mapping[int, tuple[CountedBy, Sequence[int]]]:
        """Count the answers without usage by the server's tokenizer, else by the one that the user named."""
        from backends.client.control import ControlClient  # brings aiohttp with it

        local_counters = [local(self.tokenizer)] if self.tokenizer is not None else []
        if not self._recount.texts or not self._known:
            return await self._recount.count(local_counters)
        place, ask, counters = self._places[0], self._known[0].ask, local_counters
        tls = self._trust().context() if place.secure else True
        key = self._key()
        async with ControlClient(place.url, key=key, redaction=self._redaction, ssl=tls, proxy=self.proxy,
                        timeout_s=RECOUNT_S, headers=ask.headers) as control:  # fmt: skip
            with suppress(BackendError):  # it is gone: then others count
                counters = [*await by_server(control, ask.model), *local_counters]
            return await self._recount.count(counters)

    def aimed_at(self, url: str, model: str) -> OpenAI:
        """The same client for a built-in server, unopened: without key, headers, fields and limits of the target."""
        unopened = OpenAI(url, model, self.api, self.stream, self.prompt, salt=self.salt, warm=self.warm)
        unopened._keyless = True
        return unopened

    @contextmanager
    def null_server(self, ttft_s: float, itl_s: float) -> Iterator[NullServer]:
        from backends.client import null_server

        with null_server.running(null_server.Timing(ttft_s, itl_s)) as url:
            yield null_server.Measured(self.aimed_at(url, null_server.MODEL), url)

    def redact(self, text: str) -> str:
        """A text without the key and what else is secret."""
        return self._redaction.text(text)

    def scraper(self, write: Callable[[pa.Table], None]) -> Scraper | None:
        """What reads the servers' metrics; None where `metrics` is none."""
        from backends.client import scrape

        key, sent = self._key(), self._known[-1].ask.headers if self._known else ()
        headers = dict([*([target.key_header(self._places[0].url, key)] if key else []), *sent])
        tls = self._trust().context()
        servers = scrape.sources([place.url for place in self._places], self.metrics, headers, tls, self.proxy)
        return scrape.Scraper(servers, write) if servers else None

    def sender_facts(self) -> Mapping[str, object]:
        """Facts of a sender: its connections and clocks."""
        history = self._history
        counts = {} if history is None else {"follow_ups": history.follow_ups, "repeating": history.repeating}
        return {**(self._pool.facts() if self._pool is not None else {}), **counts}

    def steps(self) -> Sequence[Step]:
        """None: a remote endpoint does not report its steps."""
        return ()

    def describe(self) -> Mapping[str, object]:
        """The servers, the request format and their capabilities, without secrets."""
        urls = [self._redaction.url(place.url) for place in self._places]
        ask = self._builder.ask if self._builder is not None else None
        lengths = None if ask is None else "exact" if ask.enforces_length else "server"  # None: not probed yet
        return {
            "backend": "openai",
            "model": ask.model if ask is not None else self.model,
            "gpus": self.gpus,
            **{name: value for name in ("watts", "usd_per_hour") if (value := getattr(self, name)) is not None},
            "url": "|".join(urls) or None,
            "addresses": [place.label for place in self._places],
            "api": self.api,
            "stream": self.stream,
            "route": self.route if len(self._places) > 1 else None,
            "capabilities": self._known[0].describe() if self._known else None,
            "probe": {"mode": self.probe, "reused": self._shared, "requests": [] if self._shared else
                      [sent._asdict() for server in self._known for sent in server.requests]},
            "output_lengths": self.output_lengths or lengths,
            "stamps": "kernel" if stamps.kernel_stamps() else "process",
            "salt": ask.salt if ask is not None else None,
            "timeouts": {"connect_s": self.connect_s, "total_s": self.timeout_s,
                         "first_token_s": self.first_token_s, "idle_s": self.idle_s},
            "insecure": self.insecure,
            "notes": list(self._notes),
        }  # fmt: skip

    async def close(self) -> None:
        """Hang up on every server."""
        if self._pool is not None:
            self._pool.close()
            await asyncio.sleep(0)

    def _key(self) -> str | None:
        """The API key; None for a built-in server, which must not see it."""
        return None if self._keyless else load_key(self.key_env, self.key_file, environ=os.environ)

    def _urls(self) -> tuple[list[str], list[str]]:
        """The base URLs, and what the user should hear about them."""
        parts = [part for part in (self.url or "").split("|") if part.strip()]
        urls = [target.base_url(part, {})[0] for part in parts] or [target.base_url(None, os.environ)[0]]
        notes = [] if parts else [f"sending to {Redaction().url(urls[0])}, which OPENAI_BASE_URL names"]
        if proxies := target.proxies_set(os.environ):
            notes.append(f"{', '.join(proxies)} of the environment are ignored; give proxy=URL to use a proxy")
        if self.salt == "none":
            notes.append("salt=none: prefix cache entries of earlier runs may speed up this run")
        if self.insecure:
            notes.append("insecure=true: the server's certificate is not verified")
        return urls, notes

    def _ask(
        self, model: str, headers: tuple[tuple[str, str], ...], extra: Mapping[str, object], *, recorded: bool
    ) -> RequestFormat:
        prompt = self.prompt
        if prompt == "auto":
            prompt = "ids" if self.api == "completions" and not recorded else "text"
        # whether the server chooses the lengths of answers: where the user says so, and to recorded prompts, which tell
        # themselves where an answer ends (stop, response_format, tools)
        ends_anywhere = self.output_lengths == "server" or (
            self.output_lengths is None and (recorded or extra.get("ignore_eos") is False)
        )
        salt = random_text.token_hex(4) if self.salt == "auto" else self.salt
        return RequestFormat(
            model=model,
            api=self.api,
            stream=self.stream,
            prompt=prompt,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stop=(self.stop,) if self.stop is not None else (),
            ignore_eos=not ends_anywhere,
            extra=extra,
            headers=headers,
            salt=None if recorded or salt == "none" else salt,  # nothing opens a recorded prompt
            affinity=self.affinity,
        )

    def _probed(self) -> str:
        """One line on what was sent before the run."""
        if self.probe == "off":
            return "not probed (probe=off): every field is assumed to be accepted, prompt lengths are not corrected"
        if self._shared:
            return "not probed again: another run of this command has"
        counts = Counter(sent.purpose for server in self._known for sent in server.requests)
        what = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())
        return f"probed ({self.probe}) by {counts.total()} unmeasured requests: {what}"

    async def _ask_servers(
        self, ask: RequestFormat, content: Content, key: str | None, path: Path | None
    ) -> Sequence[Capabilities]:
        """Probe each server with the format that all before it accept, so that the last result holds for all."""
        from backends.client.probe import probe  # brings aiohttp with it

        facts = content.facts if isinstance(content, Sourced) else {}
        about = {**facts, "content type": type(content).__name__, "probe": self.probe}
        servers = [self._redaction.url(place.url) for place in self._places]
        shared = None if path is None or self.probe == "off" else Shared(path, servers, ask, about)
        if shared is not None and (stored := shared.read()):
            self._shared = True
            if isinstance(content, LearningContent):
                for known in stored:
                    content.use(known.words or content.words)
                    for lesson in known.lessons:
                        content.observe(*lesson)
            return stored
        capabilities: list[Capabilities] = []
        trust = self._trust()
        for place in self._places:
            tls = trust.context() if place.secure else True
            known = await probe(place.url, ask, content, mode=self.probe, key=key, redaction=self._redaction, ssl=tls,
                                proxy=self.proxy, timeout_s=self.timeout_s)  # fmt: skip
            ask = known.ask
            capabilities.append(known)
        if shared is not None:
            shared.write(capabilities)
        return capabilities

    def _trust(self) -> target.Trust:
        return target.Trust(self.ca, self.client_cert, self.insecure)

    def _sources(self) -> Mapping[int, Sequence[str]]:
        return {} if self.source is None else target.own_addresses(self.source)

    def _build(self, request: Request) -> bytes:
        if self._builder is None:
            raise BackendError("The openai backend was not opened.")
        if self._history is None or request.session is None:
            return self._builder.rest(request)
        return self._builder.rest(request, self._history.prompt(request))

    def _connections(self, sender: int = 0) -> ConnectionPool:
        """The connections of this process, made when they are first needed."""
        if self._pool is None:
            if self._builder is None:
                raise BackendError("The openai backend was not opened.")
            trust, sources = self._trust(), self._sources()
            targets = [
                Target(self._builder.first(p.url, proxy=p.whole_url) + (p.proxy_headers if p.whole_url else b""),
                       p.peer(trust, sources), p.label)
                for p in self._places
            ]  # fmt: skip
            limits = Limits(self.connect_s, self.timeout_s, self.first_token_s, self.idle_s, self.max_body_bytes,
                            self.max_event_bytes, self.max_head_bytes)  # fmt: skip
            self._pool = ConnectionPool(targets, limits, self.route, sender, self._reader.started)
            self._pool.start_clock(self._epoch_s)
        return self._pool


def _headers(lines: str | None) -> tuple[tuple[str, str], ...]:
    """The user's headers, a line each, as 'Name: value' or 'Name=value'."""
    pairs = []
    for line in lines.split("\n") if lines else ():
        colon = ":" in line.partition("=")[0]
        name, mark, value = line.partition(":" if colon else "=")
        if not mark or not name.strip():
            word = Redaction().text(" ".join(name.split()[:1]))  # what follows may be a key
            raise UsageError(f"'{word}' is not a header; give --header 'Name: value'.")
        pairs.append((name.strip(), value.strip()))
    return sound_headers(tuple(pairs))


def _extra(text: str | None) -> Mapping[str, object]:
    """The user's fields of the body."""
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--extra-body must be a JSON object: {error}.") from None
    if not isinstance(fields, dict):
        raise UsageError(f'--extra-body must be a JSON object such as {{"top_k": 1}}, got {type(fields).__name__}.')
    return fields
