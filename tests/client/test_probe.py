"""What is found out about a server before the run, against small servers of many characters."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from backends.client import control
from backends.client.body import Capabilities, Mode, RequestFormat, Shared
from backends.client.probe import probe
from harness.api import ExactWords, Request
from harness.errors import BackendError, NotReady, UsageError


@dataclass(slots=True)
class Server:
    """Counts a word as one token, and `template` more. `refuse` names fields that give a 422.

    `failing` has the status of an answer by its place, or 0 for a connection that is closed without one; the answer at
    place `uncounted` has no usage.
    """

    models: tuple[str, ...] | None = ("m",)
    closed: int = 200
    page: str | None = None
    more: Mapping[str, str] = field(default_factory=dict)
    refuse: tuple[str, ...] = ()
    say: str = "Unexpected keys in the request: {name}"
    why: str = "not today"
    template: int = 0
    a_word: float = 1.0
    context: int | None = None
    usage: str | None = "own"
    uncounted: int = 0
    takes_ids: bool = True
    gives_ids: bool = False
    vocabulary: int = 100_000
    obeys: str = "max_completion_tokens max_tokens"
    ends_early: bool = False
    role_s: float | None = None
    streams: bool = True
    in_pieces: bool = False
    status: int = 200
    failing: Mapping[int, int] = field(default_factory=dict)
    entry: Mapping[str, object] = field(default_factory=dict)
    tokenizer: str | None = None
    mute: bool = False
    bodies: list[dict] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    async def list(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers.copy())
        if self.models is None:
            raise web.HTTPNotFound
        if self.closed != 200 or self.page is not None:
            return web.Response(status=self.closed, text=self.page, content_type="text/html")
        value = {"data": [{"id": name, **self.entry} for name in self.models]}
        return await self.split(request, value) if self.in_pieces else web.json_response(value)

    async def split(self, request: web.Request, value: object) -> web.StreamResponse:
        """JSON in two writes, so far apart that a client reads them apart."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        data = json.dumps(value).encode()
        for part in (data[:5], data[5:]):
            await response.write(part)
            await asyncio.sleep(0.02)
        return response

    async def tokenize(self, request: web.Request) -> web.StreamResponse:
        """In the one form that it takes, by another tokenizer where `a_word` is not 1."""
        if self.mute:
            await asyncio.sleep(60)
        text = (await request.json()).get(self.tokenizer, "")
        return web.json_response({"tokens": [7] * len(text.split())} if self.tokenizer else {}, status=200)

    def prompt_tokens(self, body: Mapping) -> int | None:
        """None for token ids that it does not take."""
        turns = body.get("messages", ())
        prompt = " ".join(m["content"] for m in turns) if turns else body["prompt"]
        if isinstance(prompt, list):
            return len(prompt) + self.template if self.takes_ids else None
        return round(len(prompt.split()) * self.a_word) + self.template + 9 * max(0, len(turns) - 1)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        options = body.get("stream_options") or {}
        status = self.failing.get(len(self.bodies), self.status)
        if not status:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        for name in self.refuse:
            if name in body or name in options:
                return web.json_response({"error": {"message": self.say.format(name=name)}}, status=422)
        counted = self.prompt_tokens(body)
        if counted is None:
            return web.json_response({"detail": "prompt: str type expected"}, status=400)
        if isinstance(body.get("prompt"), list) and max(body["prompt"]) >= self.vocabulary:
            return web.json_response({"error": "token id out of vocabulary"}, status=400)
        if self.context is not None and counted > self.context:
            return web.json_response({"error": {"message": f"{counted} tokens exceed the context"}}, status=400)
        if status != 200:
            return web.json_response({"error": {"message": self.why}}, status=status, headers=self.more)
        probed = next((body[name] for name in self.obeys.split() if name in body), 100)
        tokens = min(probed, 3) if self.ends_early and not body.get("min_tokens") else probed
        return await self.write(request, counted, tokens, options, streams=self.streams and body["stream"])

    async def write(
        self, request: web.Request, counted: int, tokens: int, options: Mapping, *, streams: bool
    ) -> web.StreamResponse:
        usage = {"prompt_tokens": counted, "completion_tokens": tokens}
        if not streams:
            return web.json_response({"choices": [{"text": "x " * tokens, "finish_reason": "length"}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Server": "small/1"})
        await response.prepare(request)
        if self.role_s is not None:
            await response.write(_event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
            for _ in range(2):  # where the loop stands still in one half, the client reads before the other
                await asyncio.sleep(self.role_s / 2)
        for i in range(tokens):
            every = {"usage": {**usage, "completion_tokens": i + 1}} if self.usage == "every" else {}
            ids = {"token_ids": [7]} if self.gives_ids else {}
            await response.write(_event({"choices": [{"text": "x", **ids}], **every}))
        at_finish = {"usage": usage} if self.usage in ("finish", "every") else {}
        await response.write(_event({"choices": [{"text": "", "finish_reason": "length"}], **at_finish}))
        if self.usage == "own" and options.get("include_usage") and len(self.bodies) != self.uncounted:
            await response.write(_event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


class Ids:
    """A content of ids alone."""

    def token_ids(self, request: Request, vocab_size: int):
        import numpy as np

        return np.full(request.prompt_tokens, vocab_size - 1)


class Words(Ids):
    """A word a token."""

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  # of the protocol
        return "w " * request.prompt_tokens


class Learner(Words):
    """Learns how many tokens a word is, from one count."""

    a_word: float = 1.0
    words: ExactWords | None = None

    def search(self) -> Generator[str, Sequence[int], ExactWords | None]:
        return ExactWords("", " ", ("w",)) if len((yield "w w w")) == 3 else None

    def use(self, words: ExactWords | None) -> None:
        self.words = words

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  # of the protocol
        return "w " * max(1, round(request.prompt_tokens / (1.0 if self.words else self.a_word)))

    def observe(self, text: str, prompt_tokens_server: int) -> None:
        self.a_word = prompt_tokens_server / len(text.split())


@pytest.fixture
def probed() -> Callable[..., Capabilities]:
    """`probed(server, content=..., key=..., mode=..., **fields)`: what the probe finds."""

    async def run(
        server: Server, content: object, key: str | None, ask: RequestFormat, timeout_s: float, mode: Mode, root: bool
    ) -> Capabilities:
        app, version = web.Application(), "" if root else "/v1"
        app.router.add_get(f"{version}/models", server.list)
        if server.tokenizer is not None:
            app.router.add_post("/tokenize", server.tokenize)
        app.router.add_post(f"{version}/completions", server.answer)
        app.router.add_post(f"{version}/chat/completions", server.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            url = f"http://127.0.0.1:{port}/v1"
            return await probe(url, ask, content, mode=mode, key=key, timeout_s=timeout_s)  # type: ignore[arg-type]
        finally:
            await runner.cleanup()

    def start(
        server: Server,
        content: object = None,
        key: str | None = None,
        timeout_s: float = 120.0,
        mode: Mode = "short",
        root: bool = False,
        **fields: object,
    ) -> Capabilities:
        if fields.get("api") == "completions":
            fields.setdefault("prompt", "ids")
        return asyncio.run(run(server, content or Words(), key, RequestFormat(**fields), timeout_s, mode, root))  # type: ignore[arg-type]

    return start


def test_a_server_that_accepts_everything_gets_every_field(probed: Callable) -> None:
    """Something would be left out for nothing."""
    found = probed(Server(usage="every", entry={"max_model_len": 4096, "owned_by": "vllm"}), api="chat")

    assert () == found.dropped and () == found.warnings
    assert ("m", "text") == (found.ask.model, found.ask.prompt)
    assert (4096, "vllm", "small/1", 0) == (found.max_model_len, found.kind, found.server, found.overhead_tokens)
    json.dumps(found.describe())


@pytest.mark.parametrize("name", ["ignore_eos", "continuous_usage_stats", "seed", "stop", "temperature", "top_p"])
def test_a_field_that_the_server_names_is_left_out_and_reported(probed: Callable, name: str) -> None:
    """A strict server could not be measured, or not as the user thinks."""
    server = Server(refuse=(name,))
    found = probed(server, api="chat", seed=1, stop=("x",), temperature=0.5, top_p=0.5)

    assert [name] == [field for field, _ in found.dropped]
    assert any(name in warning for warning in found.warnings)
    assert name not in json.dumps(server.bodies[-1]) and name not in found.describe()["accepted"]


def test_a_server_that_does_not_say_what_it_minds_is_tried_with_less_and_less(probed: Callable) -> None:
    """A server with a bare 400 could not be measured."""
    found = probed(Server(refuse=("ignore_eos", "min_tokens", "generation_config"), say="no"), api="chat")

    assert not found.ask.ignore_eos and not found.ask.min_tokens and not found.ask.generation_config


def test_another_way_to_ask_for_a_length_is_tried(probed: Callable) -> None:
    """Answers of transformers would have any length."""
    found = probed(Server(refuse=("ignore_eos", "min_tokens")), api="chat")

    assert found.ask.generation_config and ["ignore_eos", "min_tokens"] == [name for name, _ in found.dropped]
    assert all("generation_config asks for the length" in warning for warning in found.warnings)
    assert "transformers" == found.kind


def test_a_server_that_ignores_the_length_of_a_chat_gets_the_old_field(probed: Callable) -> None:
    """llama-cpp-python would answer to the end of its context."""
    found = probed(Server(obeys="max_tokens"), api="chat")

    assert "max_tokens" == found.ask.length and () == found.dropped


def test_a_server_that_stops_early_gets_a_minimum_length(probed: Callable) -> None:
    """Answers would be short although ignore_eos was accepted."""
    assert probed(Server(ends_early=True), api="chat").ask.min_tokens
    warning = probed(Server(ends_early=True, refuse=("min_tokens",)), api="chat").warnings[-1]

    assert "ended the probe after 3 of 8 tokens" in warning


def test_token_ids_are_sent_where_they_are_taken(probed: Callable) -> None:
    """Lengths would be inexact where they need not be, or every request fail."""
    assert "ids" == probed(Server(), api="completions").ask.prompt
    refused = probed(Server(takes_ids=False), api="completions")

    assert "text" == refused.ask.prompt and "token ids" == refused.dropped[0].field
    assert "text" == probed(Server(), api="completions", prompt="text").ask.prompt
    with pytest.raises(UsageError, match="give --content text"):
        probed(Server(takes_ids=False), Ids(), api="completions")


def test_token_ids_stay_inside_the_vocabulary(probed: Callable) -> None:
    """Every request would be refused by a small model."""
    assert 250 == probed(Server(vocabulary=300), api="completions").ask.vocab_size
    assert 32_000 == probed(Server(entry={"meta": {"n_vocab": 32_000}}), api="completions").ask.vocab_size


class Tokenized(Words):
    """Its ids are those of a tokenizer."""

    def token_ids(self, request: Request, vocab_size: int):
        import numpy as np

        if vocab_size <= 20_000:
            raise ValueError("The tokenizer has ids up to 20000.")
        return np.full(request.prompt_tokens, 20_000)


def test_a_content_with_a_tokenizer_keeps_its_ids(probed: Callable) -> None:
    """The probe would end in a traceback, or send ids of other words."""
    server = Server()
    found = probed(server, Tokenized(), api="completions", salt="a")

    assert "ids" == found.ask.prompt and () == found.dropped
    assert {20_000} == set(server.bodies[0]["prompt"][4:]) and max(server.bodies[0]["prompt"][:4]) < 1000


def test_a_chat_needs_a_content_with_text(probed: Callable) -> None:
    """The mistake would show as an error of every request."""
    with pytest.raises(UsageError, match="accepts only text; give --content text"):
        probed(Server(), Ids(), api="chat")


def test_what_the_server_adds_to_each_prompt_is_taken_off(probed: Callable) -> None:
    """Prompts would be longer than planned by the chat template."""
    found = probed(Server(template=13), api="chat")

    assert (13, 13) == (found.overhead_tokens, found.ask.overhead_tokens)
    assert any("13 tokens are added" in warning for warning in found.warnings)


def test_a_server_that_counts_a_token_less_gets_prompts_that_are_longer_by_it(probed: Callable) -> None:
    """The overhead was noted as 0, and every prompt was a token short without a word."""
    found = probed(Server(template=-1), api="chat")

    assert (-1, -1) == (found.overhead_tokens, found.ask.overhead_tokens)
    assert not any("added" in warning or "other prompt lengths" in warning for warning in found.warnings)


def test_a_server_that_counts_otherwise_than_planned_is_reported(probed: Callable) -> None:
    """Prompts would be twice as long as the report says."""
    found = probed(Server(a_word=2.0), api="chat")

    assert 0 == found.ask.overhead_tokens
    assert any("other prompt lengths than planned (64 for 32" in warning for warning in found.warnings)


def test_a_content_that_learns_is_taught(probed: Callable) -> None:
    """Lengths would be off by what a word is in tokens."""
    content = Learner()
    found = probed(Server(a_word=2.0), content, api="chat")

    assert [2.0, 2.0] == [round(lesson.counted / len(lesson.text.split()), 1) for lesson in found.lessons]


@pytest.mark.parametrize("form", ["prompt", "content"])
def test_prompts_are_exact_by_the_tokenizer_of_the_server(form: str, probed: Callable, tmp_path: Path) -> None:
    """Prompts of 50 tokens would be off by a seventh, or each run of a sweep would ask for all words again."""
    content = Learner()
    found = probed(Server(template=13, tokenizer=form), content, api="chat")
    Shared(tmp_path / "probe.json", ["u"], RequestFormat(), {}).write([found])

    [again] = Shared(tmp_path / "probe.json", ["u"], RequestFormat(), {}).read()

    assert ExactWords("", " ", ("w",)) == content.words == again.words
    assert (13, 13, 18, ()) == (found.overhead_tokens, found.ask.overhead_tokens, found.turn_tokens, found.lessons)
    assert re.match(r"lengths: exact by the server's /tokenize \(1 calls, .* s\)", found.warnings[-1])


def test_a_tokenizer_that_never_answers_is_given_up(probed: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would begin ten minutes late, as long as an answer may take."""
    monkeypatch.setattr("backends.client.probe.SEARCH_S", 0.05)
    content = Learner()
    found = probed(Server(tokenizer="prompt", mute=True), content, api="chat")

    assert (None, None, 2) == (content.words, found.words, len(found.lessons))


@pytest.mark.parametrize("a_word", [2.0, 1.01])
def test_a_tokenizer_that_is_not_the_one_of_the_model_is_not_believed(a_word: float, probed: Callable) -> None:
    """A proxy may answer for a model of another tokenizer: every prompt would be longer than planned."""
    content = Learner()
    found = probed(Server(a_word=a_word, tokenizer="prompt"), content, api="chat")

    assert (None, None, 0) == (content.words, found.words, found.ask.overhead_tokens)
    assert 2 == len(found.lessons) and any("lengths: learned from" in warning for warning in found.warnings)


def test_a_server_without_usage_is_reported(probed: Callable) -> None:
    """It would be unknown that prompts were not counted."""
    found = probed(Server(usage=None), api="chat")

    assert any("does not report prompt tokens" in warning for warning in found.warnings)


def test_the_only_model_is_taken_and_of_several_one_must_be_named(probed: Callable) -> None:
    """A run would measure some model."""
    assert "m" == probed(Server()).ask.model and "other" == probed(Server(), model="other").ask.model
    assert "x" == probed(Server(models=None), model="x").ask.model
    with pytest.raises(UsageError, match=r"several models; name one by --model NAME, or model=NAME. Known: a, b"):
        probed(Server(models=("b", "a")))
    with pytest.raises(UsageError, match="does not list its models"):
        probed(Server(models=None))
    with pytest.raises(NotReady, match="lists no model yet"):
        probed(Server(models=()))


@pytest.mark.parametrize(
    "answer",
    [
        *({"closed": status} for status in (401, 404, 405, 500, 503)),
        {"page": "<html>Open WebUI</html>"},
        {"page": "null"},
    ],
    ids=str,
)
def test_a_named_model_is_believed_where_there_is_no_list_of_models(answer: dict[str, Any], probed: Callable) -> None:
    """A provider whose key is only for answers, a proxy of one route, or one that answers any path with its page."""
    assert "m" == probed(Server(**answer), model="m").ask.model


def test_a_bare_list_of_models_is_a_list(probed: Callable) -> None:
    """The only model of a provider would have to be named."""
    assert "only" == probed(Server(page='[{"id": "only"}]')).ask.model


@pytest.mark.parametrize(("status", "why", "words"), [
    (503, "Loading model", "is loading its model and not ready .HTTP 503: 'Loading model'."),
    (503, "Model m is currently loading", "is loading its model"),
    (503, "no capacity", "is not ready .HTTP 503: 'no capacity'."),
    (409, "Model is loading", "is loading its model"),
    (425, "", "is not ready .HTTP 425"),
    (502, "Bad Gateway", "A proxy answers at .* the server behind it is not ready .HTTP 502"),
    (504, "", "the server behind it is not ready .HTTP 504"),
    (521, "error code: 521", "the server behind it is not ready .HTTP 521"),
    (404, "The model `m` does not exist.", "has no model 'm', only m .HTTP 404"),
])  # fmt: skip
def test_what_a_server_lacks_is_named_and_can_be_waited_for(
    status: int, why: str, words: str, probed: Callable
) -> None:
    """A user would look for a mistake in the command, while the server reads its weights."""
    with pytest.raises(NotReady, match=words) as error:
        probed(Server(status=status, why=why))
    assert str(error.value).endswith("; --wait 10min waits for it.")


@pytest.mark.parametrize("headers", [{"Retry-After": "0"}, {"retry-after-ms": "1"}, {}])
def test_a_limit_that_meets_the_probe_is_waited_out(
    headers: dict[str, str], probed: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would not begin because another client had just used the quota of this second."""
    pauses: list[float] = []
    monkeypatch.setattr(control, "sleep", _noted(pauses))
    found = probed(Server(failing={1: 429, 2: 429}, more=headers))

    assert [0.5, 0.5] == pauses if headers else [1.0, 2.0] == pauses
    assert any("the server limits requests: the probe waited" in warning for warning in found.warnings)


def test_a_limit_for_longer_than_a_minute_is_not_waited_out(probed: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command would sit silent until tomorrow."""
    pauses: list[float] = []
    monkeypatch.setattr(control, "sleep", _noted(pauses))
    with pytest.raises(NotReady, match="limits requests"):
        probed(Server(status=429, more={"Retry-After": "Fri, 31 Dec 2999 23:59:59 GMT"}))
    with pytest.raises(NotReady, match="limits requests"):
        probed(Server(status=429))

    assert [1.0, 2.0, 4.0, 8.0] == pauses


def _noted(pauses: list[float]) -> Callable[[float], Awaitable[None]]:
    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    return sleep


@pytest.mark.parametrize("model", ["", "m"])
def test_routes_at_the_root_are_used_where_none_is_below_v1(model: str, probed: Callable) -> None:
    """Providers without /v1 would need their whole route in the URL."""
    assert probed(Server(), model=model, root=True).at_root
    assert not probed(Server(), model=model).at_root


def test_what_comes_in_pieces_is_read_to_its_end(probed: Callable) -> None:
    """Half a list is no JSON: a server with many models would have none."""
    assert "m" == probed(Server(in_pieces=True)).ask.model


def test_an_answer_in_one_piece_is_only_for_those_who_ask_for_it(probed: Callable) -> None:
    """A server that does not stream would have a TTFT."""
    assert probed(Server(streams=False), stream=False).overhead_tokens is not None
    with pytest.raises(BackendError, match=r"does not stream.*stream=false"):
        probed(Server(streams=False))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "refuses the key.*OPENAI_API_KEY"),
        (503, "is not ready"),
        (404, "model 'm'.* got status 404: 'not today'"),
        (500, r"/v1 answers, but the request with stream_options, .* got status 500: 'not today'\.$"),
    ],
)
def test_a_server_that_refuses_is_reported_in_a_sentence(probed: Callable, status: int, message: str) -> None:
    """The reason would be a row of each of ten thousand requests."""
    with pytest.raises(BackendError, match=f"{message}.*"):
        probed(Server(status=status), key="mysecretkey")


def test_the_key_goes_to_the_server_and_not_into_the_error(probed: Callable) -> None:
    """A protected server could not be probed, or the key be printed."""
    server = Server(refuse=("messages",), say="you sent mysecretkey with {name}")
    with pytest.raises(BackendError) as error:
        probed(server, key="mysecretkey")

    assert "Bearer mysecretkey" == server.headers[0]["Authorization"] and "mysecretkey" not in str(error.value)


def test_a_server_that_never_answers_is_given_up(probed: Callable) -> None:
    """A run would hang before it began."""
    with pytest.raises(BackendError, match=r"gave no answer within 0.2 s"):
        probed(Server(role_s=60.0), timeout_s=0.2)


def test_a_content_of_ids_gets_the_errors_of_the_server(probed: Callable) -> None:
    """Token ids would be blamed for a field that the server refuses without naming it."""
    found = probed(Server(refuse=("ignore_eos",), say="no such input, list of types"), Ids(), api="completions")

    assert "ids" == found.ask.prompt and not found.ask.ignore_eos


def test_a_port_without_a_server_is_reported_in_a_sentence() -> None:
    """A typing mistake would end in a traceback."""
    with pytest.raises(BackendError, match=r"No server answers at http://127.0.0.1:1/v1"):
        asyncio.run(probe("http://127.0.0.1:1/v1", RequestFormat(), Words()))


def test_a_server_without_the_routes_and_one_without_tls_are_named() -> None:
    """A newcomer would learn only that nothing is found."""

    async def run(scheme: str, model: str) -> str:
        runner = web.AppRunner(web.Application(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            await probe(url, RequestFormat(model=model, api="chat"), Words(), timeout_s=120.0)  # type: ignore[arg-type]
        except (BackendError, UsageError) as error:
            return str(error)
        finally:
            await runner.cleanup()
        raise AssertionError(scheme)

    assert "does not list its models (HTTP 404); name one by --model NAME" in asyncio.run(run("http", ""))
    assert "/v1 answers, but the request with" in asyncio.run(run("http", "m"))
    assert "this port speaks http: use http://, as in url=http://" in asyncio.run(run("https", ""))


@pytest.mark.parametrize(
    ("content", "server", "api", "mode", "requests"),
    [
        (Words(), Server(), "completions", "short", ["models", "fields"]),
        (Words(), Server(), "chat", "short", ["models", "fields"]),
        (Words(), Server(usage=None), "chat", "short", ["models", "fields"]),
        (Words(), Server(template=13), "chat", "short", ["models", "fields", "prompt lengths"]),
        (
            Learner(),
            Server(template=13, a_word=1.3),
            "chat",
            "short",
            ["models", "fields", "tokenizer", "tokenizer", "prompt lengths"],
        ),
        (Words(), Server(refuse=("seed",)), "chat", "short", ["models", "fields", "fewer fields"]),
        (Words(), Server(refuse=("ignore_eos",), say="no"), "chat", "short", ["models", "fields", "fewer fields"]),
        (Words(), Server(), "chat", "off", []),
    ],
)
def test_the_probe_sends_few_requests_and_lists_them(
    probed: Callable, content: object, server: Server, api: str, mode: str, requests: list[str]
) -> None:
    """A paid or busy server would do work that no report names."""
    found = probed(server, content, api=api, mode=mode, model="m", seed=1)

    assert requests == [sent.purpose for sent in found.requests]
    assert len(server.headers) + len(server.bodies) == len(requests) - requests.count("tokenizer")
    assert 2 >= len(server.bodies)


def test_without_a_probe_every_field_is_sent_and_nothing_is_claimed(probed: Callable) -> None:
    """A run without a probe would report what was never found out."""
    found = probed(Server(), mode="off", model="m", api="completions", prompt="text")

    assert ("text", True, True) == (found.ask.prompt, found.ask.ignore_eos, found.ask.continuous_usage)
    assert found.describe()["prompt_overhead_tokens"] is None
    assert "ids" == probed(Server(), Ids(), mode="off", model="m", api="completions").ask.prompt
    with pytest.raises(UsageError, match=r"probe=off.*model=NAME"):
        probed(Server(), mode="off")


def test_a_refusal_that_names_no_field_costs_the_extensions_and_says_so(probed: Callable) -> None:
    """A user would not hear that answers may be short because of a guess."""
    found = probed(Server(refuse=("ignore_eos",), say="bad request"), api="chat")

    assert not found.ask.ignore_eos and not found.ask.continuous_usage and found.ask.include_usage
    assert any("(status 422) and does not name a field" in one for one in found.warnings)


@pytest.mark.parametrize(("status", "how"), [(500, "got status 500: 'not today'"), (0, "broke off: ")])
def test_a_fault_in_the_probe_is_called_what_it_is(probed: Callable, status: int, how: str) -> None:
    """A user whose server is there would look for it: 'No server answers'."""
    with pytest.raises(BackendError) as first:
        probed(Server(failing={1: status}), Learner(), api="chat")
    found = probed(Server(failing={2: status}, template=13), Learner(), api="chat")

    assert re.search(rf"/v1 answers, but the request with stream_options, .* {how}", str(first.value))
    assert re.search(
        rf"/v1 answers, but the request for the length of 1000 .* {how}.*may be inexact", found.warnings[-1]
    )
    assert [200, 200, 404, 404, status] == [sent.status for sent in found.requests]


@pytest.mark.parametrize("context", [512, 2048, 8192])
def test_a_text_of_many_tokens_is_learned_within_the_context(probed: Callable, context: int) -> None:
    """Where a word is four tokens all prompts would be four times too long, and refused by a server of 2,048."""
    content = Learner()
    found = probed(
        Server(a_word=4.0, template=7, context=context, entry={"max_model_len": context}), content, api="chat"
    )

    assert [200, 200, 404, 404, 200] == [sent.status for sent in found.requests]
    assert 2 == len(found.lessons)


@pytest.mark.parametrize("status", [500, 0, 200])
def test_a_content_learns_nothing_from_one_count_alone(probed: Callable, status: int) -> None:
    """A template of 40 tokens would be taken for longer words: prompts of 1,000 tokens would be a third too short."""
    content = Learner()
    found = probed(Server(failing={2: status} if status != 200 else {}, template=40, uncounted=2), content, api="chat")

    assert (1.0, ()) == (content.a_word, found.lessons)
    assert ("may be inexact" if status != 200 else "are unverified") in found.warnings[-1]


def test_the_words_of_a_server_are_quoted_short_and_clean(probed: Callable) -> None:
    """A server could write on the terminal, or fill it."""
    with pytest.raises(BackendError) as caught:
        probed(Server(status=500, why="\x1b[2J\x07 \u202e bad\n" + 300 * "x"), api="chat")
    quoted = str(caught.value).partition("status 500: '")[2].removesuffix("'.")

    assert 80 >= len(quoted) > 60 and quoted.isprintable() and "bad x" in quoted


def test_what_was_found_is_shared_without_secrets(probed: Callable, tmp_path: Path) -> None:
    """Each run of a command would probe again, or a key would lie in a file."""
    path, secret = tmp_path / "probe.json", "sk-verysecret"
    wanted = RequestFormat(api="chat", headers=(("X-Key", secret),), extra={"user": secret}, salt=secret, seed=3)
    content = Learner()
    found = probed(Server(template=13, refuse=("seed",)), content, **_fields(wanted))
    Shared(path, ["u"], wanted, {"content": "a"}).write([found])
    again = Shared(path, ["u"], replace(wanted, salt=secret[::-1]), {"content": "a"}).read()

    assert (replace(found, ask=replace(found.ask, salt=secret[::-1])),) == again
    assert found.lessons and secret not in path.read_text()
    for other in (Shared(path, ["v"], wanted, {"content": "a"}), Shared(path, ["u"], wanted, {"content": "b"}),
                  Shared(path, ["u"], replace(wanted, seed=4), {"content": "a"}),
                  Shared(path, ["u"], replace(wanted, headers=(("X-Key", "sk-another"),)), {"content": "a"}),
                  Shared(path, ["u"], replace(wanted, extra={"user": "another"}), {"content": "a"}),
                  Shared(path, ["u"], replace(wanted, salt="longer " * 9), {"content": "a"})):  # fmt: skip
        assert () == other.read()


def _fields(ask: RequestFormat) -> dict[str, object]:
    return {name: getattr(ask, name) for name in ("api", "headers", "extra", "salt", "seed")}


def test_follow_ups_are_text_where_the_server_returns_no_ids(probed: Callable) -> None:
    """Follow-ups would repeat ids that the server never made, and its cache find nothing of its answers."""
    for server in (Server(), Server(refuse=("return_token_ids",))):
        found = probed(server, api="completions", token_ids=True)

        assert ("text", False) == (found.ask.prompt, found.ask.token_ids)
        assert any("does not return the token ids of its answers" in warning for warning in found.warnings)
    kept = probed(Server(gives_ids=True), api="completions", token_ids=True)
    bare = probed(Server(), Ids(), api="completions", token_ids=True)

    assert ("ids", True, ()) == (kept.ask.prompt, kept.ask.token_ids, kept.warnings)
    assert ("ids", False) == (bare.ask.prompt, bare.ask.token_ids)
    assert any("follow-ups do not repeat them" in warning for warning in bare.warnings)
